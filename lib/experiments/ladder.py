"""Measure training steps from plain to fastest, with one switch more at each rung."""

from dataclasses import asdict, dataclass, replace
from typing import ClassVar

import torch

from lib import fast, timing, validate
from lib.experiments import measure
from lib.experiments.measure import Recording
from lib.experiments.step import Step
from lib.experiments.training import Training
from lib.instruments.device import on
from lib.records import baselines
from lib.stats import intervals

COMPILE_MODES = ("default", "reduce-overhead", "max-autotune")


@dataclass(frozen=True)
class Ladder(Step):
    """A step with the switches of `fast.accelerate`, and a mode of torch.compile.

    Raises ValueError for switches that exclude each other."""

    experiment: ClassVar[str] = "ladder"
    projections: bool
    cast_once: bool
    compile_mode: str

    def __post_init__(self):
        super().__post_init__()
        validate.choice("compile_mode", self.compile_mode, COMPILE_MODES)
        if self.compile_mode != "default" and not self.compiled:
            raise ValueError(f"compile_mode: got {self.compile_mode}, expected default for an eager step")
        if self.cast_once and (self.precision not in ("bf16", "fp16") or self.optimizer != "fused"):
            raise ValueError("cast_once: got True, expected False without bf16 or fp16 and the fused optimizer")

    @property
    def compiles(self) -> bool:
        """Return True if any part goes through torch.compile."""
        return super().compiles or self.cast_once

    @property
    def graphs(self) -> bool:
        """Return True if CUDA graphs replay the step."""
        return self.compile_mode != "default"

    def unavailable(self) -> str | None:
        """Return why this machine cannot run the case, or None."""
        if self.compile_mode != "default" and self.device != "cuda":
            return f"torch.compile's {self.compile_mode} is for CUDA"
        return super().unavailable()

    def training(self) -> Training:
        """Build the accelerated model, its optimizer and a batch."""
        return Training(
            self, switches=[name for name in fast.SWITCHES if getattr(self, name)], compile_mode=self.compile_mode
        )


def losses(case: Ladder, steps: int) -> dict[str, list[float]]:
    """Train the case and the plain step from equal weights on one batch.

    Returns the loss of each step in nats, `loss_nats` and `plain_loss_nats`; nothing for 0 steps."""
    both = {"loss_nats": case, "plain_loss_nats": _plain(case)}
    return {name: _losses(each, steps) for name, each in both.items()} if steps else {}


def _losses(case: Ladder, steps: int) -> list[float]:
    torch.manual_seed(0)
    training, found = case.training(), []
    for _ in range(steps):
        training.before()
        training.iteration(lambda phase: None)
        found.append(training.last["loss"].item())
    return found


def _plain(case: Ladder) -> Ladder:
    """Return the case with all its switches off."""
    return replace(case, **baselines.switched(case.experiment, asdict(case)))


def search(record: Recording, most: int, seconds: float) -> dict[str, dict[str, list]]:
    """Find the order of the case's switches in which each is the one that brings the most next.

    Starts from the plain step and ends where no switch is faster. Each trial is at most `most` interleaved pairs, for
    about `seconds`, with the step before it. Returns the table `search`: `rung`, counted from 1; `switch`, a field of
    the case; the `ratio` of times with its `low` and `high` in this process; and `taken`."""
    now, found = _plain(record.case), []
    left = baselines.switched(now.experiment, asdict(record.case)).keys()
    for rung in range(1, len(left) + 1):
        trials = {name: case for name in left if (case := _with(now, name, getattr(record.case, name)))}
        ratios = {name: _ratio(record, case, now, most, seconds) for name, case in trials.items()}
        best = min(ratios, key=lambda name: ratios[name][0], default=None)
        taken = best is not None and ratios[best][0] < 1
        found += [(rung, name, *ratio, "yes" if taken and name == best else "no") for name, ratio in ratios.items()]
        if not taken:
            break
        now, left = trials[best], left - {best}
    columns = ("rung", "switch", "ratio", "low", "high", "taken")
    return {"search": {name: [row[i] for row in found] for i, name in enumerate(columns)}}


def _with(case: Ladder, name: str, value) -> Ladder | None:
    """Return the case with one more switch on, or None if that excludes another or cannot run here."""
    try:
        found = replace(case, **{name: value})
    except ValueError:
        return None
    return None if found.unavailable() else found


def _ratio(record: Recording, case: Ladder, other: Ladder, most: int, seconds: float) -> tuple[float, float, float]:
    """Return the ratio of two cases' times in interleaved pairs, with its interval in this process."""
    works = [record.build(each) for each in (case, other)]
    measure.errors(works[0])  # right before fast
    before = works[0].before, works[1].before
    iterations = works[0].iteration, works[1].iteration
    here = on(case.device)
    pairs = timing.compare(*iterations, here.clock(), most, seconds, before=before, least_s=here.least_s[0])
    del record.built[-len(works) :]
    for work in works:
        vars(work).clear()
    return intervals.log_t([a / b for a, b in zip(pairs.first, pairs.second, strict=True)])
