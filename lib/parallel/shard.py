"""Hold a rank's part of a parameter, gather it, average its gradient.

Shapes in names: R rows of a parameter, C numbers of a row. A vector is one row.
"""

import functools
import weakref

import torch
import torch.distributed as dist
from torch import Tensor, nn

from lib.parallel import collectives


class Shard:
    """Hold this rank's rows of a parameter, and all of them while they are gathered.

    `param.data` is one or the other. Each rank holds a block of rows; the last ones may have fewer, or none. All ranks
    hold a vector whole."""

    def __init__(self, param: nn.Parameter, dtype: torch.dtype):
        self.param = param
        self.shape = param.shape
        self.is_divided = param.dim() > 1
        if self.is_divided:
            self.rows = len(param)
            blocks = dist.get_world_size()
            self.block = -(-self.rows // blocks)  # rows of a rank
            self.start = dist.get_rank() * self.block
        else:
            self.rows = 1
            blocks = 1
            self.block = 1
            self.start = 0
        values_RC = param.data.reshape(self.rows, -1)
        # a copy, so that the memory of the whole parameter can go
        self.own_RC = values_RC[self.start : self.start + self.block].clone(memory_format=torch.contiguous_format)
        local_shape = self.shape
        if self.is_divided:
            local_shape = (len(self.own_RC), *self.shape[1:])
        self.local = self.own_RC.view(local_shape)  # what the optimizer sees
        # This tensor lives as long as the shard; only its memory is freed and allocated again. So views of it that the
        # graph has saved stay good.
        self.whole_RC = values_RC.new_empty((blocks * self.block, values_RC.shape[1]), dtype=dtype)
        self.whole_param = self._without_padding(self.whole_RC)
        self.whole_bytes = self.whole_RC.untyped_storage().nbytes()
        self.whole_RC.untyped_storage().resize_(0)
        param.data = self.local
        self.gathering: collectives.Pending | None = None
        self.gradient: Tensor | None = None  # of the whole parameter, on this rank
        self.reducing: tuple[collectives.Pending, Tensor] | None = None
        self.average: Tensor | None = None  # this rank's rows of the averaged gradient
        if param.requires_grad:
            # the hook holds a proxy, since Python's garbage collector cannot follow a hook: one that held this shard
            # would keep it for ever
            param.register_post_accumulate_grad_hook(functools.partial(Shard._collect, weakref.proxy(self)))

    def gather(self) -> None:
        """Begin to gather the parameter, unless it is there."""
        storage = self.whole_RC.untyped_storage()
        if storage.nbytes() == 0:
            storage.resize_(self.whole_bytes)
            self.gathering = self._gather_into(self.whole_RC)

    def show_whole(self) -> None:
        """Let the parameter be the whole one, without memory where nobody reads it."""
        self._finish_gathering()
        self.param.data = self.whole_param

    def free(self) -> None:
        """Let the parameter be this rank's rows."""
        self._finish_gathering()
        self.param.data = self.local
        self.whole_RC.untyped_storage().resize_(0)

    def gathered(self) -> Tensor:
        """Return the whole parameter in its own type."""
        whole_RC = torch.empty_like(self.whole_RC, dtype=self.local.dtype)
        self._gather_into(whole_RC).wait()
        return self._without_padding(whole_RC)

    def set_gradient_aside(self) -> None:
        """Keep the gradient of earlier backward passes, to which this one adds."""
        self.average = self.param.grad
        self.param.grad = None

    def show_average(self) -> None:
        """Give the parameter, now this rank's rows, their averaged gradient."""
        self.param.grad = self.average
        self.average = None

    def reduce(self) -> None:
        """Begin to average the gradient; a parameter without one counts as zero."""
        if not self.param.requires_grad:
            return
        if self.gradient is None:
            self.gradient = torch.zeros(self.shape, dtype=self.whole_RC.dtype, device=self.whole_RC.device)
        if self.is_divided:
            part_RC = self.own_RC.new_empty((self.block, self.own_RC.shape[1]))
            pending = collectives.scatter(part_RC, self._with_padding(self.gradient))
            part = part_RC[: len(self.own_RC)].view(self.local.shape)
        else:
            part = self.gradient.to(self.local.dtype).contiguous()
            pending = collectives.average(part)
        self.reducing = (pending, part)
        self.gradient = None

    def take_average(self) -> None:
        """Wait for the average, and add it to that of earlier backward passes."""
        if self.reducing is None:
            return
        pending, part = self.reducing
        self.reducing = None
        pending.wait()
        self.average = part if self.average is None else self.average + part

    @torch.no_grad()
    def _collect(self, param: nn.Parameter) -> None:
        """Take the whole gradient from where that of this rank's rows will be."""
        if self.gradient is None:
            self.gradient = param.grad
        else:
            self.gradient += param.grad
        param.grad = None

    def _gather_into(self, whole_RC: Tensor) -> collectives.Pending:
        """Write this rank's rows into `whole_RC`, and begin to receive the others'."""
        whole_RC[self.start : self.start + len(self.own_RC)] = self.own_RC
        if self.is_divided:
            return collectives.gather(whole_RC)
        return collectives.Pending([])

    def _finish_gathering(self) -> None:
        if self.gathering is not None:
            self.gathering.wait()
            self.gathering = None

    def _without_padding(self, whole_RC: Tensor) -> Tensor:
        return whole_RC[: self.rows].view(self.shape)

    def _with_padding(self, gradient: Tensor) -> Tensor:
        gradient_RC = gradient.reshape(self.rows, -1)
        if self.rows == len(self.whole_RC):
            return gradient_RC.contiguous()
        padded_RC = gradient_RC.new_zeros(self.whole_RC.shape)
        padded_RC[: self.rows] = gradient_RC
        return padded_RC
