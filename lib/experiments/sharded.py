"""Measure a training step of several ranks that share an optimizer's states, and its memory."""

from dataclasses import dataclass, replace
from typing import ClassVar

from torch.distributed.optim import ZeroRedundancyOptimizer

from lib import adam
from lib.experiments.measure import Work
from lib.experiments.steps_on_ranks import StepOnRanks, TrainingOnRanks, memory_of_first
from lib.parallel.sharded import ShardedOptimizer

OPTIMIZERS = {"sharded": ShardedOptimizer, "torch": ZeroRedundancyOptimizer}


@dataclass(frozen=True)
class Sharded(StepOnRanks):
    """A training step in fp32 of ranks that each have the whole model and average gradients in buckets.

    In variant `plain` each also has all of the optimizer's states, in the others a share of them: ours, and `torch`,
    which is ZeroRedundancyOptimizer."""

    experiment: ClassVar[str] = "sharded"
    precision: ClassVar[str] = "fp32"
    variants: ClassVar[dict[str, str]] = {"plain": "bucketed", "sharded": "sharded", "torch": "sharded"}

    def training(self) -> TrainingOnRanks:
        """Build the model, with the optimizer of the variant."""
        training = TrainingOnRanks(self.own_step())
        training.replicate()
        if self.variant in OPTIMIZERS:
            params = training.module.parameters()
            training.optimizer = OPTIMIZERS[self.variant](params, adam.AdamW, variant="fused")
        return training

    def work(self, training: TrainingOnRanks) -> Work:
        """Return the measurable work, which tells the memory of its first step."""
        return replace(super().work(training), around_first=lambda: memory_of_first(training))
