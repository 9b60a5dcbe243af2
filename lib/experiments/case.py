"""Define what all cases have, and what a case that is built gives to be measured."""

import contextlib
from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from typing import ClassVar

import torch

from lib import timing, validate
from lib.cost import flops
from lib.instruments import device, environment
from lib.timing import Iteration


@dataclass
class Work:
    """Hold a case that is built and ready to measure; call `expected` before `iteration`."""

    device: str
    iteration: Iteration  # marks its phases
    # the reference's tensors, on the CPU, or functions of the result
    expected: Callable[[], dict[str, torch.Tensor | Callable]]
    result: Callable[[], dict[str, torch.Tensor]]  # the tensors that the last iteration produced
    tolerance: float  # the largest relative error allowed
    facts: dict[str, float | list[float]]  # numbers from theory for the record
    compiled: bool = False  # the first iteration compiles
    graphs: bool = False  # CUDA graphs replay it, whose memory the allocator counts as reserved alone
    before: Callable[[], None] = timing.nothing  # runs before each iteration, outside the timed region
    repeats: bool | None = None  # may follow itself without `before` (see `timing.measure`)
    around_first: Callable[[], AbstractContextManager[dict]] = lambda: contextlib.nullcontext({})  # fills metrics
    annotate: Callable[[], None] = lambda: None  # adds ranges to the iteration, for a profiler
    beside: dict[str, Iteration] = field(default_factory=dict)  # iterations of one phase to time as `<name>_ms`
    clock: object = None  # the device's own, or one of several ranks

    def __post_init__(self):
        self.clock = self.clock or device.on(self.device).clock()
        self.repeats = self.before is timing.nothing if self.repeats is None else self.repeats


class Case:
    """One point of an experiment, whose fields are the notebook's parameters and the sweep's axes.

    Subclasses are frozen dataclasses with a field `device`, for which `auto` is the fastest one here. They raise
    ValueError for a value of another type, out of range, or not among the names of its field (see `validate.fields`).
    `costs` says roughly what an iteration computes and moves, and `predicted_bytes` how much memory it takes."""

    experiment: ClassVar[str]
    compiles: ClassVar[bool] = False  # True if any part goes through torch.compile

    def __post_init__(self):
        object.__setattr__(self, "device", device.named(self.device))
        validate.fields(self)

    def unavailable(self) -> str | None:
        """Return why this machine cannot run the case, or None."""
        missing = environment.compiler_missing(self.device) if self.compiles else None
        return missing or device.on(self.device).lacks(getattr(self, "precision", "fp32"))


class OfAnother(Case):
    """Run `inner`, a case of another experiment."""

    inner: Case

    @property
    def compiles(self) -> bool:
        """Return True if any part goes through torch.compile."""
        return self.inner.compiles

    def unavailable(self) -> str | None:
        """Return why this machine cannot run the case, or None."""
        return self.inner.unavailable()

    def predicted_bytes(self) -> int:
        """Predict the peak of the inner case."""
        return self.inner.predicted_bytes()

    def costs(self) -> flops.Costs:
        """Return the costs of an iteration of the inner case."""
        return self.inner.costs()

    def setup(self) -> Work:
        """Build the inner case."""
        return self.inner.setup()
