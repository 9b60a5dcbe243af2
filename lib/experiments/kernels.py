"""Profile the kernels of a training step."""

import functools
from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import ClassVar

import torch

from lib import attention, paths
from lib.cost import flops
from lib.experiments.case import Work
from lib.experiments.step import Step
from lib.experiments.training import Training
from lib.instruments import compilation, device, environment, operators, profiler
from lib.records import results


@dataclass(frozen=True)
class Kernels(Step):
    """A training step as in `Step`, to be profiled."""

    experiment: ClassVar[str] = "kernels"

    @property
    def parts(self) -> tuple[str, ...]:
        """Return the ranges inside attention; a fused kernel or compiled graph has none."""
        return attention.PARTS if self.attention == "naive" and not self.compiled else ()

    def unavailable(self) -> str | None:
        """Return why this machine cannot run the case, or None."""
        unseen = None if device.on(self.device).profiled else f"torch.profiler does not see kernels on {self.device}"
        return unseen or super().unavailable()

    def annotate(
        self, training: Training, part: Callable[[str], AbstractContextManager] = torch.profiler.record_function
    ) -> None:
        """Put a range around each part of attention; ranges take time even unprofiled."""
        if self.parts:
            for layer in training.module.layers:
                layer.attn.attend = functools.partial(attention.annotated, part=part)

    def setup(self) -> Work:
        """Build the model, its optimizer and a batch of random tokens."""
        if self.compiles:
            compilation.name_kernels()
        training = Training(self)
        work = self.work(training)
        work.annotate = lambda: self.annotate(training)
        if self.parts:
            backward = "backward" in training.phases
            work.facts["part_costs"] = flops.attention_part_costs(self.shape, self.precision, backward)
        return work

    def account(self, work: Work) -> dict:
        """Return what the operators of an iteration do (see `operators.metrics`); a compiled graph hides them."""
        return {} if self.compiles else operators.metrics(work.iteration, self.device, work.before)

    def profile(self, work: Work, count: int, keep: Path | None = None) -> dict:
        """Return the metrics of `profiler.profile` over `count` iterations; the ranges remain."""
        work.annotate()
        return profiler.profile(work.iteration, self.device, work.before, count, self.parts, keep)

    def trace_file(self, round: int) -> Path:
        """Return the path of the case's trace, beside the executed notebooks."""
        name = f"{results.name(asdict(self))}.r{round}.trace.json.gz"
        return paths.runs() / environment.machine(self.device) / name
