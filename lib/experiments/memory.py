"""The memory of a training step, or of its first phases, with activation checkpointing or without."""

from dataclasses import dataclass, field, replace
from typing import ClassVar

import torch

from lib import precision
from lib.cost import memory
from lib.experiments.measure import Work
from lib.experiments.step import Step
from lib.experiments.training import MODES, Training
from lib.instruments import peak_memory


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
        return memory.peak_bytes(self.shape, *ways, self.device, self.checkpoint)

    def traced(self):
        """The peak memory by kind and module, as `memory_trace` finds it without allocating, exactly.

        It takes seconds a case, and `predicted_bytes` microseconds; a sweep asks for hundreds of cases before it
        starts the first, which is why the formula decides whether one fits, and this explains where the bytes go. None
        where something compiles, since operations inside a graph cannot be followed, nor of a backward pass that
        computes layers again, since without contents that second computation is not followed."""
        if self.compiles or (self.checkpoint and "backward" in MODES[self.mode]):
            return None
        from lib.instruments import memory_trace  # brings torch.distributed along, which no other experiment needs

        with precision.strict():
            return memory_trace.predict(self.training)

    def setup(self) -> Work:
        """The same with what theory says of the memory, in MiB: the prediction by phase and its `breakdown`, where
        there is one; and in single precision the scores of a layer, and a tensor of the
        residual stream, beside the one that is observed after the first layer."""
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
