"""Profile the kernels of a training step."""

from dataclasses import dataclass
from typing import ClassVar

from lib import attention
from lib.cost import flops
from lib.experiments import case as measuring
from lib.experiments.case import Recording
from lib.experiments.step import Step
from lib.instruments import compilation, device, profiler

PROFILED = 3  # iterations, of which the median is told


@dataclass(frozen=True)
class Kernels(Step):
    """Run a training step as in `Step`, to be profiled."""

    experiment: ClassVar[str] = "kernels"

    def unavailable(self) -> str | None:
        if not device.on(self.device).profiled:
            return f"torch.profiler does not see kernels on {self.device}"
        return super().unavailable()

    def measure(self, record: Recording, seconds: float) -> None:
        """Check and time the step, then profile it, since a profiler slows it down."""
        if self.compiles:
            compilation.name_kernels()
        work = record.setup()
        measuring.check(record, work)
        record.metrics |= measuring.times(work, seconds)
        # a fused kernel or compiled graph has no ranges inside attention
        parts = ()
        if self.attention == "naive" and not self.compiled:
            parts = attention.PARTS
            phases = work.training.phases
            record.metrics["part_costs"] = flops.attention_part_costs(self.shape, self.precision, phases)
            # only now, since ranges take time even without a profiler
            for layer in work.training.module.layers:
                layer.attn.attend = attention.annotated
        record.metrics |= profiler.profile(work.iteration, self.device, work.before, PROFILED, parts)
