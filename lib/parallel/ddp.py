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
import torch.distributed as dist
from torch import Tensor, nn

from lib import validate
from lib.parallel import collectives

BUCKET_MIB = 25.0  # the default of torch's own DistributedDataParallel
VARIANTS = {
    "naive": "one all-reduce a parameter, one after the other, after the backward pass",
    "flat": "one all-reduce of all gradients after the backward pass",
    "overlap": "an asynchronous all-reduce of each gradient as soon as it is ready",
    "bucketed": "an asynchronous all-reduce of each bucket of gradients as soon as it is full",
}


class DistributedDataParallel(nn.Module):
    """Average the gradients of a module over all ranks.

    All ranks start with the weights and buffers of rank 0. Call `finish_gradient_synchronization` between the backward
    pass and the optimizer's step.

    - After that call, a parameter that had no gradient has one of zeros.
    - Layers may be frozen and released between passes, on all ranks alike; frozen ones get no gradient.
    - Gradients that travel together are views of one buffer.
    - Gradients of several passes add up, each a forward and a backward pass. Those in `no_sync` send nothing, and the
      last must be outside of it.
    - The hooks end with this wrapper, and send only after a forward pass through it.

    On two ranks an fp32 step has the bits of one process that averages the gradients of both halves of the batch. One
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
        self.most_bytes = most_bytes[variant]
        self.buckets: list[list[nn.Parameter]] = []
        self._trained: dict[nn.Parameter, torch.dtype] = {}
        self._with_hook: set[nn.Parameter] = set()
        self._ready: set[Tensor] = set()  # parameters that have their gradient
        self._pending: list[dist.Work] = []  # all-reduces of the first buckets, on their way
        self._sends_in_backward = True
        self._is_armed = False  # a forward pass went through this wrapper, and its gradients may be sent
        self._fill_buckets()

    def forward(self, *inputs, **named):
        if torch.is_grad_enabled():
            # what an earlier pass has averaged stays so, and one that failed half-way leaves nothing
            self._wait()
            self._fill_buckets()
            self._is_armed = self._sends_in_backward
        return self.module(*inputs, **named)

    @contextlib.contextmanager
    def no_sync(self) -> Iterator[None]:
        """Let passes in this block add up gradients and send none."""
        former = self._sends_in_backward
        self._sends_in_backward = False
        try:
            yield
        finally:
            self._sends_in_backward = former

    def finish_gradient_synchronization(self) -> None:
        """Average what is left, and wait until every gradient is the average."""
        while len(self._pending) < len(self.buckets):
            self._start_next()
            if self.variant == "naive":
                self._pending[-1].wait()
        self._wait()

    def _fill_buckets(self) -> None:
        """Divide the parameters that are trained, of each type by themselves.

        They change as layers are frozen, released, or rounded."""
        trained = {param: param.dtype for param in self.module.parameters() if param.requires_grad}
        if trained == self._trained:
            return
        self._trained = trained
        self.buckets = []
        for dtype in dict.fromkeys(trained.values()):
            # gradients are ready about in the reverse order of the parameters
            alike = [param for param in reversed(trained) if param.dtype == dtype]
            self.buckets += _buckets(alike, self.most_bytes)
        if self.variant in ("overlap", "bucketed"):
            # a proxy, since the garbage collector cannot look into a hook: one that held this module would keep it
            hook = functools.partial(DistributedDataParallel._on_gradient, weakref.proxy(self))
            for param in trained.keys() - self._with_hook:
                weakref.finalize(self, param.register_post_accumulate_grad_hook(hook).remove)
                self._with_hook.add(param)

    def _wait(self) -> None:
        """Wait for what is on its way, and begin anew."""
        for work in self._pending:
            work.wait()
        self._pending.clear()
        self._ready.clear()
        self._is_armed = False

    def _on_gradient(self, param: Tensor) -> None:
        """Note that a gradient is ready, and start the buckets that are full.

        Buckets start in one order on all ranks: one that is full waits for those before it."""
        if not self._is_armed:
            return
        if param in self._ready:
            raise RuntimeError("backward ran again before finish_gradient_synchronization")
        self._ready.add(param)
        while len(self._pending) < len(self.buckets) and self._ready.issuperset(self.buckets[len(self._pending)]):
            self._start_next()

    def _start_next(self) -> None:
        bucket = self.buckets[len(self._pending)]
        self._pending.append(collectives.average(_collected(bucket)))


def _buckets(params: list[nn.Parameter], most_bytes: float) -> list[list[nn.Parameter]]:
    """Divide parameters of one type into buckets of one, or of at most `most_bytes`."""
    buckets: list[list[nn.Parameter]] = []
    bucket_bytes = 0
    for param in params:
        if buckets and bucket_bytes + param.nbytes <= most_bytes:
            buckets[-1].append(param)
            bucket_bytes += param.nbytes
        else:
            buckets.append([param])
            bucket_bytes = param.nbytes
    return buckets


@torch.no_grad()
def _collected(bucket: list[nn.Parameter]) -> Tensor:
    """Return a bucket's gradients as one tensor that they view; None counts as zero."""
    for param in bucket:
        if param.grad is None:
            param.grad = torch.zeros_like(param)
    if len(bucket) == 1:
        bucket[0].grad = bucket[0].grad.contiguous()
        return bucket[0].grad
    together = torch.cat([param.grad.flatten() for param in bucket])
    parts = together.split([param.numel() for param in bucket])
    for param, part in zip(bucket, parts, strict=True):
        param.grad = part.view(param.shape)
    return together
