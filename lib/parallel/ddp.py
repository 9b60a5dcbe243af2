"""Average the gradients of equal models on several ranks, in four ways (Li et al. 2020).

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
from dataclasses import dataclass, field

import torch
from torch import Tensor, nn

from lib import validate
from lib.parallel import transfers
from lib.parallel.accounting import BUCKET_BYTES

MIB = 2**20
BUCKET_MIB = BUCKET_BYTES / MIB
VARIANTS = {
    "naive": "one all-reduce a parameter, one after the other, after the backward pass",
    "flat": "one all-reduce of all gradients after the backward pass",
    "overlap": "an asynchronous all-reduce of each gradient as soon as it is ready",
    "bucketed": "an asynchronous all-reduce of each bucket of gradients as soon as it is full",
}
_DURING_BACKWARD = {"overlap", "bucketed"}


class DistributedDataParallel(nn.Module):
    """Average the gradients of a module over all ranks.

    All start with the weights and buffers of rank 0. Call `finish_gradient_synchronization` between the backward pass
    and the optimizer's step. A parameter without a gradient on some ranks counts as zero there; one without on every
    rank keeps none. Collectives run in one order on all ranks, that of the parameters reversed: a parameter without a
    gradient holds back those before it until the end. A bucket's gradients are views of its buffer.
    Raises ValueError for an unknown variant, or a bucket that is not positive."""

    def __init__(self, module: nn.Module, variant: str = "bucketed", bucket_mib: float = BUCKET_MIB):
        super().__init__()
        validate.choice("variant", variant, VARIANTS)
        if not bucket_mib > 0:
            raise ValueError(f"bucket_mib: got {bucket_mib}, expected a positive number")
        transfers.from_rank_0(module)
        self.module, self.variant = module, variant
        params = [param for param in module.parameters() if param.requires_grad]
        most_bytes = {"flat": math.inf, "bucketed": bucket_mib * MIB}.get(variant, 0)
        self.buckets = list(_buckets(params, most_bytes))
        self._params = [param for bucket in self.buckets for param in bucket.params]
        self._used = torch.ones(len(params), device=params[0].device if params else "cpu")
        self._synchronizing = True
        self._start_anew()
        if variant in _DURING_BACKWARD:
            # a hook that held this module would be a cycle that no collector sees
            ready = functools.partial(type(self)._ready, weakref.proxy(self))
            for place, bucket in enumerate(self.buckets):
                for param in bucket.params:
                    param.register_post_accumulate_grad_hook(functools.partial(ready, place))

    def forward(self, *inputs, **named):
        return self.module(*inputs, **named)

    @contextlib.contextmanager
    def no_sync(self) -> Iterator[None]:
        """Only add up gradients on each rank in the backward passes inside the block."""
        before, self._synchronizing = self._synchronizing, False
        try:
            yield
        finally:
            self._synchronizing = before

    def finish_gradient_synchronization(self) -> None:
        """Wait until every gradient is the average over the ranks; issue what the backward pass could not."""
        absent = [index for index, param in enumerate(self._params) if param.grad is None]
        while len(self._pending) < len(self.buckets):
            self._issue()
            if self.variant == "naive":
                self._pending[-1].wait()
        # one more collective, of one number a parameter: only the ranks together know which of them nobody used
        if absent:
            self._used[absent] = 0
        used = transfers.average(self._used)
        for pending in self._pending if self.variant != "naive" else []:
            pending.wait()
        used.wait()
        if absent:
            for index, used_by in zip(absent, self._used[absent].tolist(), strict=True):
                if not used_by:
                    self._params[index].grad = None
        self._start_anew()

    def _start_anew(self) -> None:
        self._pending = []
        self._used.fill_(1)
        for bucket in self.buckets:
            bucket.ready.clear()

    def _ready(self, place: int, param: Tensor) -> None:
        """Note that a bucket's gradient is ready, and issue the buckets that are full, in their order."""
        if not self._synchronizing:
            return
        bucket = self.buckets[place]
        if param in bucket.ready:
            raise RuntimeError("backward ran again before finish_gradient_synchronization; run the others in no_sync()")
        bucket.ready.add(param)
        while len(self._pending) < len(self.buckets) and self.buckets[len(self._pending)].full:
            self._issue()

    def _issue(self) -> None:
        self._pending.append(transfers.average(self.buckets[len(self._pending)].filled()))


@dataclass
class _Bucket:
    """Hold parameters whose gradients travel together, those of several as views of one buffer."""

    params: list[nn.Parameter]
    ready: set[Tensor] = field(default_factory=set)

    @property
    def full(self) -> bool:
        return len(self.ready) == len(self.params)

    @functools.cached_property
    def buffer(self) -> Tensor:
        numel = sum(param.numel() for param in self.params)
        return torch.empty(numel, dtype=_dtype(self.params[0]), device=self.params[0].device)

    @functools.cached_property
    def views(self) -> list[Tensor]:
        parts = self.buffer.split([param.numel() for param in self.params])
        return [part.view(param.shape) for part, param in zip(parts, self.params, strict=True)]

    @torch.no_grad()
    def filled(self) -> Tensor:
        """Return the gradients as one tensor; what is written to it reaches them. None counts as zero."""
        if len(self.params) == 1:
            param = self.params[0]
            param.grad = torch.zeros_like(param, dtype=_dtype(param)) if param.grad is None else param.grad.contiguous()
            return param.grad
        for param, view in zip(self.params, self.views, strict=True):
            if param.grad is None:
                view.zero_()
            elif param.grad is not view:
                view.copy_(param.grad)
            param.grad = view
        return self.buffer


def _dtype(param: Tensor) -> torch.dtype:
    return param.grad_dtype or param.dtype


def _buckets(params: list[nn.Parameter], most_bytes: float) -> Iterator[_Bucket]:
    """Yield buckets of gradients of one type, in the reverse order of the parameters.

    A bucket has at most `most_bytes`, or one parameter that alone has more."""
    bucket, size = [], 0
    for param in reversed(params):
        param_bytes = param.numel() * _dtype(param).itemsize
        if bucket and (size + param_bytes > most_bytes or _dtype(param) != _dtype(bucket[0])):
            yield _Bucket(bucket)
            bucket, size = [], 0
        bucket.append(param)
        size += param_bytes
    if bucket:
        yield _Bucket(bucket)
