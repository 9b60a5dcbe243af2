"""Hold a rank's part of a parameter, gather it, average its gradient."""

import math

import torch
import torch.distributed as dist
from torch import Tensor, nn

from lib.parallel import collectives

# as an operation, which whoever follows memory sees; a storage's own method is none
resize = torch.ops.inductor.resize_storage_bytes_


class Shard:
    """Hold this rank's rows of a parameter, and all of them while they are gathered.

    `param.data` is one or the other. Each rank holds a block of rows; the last ones may have fewer, or none. All ranks
    hold a vector whole. The gathered parameter and its gradient are of type `dtype`."""

    def __init__(self, param: nn.Parameter, dtype: torch.dtype, is_read_in_backward: bool):
        self.param = param
        self.is_read_in_backward = is_read_in_backward
        self.is_divided = param.dim() > 1
        # as an index, Ellipsis takes all of a vector
        self.rows = ...
        self.own_rows = ...
        shape = param.shape
        if self.is_divided:
            world = dist.get_world_size()
            block = math.ceil(len(param) / world)
            self.rows = slice(len(param))
            self.own_rows = slice(dist.get_rank() * block, (dist.get_rank() + 1) * block)
            shape = (world * block, *param.shape[1:])
        # what the optimizer sees: a copy, so that the memory of the whole parameter can go
        self.local = param.data[self.own_rows].clone(memory_format=torch.contiguous_format)
        # This tensor lives as long as the shard; only its memory is freed and allocated again. So views of it that the
        # graph has saved stay good.
        self.padded = param.data.new_empty(shape, dtype=dtype)
        self.whole = self.padded[self.rows]
        self.gathering: list[dist.Work] = []
        self.reducing: tuple[dist.Work, Tensor] | None = None
        # of this rank's rows: the gradient of earlier backward passes; `take_average` adds that of this one
        self.gradient: Tensor | None = None
        self.is_whole = False  # whether the parameter shows the whole one
        self.version = 0  # counts changes in place
        self.param.data = self.local
        self.free()

    def gather(self) -> None:
        """Begin to gather the parameter, unless it is there."""
        self._read_own()
        if self.padded.untyped_storage().nbytes() == 0:
            resize(self.padded, self.padded.nbytes)
            self.gathering = self._gather_into(self.padded)

    def show_whole(self) -> None:
        """Let the parameter be the whole one.

        If it was not gathered, it has a shape but no memory, which is enough for a backward pass that does not read
        it."""
        self._finish_gathering()
        self._read_own()
        self.param.data = self.whole
        self.is_whole = True
        self.version = self.param._version

    def show_own(self) -> None:
        """Let the parameter be this rank's rows.

        Raises RuntimeError if the whole one was changed in place."""
        if not self.is_whole:
            return
        self.param.data = self.local
        self.is_whole = False
        if self.param._version != self.version:
            raise RuntimeError("parameter: got a change in place while its layer computes, expected it between passes")

    def free(self) -> None:
        """Let the parameter be this rank's rows, and free the memory of the whole one."""
        self._finish_gathering()
        self.show_own()
        resize(self.padded, 0)

    def load(self, whole: Tensor) -> None:
        """Copy this rank's rows of a whole parameter."""
        self.param.data.copy_(whole[self.own_rows])

    def gathered(self) -> Tensor:
        """Return the whole parameter in its own type."""
        self._read_own()
        padded = torch.empty_like(self.padded, dtype=self.local.dtype)
        for work in self._gather_into(padded):
            work.wait()
        return padded[self.rows]

    def set_gradient_aside(self) -> None:
        """Keep the gradient of earlier passes; the next is of the whole parameter."""
        self.gradient = self.param.grad
        self.param.grad = None

    def reduce(self) -> None:
        """Begin to average the gradient of the whole parameter, if it has one."""
        gradient = self.param.grad
        if gradient is None:
            return
        self.param.grad = None
        if not self.is_divided:
            gradient = gradient.to(self.local.dtype).contiguous()
            # as `scatter` returns it: one row, whose mean is itself
            self.reducing = (collectives.average(gradient), gradient[None])
            return
        if gradient.shape != self.padded.shape:
            padded = gradient.new_zeros(self.padded.shape)
            padded[self.rows] = gradient
            gradient = padded
        self.reducing = collectives.scatter(gradient.contiguous())

    def take_average(self) -> None:
        """Wait for the average, and add it to that of earlier backward passes."""
        if self.reducing is None:
            return
        work, received = self.reducing
        self.reducing = None
        work.wait()
        average = received.mean(0, dtype=self.local.dtype)
        if self.is_divided:
            average = average[: len(self.local)]
        self.gradient = average if self.gradient is None else self.gradient + average

    def show_gradient(self) -> None:
        """Give the parameter, now this rank's rows, the gradient of all backward passes."""
        if self.is_divided and self.gradient is not None:
            self.gradient = self.gradient.as_subclass(Rows)
        self.param.grad = self.gradient
        self.gradient = None

    def _read_own(self) -> None:
        """Take the rows that the parameter has: `.data` may have been assigned."""
        if self.is_whole:
            return
        if self.param.shape != self.local.shape:
            raise ValueError(f"shape: got {tuple(self.param.shape)}, expected this rank's {tuple(self.local.shape)}")
        self.local = self.param.data

    def _gather_into(self, padded: Tensor) -> list[dist.Work]:
        """Write this rank's rows into `padded`, and begin to receive the others'."""
        # two indices: `own_rows` may reach into the padding, and `rows` ends with the last row that exists
        padded[self.rows][self.own_rows] = self.local
        if self.is_divided:
            return collectives.gather(padded)
        return []

    def _finish_gathering(self) -> None:
        while self.gathering:
            self.gathering.pop().wait()


class Rows(Tensor):
    """Hold this rank's rows of a gradient, with the norm of all ranks' rows.

    With it `clip_grad_norm_` and GradScaler come to the same result on all ranks, which must all call them. What is
    computed from it is a plain tensor."""

    @classmethod
    def __torch_function__(cls, function, types, inputs=(), named=None):
        if function is torch._foreach_norm:
            return [torch.linalg.vector_norm(rows, *inputs[1:]) for rows in inputs[0]]
        with torch._C.DisableTorchFunctionSubclass():
            if function is torch.linalg.vector_norm:
                return _norm_of_ranks(*inputs, **named or {})
            result = function(*inputs, **named or {})
            if function is torch._amp_foreach_non_finite_check_and_unscale_:
                # whether any value is infinite or no number
                dist.all_reduce(inputs[1], dist.ReduceOp.MAX)
            return result

    def __deepcopy__(self, memo: dict) -> Tensor:
        return self.clone()


def _norm_of_ranks(rows: Tensor, *order, **named) -> Tensor:
    """Return the norm of all ranks' rows."""
    own = rows.new_zeros(())
    # the maximum of none is not defined
    if rows.numel():
        own = torch.linalg.vector_norm(rows, *order, **named)
    norms = own.new_empty(dist.get_world_size())
    collectives.all_gather(norms, own[None])
    return torch.linalg.vector_norm(norms, *order, **named)
