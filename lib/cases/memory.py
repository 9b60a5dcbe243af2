"""The memory of a training step, or of its first phases, with activation checkpointing or without."""

from dataclasses import dataclass, field
from typing import ClassVar

from lib import footprint
from lib.cases.step import Step
from lib.training import Training


@dataclass(frozen=True)
class Memory(Step):
    """A step whose layers run in groups of `checkpoint`, of which only the input is kept, or plainly with 0."""

    experiment: ClassVar[str] = "memory"
    checkpoint: int = field(metadata={"least": 0})

    def training(self) -> Training:
        """The same, in groups of layers."""
        return Training(self, self.checkpoint)

    def formula_bytes(self) -> int:
        """Peak memory by the closed formula, with the layers in their groups."""
        ways = self.precision, self.attention, self.optimizer, self.mode
        return footprint.peak_bytes(self.shape, *ways, self.device, self.checkpoint)
