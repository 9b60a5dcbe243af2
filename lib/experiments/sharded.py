"""Measure a training step of several ranks that share an optimizer's states, and its memory."""

from dataclasses import dataclass
from typing import ClassVar

from lib import adam
from lib.experiments.steps_on_ranks import StepOnRanks, TrainingOnRanks
from lib.parallel.sharded import ShardedOptimizer


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
        training = TrainingOnRanks(self)
        training.replicate()
        if self.variant != "plain":
            sharded = ShardedOptimizer if self.variant == "sharded" else _torchs()
            training.optimizer = sharded(training.module.parameters(), adam.AdamW, variant="fused")
        return training


def _torchs() -> type:
    from torch.distributed.optim import ZeroRedundancyOptimizer  # takes two seconds, which no other case needs

    return ZeroRedundancyOptimizer
