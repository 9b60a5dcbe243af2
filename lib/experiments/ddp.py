"""Measure a training step of several ranks that average their gradients, beside PyTorch's."""

import contextlib
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from typing import ClassVar

import torch
from torch import Tensor, nn

from lib import precision
from lib.experiments.case import Work
from lib.experiments.steps_on_ranks import StepOnRanks, TrainingOnRanks
from lib.parallel import collectives, ddp, timeline
from lib.timing import Mark
from lib.validate import one_of

PEER = "torch"


@dataclass(frozen=True)
class Ddp(StepOnRanks):
    """A training step of ranks that each have the whole model.

    They synchronize gradients as the `variant` does. `bucketed` needs a `bucket_mib`, and 0 stands for none; `torch`
    takes its own default for 0."""

    experiment: ClassVar[str] = "ddp"
    variants: ClassVar[dict[str, str]] = {name: name for name in ddp.VARIANTS} | {PEER: "bucketed"}
    bucket_mib: int = field(metadata={"least": 0})
    precision: str = one_of(precision.NAMES)

    def __post_init__(self):
        super().__post_init__()
        if self.variant != PEER and (self.variant == "bucketed") != bool(self.bucket_mib):
            expected = "1 or more" if self.variant == "bucketed" else f"0 for {self.variant}"
            raise ValueError(f"bucket_mib: got {self.bucket_mib}, expected {expected}")

    def training(self) -> TrainingOnRanks:
        """Build the model, with gradients synchronized by the variant."""
        training = TrainingOnRanks(self)
        if self.variant == PEER:
            training.network = _torchs(training.module, self.bucket_mib)
        else:
            training.replicate(self.variant, self.bucket_mib or ddp.BUCKET_MIB)
        return training

    def work(self, training: TrainingOnRanks) -> Work:
        """Return the measurable work, with a timeline of the third step, and the same bytes `alone`."""
        work, first = super().work(training), {}

        @contextlib.contextmanager
        def around_first() -> Iterator[dict]:
            noted = {}
            yield noted
            first.update(training.result())
            noted["timeline"] = timeline.followed(training.iteration, training.before)

        def alone(mark: Mark) -> None:
            for message_N in _messages(training.module):
                collectives.all_reduce(message_N, average=True)
            mark("all_reduce")

        return replace(work, result=lambda: first, around_first=around_first, beside={"alone": alone})


def _torchs(module: nn.Module, bucket_mib: int) -> nn.Module:
    """Wrap a module in PyTorch's own class, as fast as its options make it."""
    return nn.parallel.DistributedDataParallel(
        module, bucket_cap_mb=bucket_mib or None, gradient_as_bucket_view=True, broadcast_buffers=False
    )


def _messages(module: nn.Module) -> list[Tensor]:
    """Return the memory of a module's gradients: a flat tensor of each bucket, or of each gradient."""
    storages = {}
    for param in module.parameters():
        storages.setdefault(param.grad.untyped_storage()._cdata, param.grad)
    return [
        torch.empty(0, dtype=gradient.dtype, device=gradient.device).set_(gradient.untyped_storage())
        for gradient in storages.values()
    ]
