"""Measure a training step's memory, with or without activation checkpointing."""

import functools
from dataclasses import dataclass, field
from typing import ClassVar

from lib.cost import memory
from lib.experiments import case as measuring
from lib.experiments.case import Recording, Work
from lib.experiments.step import Step
from lib.experiments.training import Training
from lib.instruments import memory_trace, peak_memory

LARGEST = 16  # allocations in a record


@dataclass(frozen=True)
class Memory(Step):
    """Run a step with an activation checkpoint every `checkpoint` layers, none if 0."""

    experiment: ClassVar[str] = "memory"
    checkpoint: int = field(default=0, metadata={"least": 0})

    def work(self, training: Training) -> Work:
        """Return the step with more facts from theory, in MiB.

        - `residual_mib`: a tensor of the residual stream, in fp32.
        - `scores_mib`: the scores of one layer, in fp32.
        - `kept_formula_mib`: what the forward pass keeps without checkpointing.

        The first iteration of an eager case lists what it saves for the backward pass."""
        work = super().work(training)
        kept_bytes = memory.activation_bytes(self.shape, self.precision, self.attention, self.device)
        residual_bytes = 4 * self.shape.tokens * self.shape.d_model
        sizes = {"residual": residual_bytes, "scores": 4 * self.shape.num_scores, "kept_formula": kept_bytes}
        work.facts |= peak_memory.in_mib(sizes)
        if not self.compiles:
            work.around_first = functools.partial(memory_trace.saved_for_backward, training.module)
        return work

    def measure(self, record: Recording, seconds: float) -> None:
        """Check, follow the memory of one iteration, and find what is alive at its peak.

        A case with checkpointing and a backward pass also runs in pairs with the same case without checkpointing.
        Others are not timed. The memory of a compiled case cannot be followed: it has the peak of each phase on a GPU,
        and nothing on a CPU."""
        work = record.setup()
        measuring.check(record, work)
        # operations inside a graph cannot be followed
        if self.compiles:
            record.metrics |= measuring.memory(work)
        else:
            record.metrics |= memory_trace.trace(work.training, self.device, LARGEST, record.level_bytes)
        # without a backward pass nothing is computed again
        if self.checkpoint and "backward" in work.training.phases:
            measuring.pairs(record, work, seconds)
