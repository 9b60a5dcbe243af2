"""Average the gradients of equal models in four ways (Li et al. 2020).

>>> replica = DistributedDataParallel(network, "bucketed", bucket_mib=10)  # doctest: +SKIP
>>> loss(replica(tokens), targets).backward()  # doctest: +SKIP
>>> replica.finish_gradient_synchronization()  # doctest: +SKIP
>>> optimizer.step()  # doctest: +SKIP
"""

import contextlib
import functools
import math
import weakref
from collections.abc import Iterator

import torch
from torch import Tensor, nn

from lib import validate
from lib.parallel import collectives

BUCKET_MIB = 25.0  # of torch's own DistributedDataParallel
VARIANTS = {
    "naive": "one all-reduce a parameter, one after the other, after the backward pass",
    "flat": "one all-reduce of all gradients after the backward pass",
    "overlap": "an asynchronous all-reduce of each gradient as soon as it is ready",
    "bucketed": "an asynchronous all-reduce of each bucket of gradients as soon as it is full",
}


class DistributedDataParallel(nn.Module):
    """Average the gradients of a module over all ranks.

    Its parameters are of one type. All ranks start with the weights and buffers of rank 0. Call
    `finish_gradient_synchronization` between the backward pass and the optimizer's step. A parameter without a gradient
    has one of zeros then. Gradients of several parameters that travel together are views of one buffer.

    On two ranks an fp32 step has the bits of one process that adds up the gradients of both halves of the batch. One
    backward pass over the whole batch adds up in another order inside its products, and agrees to rounding.
    Raises ValueError for an unknown variant."""

    def __init__(self, module: nn.Module, variant: str = "bucketed", bucket_mib: float = BUCKET_MIB):
        super().__init__()
        validate.choice("variant", variant, VARIANTS)
        collectives.from_rank_0(module)
        self.module = module
        self.variant = variant
        # the largest bucket; 0 leaves every gradient by itself
        most_bytes = {"naive": 0.0, "overlap": 0.0, "flat": math.inf, "bucketed": bucket_mib * 2**20}
        # gradients are ready about in the reverse order of the parameters
        params = [param for param in module.parameters() if param.requires_grad]
        self.buckets = _buckets(params[::-1], most_bytes[variant])
        self._pending: list[collectives.Pending] = []
        self._synchronizing = True
        if variant in ("overlap", "bucketed"):
            # hooks hold the proxy, since Python's garbage collector cannot follow a hook: one that held this module, or
            # a bucket with the parameter in it, would keep them for ever
            weak_self = weakref.proxy(self)
            for place, bucket in enumerate(self.buckets):
                for param in bucket.params:
                    hook = functools.partial(DistributedDataParallel._on_gradient, weak_self, place)
                    param.register_post_accumulate_grad_hook(hook)

    def forward(self, *inputs, **named):
        return self.module(*inputs, **named)

    @contextlib.contextmanager
    def no_sync(self) -> Iterator[None]:
        """Only add up gradients on each rank in the backward passes inside the block."""
        before = self._synchronizing
        self._synchronizing = False
        try:
            yield
        finally:
            self._synchronizing = before

    def finish_gradient_synchronization(self) -> None:
        """Average what is left, and wait until every gradient is the average."""
        while len(self._pending) < len(self.buckets):
            self._start_next()
            if self.variant == "naive":
                self._pending[-1].wait()
        if self.variant != "naive":
            for pending in self._pending:
                pending.wait()
        self._pending.clear()
        for bucket in self.buckets:
            bucket.ready.clear()

    def _on_gradient(self, place: int, param: Tensor) -> None:
        """Note that a gradient is ready, and start the buckets that are full.

        Buckets start in one order on all ranks: one that is full waits for those before it."""
        if not self._synchronizing:
            return
        bucket = self.buckets[place]
        if param in bucket.ready:
            raise RuntimeError("backward ran again before finish_gradient_synchronization; run the others in no_sync()")
        bucket.ready.add(param)
        while len(self._pending) < len(self.buckets) and self.buckets[len(self._pending)].is_full():
            self._start_next()

    def _start_next(self) -> None:
        bucket = self.buckets[len(self._pending)]
        self._pending.append(collectives.average(bucket.collect()))


class _Bucket:
    """Hold parameters whose gradients travel together, as views of one buffer."""

    def __init__(self, params: list[nn.Parameter]):
        self.params = params
        self.ready: set[Tensor] = set()
        self.buffer: Tensor | None = None  # of the gradients of several parameters, from the first step on
        self.views: list[Tensor] = []

    def is_full(self) -> bool:
        """Return True once every gradient is there."""
        return len(self.ready) == len(self.params)

    @torch.no_grad()
    def collect(self) -> Tensor:
        """Return the gradients as one tensor that they view; None counts as zero."""
        if len(self.params) == 1:
            param = self.params[0]
            if param.grad is None:
                param.grad = torch.zeros_like(param)
            param.grad = param.grad.contiguous()
            return param.grad
        if self.buffer is None:
            sizes = [param.numel() for param in self.params]
            self.buffer = self.params[0].new_empty(sum(sizes))
            parts = self.buffer.split(sizes)
            self.views = [part.view(param.shape) for param, part in zip(self.params, parts, strict=True)]
        for param, view in zip(self.params, self.views, strict=True):
            if param.grad is None:
                view.zero_()
            elif param.grad is not view:
                view.copy_(param.grad)
            param.grad = view
        return self.buffer


def _buckets(params: list[nn.Parameter], most_bytes: float) -> list[_Bucket]:
    """Divide parameters into buckets of one, or of at most `most_bytes`."""
    buckets: list[_Bucket] = []
    bucket_bytes = 0
    for param in params:
        if buckets and bucket_bytes + param.nbytes <= most_bytes:
            buckets[-1].params.append(param)
            bucket_bytes += param.nbytes
        else:
            buckets.append(_Bucket([param]))
            bucket_bytes = param.nbytes
    return buckets
