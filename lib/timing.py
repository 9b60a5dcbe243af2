"""Time the phases of one iteration by marks inside it, and keep every sample.

An iteration is a callable that takes `mark` and calls `mark(name)` where each of its phases ends.
"""

import contextlib
import gc
import math
import random
import resource
import statistics
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

from lib.stats import intervals, steady_state

Mark = Callable[[str], None]
Iteration = Callable[[Mark], None]
LEAST = 10  # samples of an adaptive measurement, even if they take long
PILOT = 10  # pairs of a comparison, from which the number of the others is planned
LEAST_PAIRS = 5  # of a comparison, even if they take long
UNCOUNTED = 5  # pairs that warm up both sides; fewer if they take a fifth of the time
STOPPING = 0.975  # confidence of the interval that ends sampling: stopping when it is narrow costs some of its coverage


class HostClock:
    """Read the host's clock at each mark, once the device has finished its work.

    `now` returns integer nanoseconds; `synchronize` waits for the device (a CPU needs no waiting)."""

    def __init__(self, now: Callable[[], int] = time.perf_counter_ns, synchronize=lambda: None):
        self.now, self.synchronize = now, synchronize

    def start(self) -> None:
        self.synchronize()
        self.instants = [self.now()]

    def mark(self) -> None:
        self.synchronize()
        self.instants.append(self.now())

    def stop(self) -> tuple[list[int], int]:
        """Return nanoseconds between the marks, and of wall time since the start."""
        wall_ns = self.now() - self.instants[0]
        return [b - a for a, b in zip(self.instants, self.instants[1:], strict=False)], wall_ns


@dataclass(frozen=True)
class Samples:
    """Hold all iterations in order, in nanoseconds; the first `warmup` are warm-ups."""

    warmup: int
    phases: dict[str, list[int]] = field(default_factory=dict)
    wall: list[int] = field(default_factory=list)
    faults: list[int] = field(default_factory=list)  # minor page faults of the process in each iteration

    def metrics(self) -> dict[str, list[float]]:
        """Return `<phase>_ms`, `total_ms` and `wall_ms`; `warmup_ms` has the totals of warm-ups.

        `minor_faults` has the page faults of each measured iteration."""
        total = [sum(sample) for sample in zip(*self.phases.values(), strict=True)]
        series = {**self.phases, "total": total, "wall": self.wall}
        metrics = {f"{name}_ms": [ns / 1e6 for ns in values[self.warmup :]] for name, values in series.items()}
        faults = {"minor_faults": self.faults[self.warmup :]}
        return metrics | {"warmup_ms": [ns / 1e6 for ns in total[: self.warmup]]} | faults


@dataclass(frozen=True)
class Plan:
    """Decide how long to measure.

    Without a `target`, that is exactly `warmup` and then `samples` iterations. With one, these are upper limits, and
    each part also ends after `seconds`, sampling not before 10. The warm-up ends once its last iterations are steady.
    Sampling ends, after 15 or more, if the first two thirds gave a median's interval narrower than `target` percent."""

    warmup: int
    samples: int
    target: float = 0.0
    seconds: float = math.inf

    def warm(self, totals: list[int]) -> bool:
        """Return True if these iterations suffice as warm-ups."""
        if len(totals) >= self.warmup or not self.target:
            return len(totals) >= self.warmup
        return sum(totals) > self.seconds * 1e9 or steady_state.steady(totals) is not None

    def enough(self, totals: list[int]) -> bool:
        """Return True if these samples suffice."""
        n = len(totals)
        if n >= self.samples or not self.target or n < LEAST:
            return n >= self.samples
        if sum(totals) > self.seconds * 1e9:
            return True
        look, before = LEAST, 0
        while look < n:
            look, before = look + look // 2, look
        if look > n or not before:
            return False
        narrow = totals[:before]  # it may look narrow by luck, so half as many samples more are taken
        low, high = intervals.order_statistics(narrow, STOPPING)
        return high - low <= self.target / 100 * statistics.median(narrow)


