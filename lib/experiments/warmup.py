"""Record the first training steps of a process, before anything is warm."""

from dataclasses import dataclass, field
from typing import ClassVar

from lib import timing
from lib.experiments import case as measuring
from lib.experiments.case import Recording
from lib.experiments.step import Step

SAMPLES = 10  # the assignment asks for the mean and the deviation of ten steps


@dataclass(frozen=True)
class Warmup(Step):
    """Record the first `first_steps` iterations of a training step one by one.

    The assignment's ten steps after 0, 1 and 5 warm-ups are slices of the same series."""

    experiment: ClassVar[str] = "warmup"
    probed_before: ClassVar[bool] = False  # the probe would warm up the process
    first_steps: int = field(default=30, metadata={"least": 5 + SAMPLES, "most": 1000})

    def measure(self, record: Recording, seconds: float) -> None:
        """Time the first iterations, then check what the first one gave.

        The reference would warm up the process, so it is computed last, by the case built again. `after_0_ms`,
        `after_1_ms` and `after_5_ms` are the ten totals after that many warm-ups; `earlier_cases` is 0 in a process
        that has only begun."""
        work = record.setup()
        record.metrics["earlier_cases"] = record.earlier_cases
        first = timing.exactly(work.iteration, work.clock, 1, work.before).metrics()
        results = {name: tensor.detach().to("cpu", copy=True) for name, tensor in work.result().items()}
        later = timing.exactly(work.iteration, work.clock, self.first_steps - 1, work.before).metrics()
        for name, values in later.items():
            if name != "warmup_ms":
                record.metrics[f"first_{name}"] = first[name] + values
        totals_ms = record.metrics["first_total_ms"]
        for warmups in (0, 1, 5):
            record.metrics[f"after_{warmups}_ms"] = totals_ms[warmups : warmups + SAMPLES]
        # two builds might not fit
        record.free()
        rebuilt = record.setup()
        record.part = "reference"
        record.metrics |= measuring.errors(results, rebuilt.expected(), rebuilt.tolerance)
