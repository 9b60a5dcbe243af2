"""Measure the memory of a training step, with or without activation checkpointing."""

from dataclasses import dataclass, field, replace
from typing import ClassVar

import torch

from lib import precision
from lib.cost import memory
from lib.experiments.case import Work
from lib.experiments.step import Step
from lib.experiments.training import MODES, Training
from lib.instruments import memory_trace, peak_memory


@dataclass(frozen=True)
class Memory(Step):
    """A step with activation checkpointing in groups of `checkpoint` layers, or without if 0."""

    experiment: ClassVar[str] = "memory"
    checkpoint: int = field(metadata={"least": 0})

    def training(self) -> Training:
        """Build the model with its layers in groups, its optimizer and a batch."""
        return Training(self, self.checkpoint)

    def formula_bytes(self) -> int:
        """Return the peak memory by `cost.memory.peak_bytes`, with the layers in groups."""
        ways = self.precision, self.attention, self.optimizer, self.mode
        return memory.peak_bytes(self.shape, *ways, self.device, self.checkpoint)

    def traced(self):
        """Return the exact peak by kind and module, as `memory_trace` finds it without allocating.

        It takes seconds. A sweep plans hundreds of cases, so `predicted_bytes` decides in microseconds if one fits.
        Returns None where operations cannot be followed: in a compiled graph, or a backward pass that recomputes."""
        if self.compiles or (self.checkpoint and "backward" in MODES[self.mode]):
            return None
        with precision.strict():
            return memory_trace.predict(self.training)

    def setup(self) -> Work:
        """Build the step and add what theory says of its memory to the facts, in MiB.

        The facts are the scores of a layer and a tensor of the residual stream in single precision, the observed tensor
        after the first layer, and, if `traced` finds them, the peaks by phase with their `breakdown`."""
        traced, training = self.traced(), self.training()
        with torch.no_grad(), training.autocast:
            stream_BTC = training.module.layers[0](training.module.token_embeddings(training.inputs_BT))
        sizes = {
            "scores": 4 * self.shape.scores,
            "residual": 4 * self.shape.tokens * self.shape.d_model,
            "residual_observed": stream_BTC.nbytes,
        }
        facts = {f"{name}_mib": [size / peak_memory.MIB] for name, size in sizes.items()}
        if traced:
            facts |= {f"predicted_{name}": value for name, value in traced.peaks.items()}
            facts["breakdown"] = traced.table()
        work = self.work(training)
        return replace(work, facts=work.facts | facts)