def measure(iteration: Iteration, clock, plan: Plan, before=lambda: None) -> Samples:
    """Time the iterations of the plan under `clock`, calling `before` untimed before each.

    The garbage collector is off meanwhile. Raises ValueError when two iterations mark different phases."""
    phases: dict[str, list[int]] = {}
    walls, totals, faults = [], [], []

    def once() -> None:
        before()
        earlier = _minor_faults()
        durations, wall_ns = _once(iteration, clock)
        faults.append(_minor_faults() - earlier)
        if walls and list(durations) != list(phases):
            raise ValueError(f"phases: got {list(durations)}, expected those of the first iteration, {list(phases)}")
        for name, ns in durations.items():
            phases.setdefault(name, []).append(ns)
        walls.append(wall_ns)
        totals.append(sum(durations.values()))

    with _without_collector():
        while not plan.warm(totals):
            once()
        warmup = len(totals)
        while not plan.enough(totals[warmup:]):
            once()
    return Samples(warmup, phases, walls, faults)


@dataclass(frozen=True)
class Pairs:
    """Hold the times of two iterations that ran in pairs, in nanoseconds.

    `phases` has the times of each phase that both mark: those of the first iteration and those of the second."""

    first: list[int] = field(default_factory=list)
    second: list[int] = field(default_factory=list)
    phases: dict[str, tuple[list[int], list[int]]] = field(default_factory=dict)

    def add(self, first: dict[str, int], second: dict[str, int]) -> None:
        """Add the phases of one pair."""
        self.first.append(sum(first.values()))
        self.second.append(sum(second.values()))
        for phase in first.keys() & second.keys():
            for times, ns in zip(self.phases.setdefault(phase, ([], [])), (first[phase], second[phase]), strict=True):
                times.append(ns)

    def metrics(self) -> dict[str, list[float]]:
        """Return `paired_ms` of the first and `baseline_ms` of the second iteration.

        If there are several phases, each has `paired_<phase>_ms` and `baseline_<phase>_ms`."""
        series = {"": (self.first, self.second)}
        series |= {f"{phase}_": both for phase, both in sorted(self.phases.items()) if len(self.phases) > 1}
        return {
            f"{side}_{phase}ms": [ns / 1e6 for ns in times]
            for phase, both in series.items()
            for side, times in zip(("paired", "baseline"), both, strict=True)
        }


def compare(
    first: Iteration, second: Iteration, clock, most: int = 400, seconds: float = math.inf, seed: int = 0,
    before: tuple[Callable[[], None], Callable[[], None]] = (lambda: None, lambda: None),
    effect: float = intervals.EFFECT,
) -> Pairs:  # fmt: skip
    """Time two iterations in pairs, in random order.

    Every second pair reverses the order of the one before. A few uncounted pairs warm up both sides. The spread of
    10 pairs says how many are needed to see a relative difference of `effect`; more follow if those spread wider. It
    stops at `most` pairs or, after the fifth, once they have taken `seconds`."""
    coin, pairs, sides = random.Random(seed), Pairs(), ((first, before[0]), (second, before[1]))

    def once(order: tuple[int, int]) -> list[dict[str, int]]:
        taken = [{}, {}]
        for side in order:
            iteration, prepare = sides[side]
            prepare()
            taken[side] = _once(iteration, clock)[0]
        return taken

    with _without_collector():
        warm = Pairs()
        while not warm.first or (len(warm.first) < UNCOUNTED and sum(warm.first + warm.second) < 0.2 * seconds * 1e9):
            warm.add(*once((0, 1)))
        planned, orders = PILOT, []
        while len(pairs.first) < min(planned, most):
            if len(pairs.first) >= LEAST_PAIRS and sum(pairs.first + pairs.second) > seconds * 1e9:
                break
            orders = orders or coin.sample(((0, 1), (1, 0)), 2)  # each side goes first equally often
            pairs.add(*once(orders.pop()))
            if len(pairs.first) == planned:
                logs = [math.log(a / b) for a, b in zip(pairs.first, pairs.second, strict=True)]
                planned = intervals.pairs_needed(logs, effect)
    return pairs


def _minor_faults() -> int:
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt


@contextlib.contextmanager
def _without_collector() -> Iterator[None]:
    collecting = gc.isenabled()
    gc.collect()
    gc.disable()
    try:
        yield
    finally:
        if collecting:
            gc.enable()


def _once(iteration: Iteration, clock) -> tuple[dict[str, int], int]:
    names = []

    def mark(name: str) -> None:
        clock.mark()
        names.append(name)

    clock.start()
    iteration(mark)
    durations, wall_ns = clock.stop()
    if not names or len(set(names)) < len(names):
        raise ValueError(f"phases: got {names}, expected each phase to be marked once")
    return dict(zip(names, durations, strict=True)), wall_ns
