"""Hold a rank's part of a parameter, gather all of it and average its gradient, for `fsdp`."""

import functools
import weakref

import torch
import torch.distributed as dist
from torch import Tensor, nn

from lib.parallel import collectives


class Shard:
    """Hold this rank's rows of a parameter, and all of them while they are gathered.

    `param.data` is one or the other. Each rank holds a block of rows; the last ones may have fewer, or none. A vector
    is one block, which all ranks hold."""

    def __init__(self, param: nn.Parameter, dtype: torch.dtype):
        self.param = param
        self.shape = param.shape
        self.is_divided = param.dim() > 1
        values = param.data
        if param.dim() == 0:
            values = values.view(1)
        self.rows = len(values)
        blocks = 1
        rank = 0
        if self.is_divided:
            blocks = dist.get_world_size()
            rank = dist.get_rank()
        self.block = -(-self.rows // blocks)
        self.start = rank * self.block
        # a copy, so that the memory of the whole parameter can go
        own = values[self.start : self.start + self.block].clone(memory_format=torch.contiguous_format)
        self.own_rows = len(own)
        self.local = own.view(self.shape if param.dim() == 0 else own.shape)
        # its memory goes and comes back at the same tensor: views of it that the graph has saved stay good
        self.whole = values.new_empty((blocks * self.block, *self.shape[1:]), dtype=dtype)
        self.whole_param = self._without_padding(self.whole)
        self.whole_bytes = self.whole.untyped_storage().nbytes()
        self.whole.untyped_storage().resize_(0)
        param.data = self.local
        self.gathering: collectives.Pending | None = None
        self.gradient: Tensor | None = None  # of the whole parameter, on this rank
        self.reducing: tuple[collectives.Pending, Tensor] | None = None
        self.average: Tensor | None = None  # of the ranks' gradients, of this rank's rows
        if param.requires_grad:
            # the collector does not see hooks of parameters: one that held this shard would keep it for ever
            param.register_post_accumulate_grad_hook(functools.partial(Shard._collect, weakref.proxy(self)))

    def gather(self) -> None:
        """Begin to gather the parameter, unless it is there."""
        storage = self.whole.untyped_storage()
        if storage.nbytes() == 0:
            storage.resize_(self.whole_bytes)
            self.gathering = self._gather_into(self.whole)

    def show_whole(self) -> None:
        """Let the parameter be the whole one, once it is gathered; its memory may be missing, where nobody reads it."""
        if self.gathering is not None:
            self.gathering.wait()
            self.gathering = None
        self.param.data = self.whole_param

    def free(self) -> None:
        """Let the parameter be this rank's rows."""
        if self.gathering is not None:
            self.gathering.wait()
            self.gathering = None
        self.param.data = self.local
        self.whole.untyped_storage().resize_(0)

    def gathered(self) -> Tensor:
        """Return the whole parameter in its own type."""
        whole = torch.empty_like(self.whole, dtype=self.local.dtype)
        self._gather_into(whole).wait()
        return self._without_padding(whole)

    def set_gradient_aside(self) -> None:
        """Keep the gradient of earlier backward passes, to which this one adds."""
        self.average = self.param.grad
        self.param.grad = None

    def show_gradient(self) -> None:
        """Give the parameter, now this rank's rows, their gradient."""
        self.param.grad = self.average
        self.average = None

    def reduce(self) -> None:
        """Begin to average the gradient; a parameter without one counts as zero."""
        if not self.param.requires_grad:
            return
        if self.gradient is None:
            self.gradient = torch.zeros(self.shape, dtype=self.whole.dtype, device=self.whole.device)
        if self.is_divided:
            part = torch.empty((self.block, *self.shape[1:]), dtype=self.local.dtype, device=self.local.device)
            pending = collectives.scatter(part, self._with_padding(self.gradient))
            part = part[: self.own_rows]
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
        """Take the gradient of the whole parameter from where that of this rank's rows will be."""
        if self.gradient is None:
            self.gradient = param.grad
        else:
            self.gradient += param.grad
        param.grad = None

    def _gather_into(self, whole: Tensor) -> collectives.Pending:
        """Write this rank's rows into `whole`, and begin to receive the others'."""
        whole[self.start : self.start + self.own_rows].view(self.local.shape).copy_(self.local)
        if self.is_divided:
            return collectives.gather(whole)
        return collectives.Pending([])

    def _without_padding(self, whole: Tensor) -> Tensor:
        return whole[: self.rows].view(self.shape)

    def _with_padding(self, gradient: Tensor) -> Tensor:
        if self.rows == len(self.whole):
            return gradient.contiguous()
        padded = gradient.new_zeros(self.whole.shape)
        padded[: self.rows] = gradient
        return padded
