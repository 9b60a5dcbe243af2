"""Time the phases of one iteration by marks inside it, and keep every sample.

An iteration is a callable that takes `mark` and calls `mark(name)` where each of its phases ends. One rule says how
long to sample, whatever is measured:

- Warm up until the times are steady, or for a third of `seconds`.
- Then sample until the interval of the median is narrower than 1%, or for `seconds` more.
- Take at least 5 samples and at most 2,000. Of samples that take longer than a second, 3 are enough.

`seconds` are of the wall clock, so untimed work between two samples uses them up, too. On a GPU the warm-up takes its
whole third, however steady the times look. It and sampling take at least `least_s` each there. `exactly` does not warm
up. `compare` warms up for a third of `seconds` on a GPU. On a CPU it does so for three pairs, or two if they are slow.
"""

import contextlib
import gc
import itertools
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

LEAST = 5  # samples or pairs
FEWEST = 3  # samples or pairs, if they are slow
SLOW_S = 1.0  # the mean length of slow ones: five steps of a larger model in pairs would take a minute
WARM_PAIRS = 2  # however long they take: until then two large models still ask the system for pages
MOST = 2_000  # samples or pairs, however short they are
TARGET = 0.01  # width of a median's interval, relative to the median, at which sampling ends
# lengths of a series at which sampling or warming up may end: a look takes time, and one after each sample would stop
# by luck. Fewer samples have no useful interval, and no steady state.
LOOKS = (10, 15, 23, 35, 53, 80, 120, 180, 270, 405, 608, 912, 1_368)

BATCHED_NS = 100_000  # a GPU's shorter iterations run in batches; a batch of one-phase iterations has two events
BATCH_NS = 1_000_000  # length of a batch, of which the host's work for two events is about a percent
RESOLUTION_NS = 500  # the resolution of CUDA's events (cudaEventElapsedTime)
EVICTED_NS = 50_000_000  # a shorter iteration is slowed if the other side of a pair has evicted its data from caches


def nothing(*_) -> None:
    """Do nothing before an iteration, or at a mark."""


@dataclass
class HostClock:
    """Read the host's clock at each mark, once the device has finished its work."""

    now: Callable[[], int] = time.perf_counter_ns
    synchronize: Callable[[], None] = nothing  # waits for the device; a CPU needs no waiting
    short_ns: int = 0  # shorter iterations run in batches; with 0 none
    least_s: float = 0.0  # least length of warming up, and of sampling: a GPU raises its frequency meanwhile

    def start(self) -> None:
        """Begin an iteration."""
        self.synchronize()
        self.instants = [self.now()]

    def mark(self) -> None:
        """End a phase."""
        self.synchronize()
        self.instants.append(self.now())

    def stop(self) -> list[int]:
        """Return the nanoseconds of each phase."""
        return [after - before for before, after in itertools.pairwise(self.instants)]

    def seconds(self) -> float:
        """Return the time in seconds, which decides when sampling ends.

        On several ranks all get the same time (`ranks.Clock`)."""
        return self.now() / 1e9


@dataclass
class Samples:
    """Time an iteration, and hold all samples in order, in nanoseconds.

    The first `warmup` are warm-ups. A sample is one iteration, or the mean of `calls` of them in a batch. `before` runs
    untimed before each sample."""

    iteration: Iteration
    clock: HostClock
    before: Callable[[], None] = nothing
    warmup: int = 0
    calls: int = 1
    phases: dict[str, list[float]] = field(default_factory=dict)
    total: list[float] = field(default_factory=list)
    faults: list[int] = field(default_factory=list)  # minor page faults of the process, which needed no disk

    @property
    def times(self) -> list[float]:
        """Return the totals after the warm-up."""
        return self.total[self.warmup :]

    def metrics(self) -> dict[str, list[float] | int]:
        """Return `<phase>_ms` and `total_ms` of samples, and `warmup_ms` of warm-ups.

        `minor_faults` has the page faults of each sample, and `calls_a_sample` is there if there are several."""
        metrics = {}
        for name, values in (self.phases | {"total": self.total}).items():
            metrics[f"{name}_ms"] = _milliseconds(values[self.warmup :])
        metrics["warmup_ms"] = _milliseconds(self.total[: self.warmup])
        metrics["minor_faults"] = self.faults[self.warmup :]
        if self.calls > 1:
            metrics["calls_a_sample"] = self.calls
        return metrics

    def add(self) -> None:
        """Time a batch of calls; add the mean nanoseconds of each phase and of the whole."""
        self.before()
        # with one phase, the last call alone marks
        marks_each_call = len(self.phases) > 1
        names: list[str] = []

        def mark(name: str) -> None:
            self.clock.mark()
            names.append(name)

        faults = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
        self.clock.start()
        for _ in range(self.calls - 1):
            self.iteration(mark if marks_each_call else nothing)
        self.iteration(mark)
        durations_ns = self.clock.stop()
        self.faults.append(resource.getrusage(resource.RUSAGE_SELF).ru_minflt - faults)
        phases = dict.fromkeys(names, 0.0)
        marking_calls = self.calls if marks_each_call else 1
        if not names or len(names) != len(phases) * marking_calls:
            raise ValueError(f"phases: got {names}, expected each phase to be marked once")
        if self.total and list(phases) != list(self.phases):
            raise ValueError(f"phases: got {list(phases)}, expected those of the first, {list(self.phases)}")
        for name, duration_ns in zip(names, durations_ns, strict=True):
            phases[name] += duration_ns / self.calls
        for name, phase_ns in phases.items():
            self.phases.setdefault(name, []).append(phase_ns)
        self.total.append(sum(phases.values()))

    def add_in_turn(self) -> None:
        """Add a sample as `add` does, after the other side of a pair had its turn."""
        # a short one first runs untimed, which brings its data back into the caches
        if min(self.total, default=math.inf) < EVICTED_NS:
            self.before()
            self.iteration(nothing)
        self.add()

    def batch(self) -> None:
        """Switch to batches if an iteration is shorter than `clock.short_ns`."""
        middle = statistics.median(self.total)
        if middle < self.clock.short_ns:
            self.calls = math.ceil(BATCH_NS / max(middle, RESOLUTION_NS))


def _milliseconds(values_ns: list[float]) -> list[float]:
    return [value / 1e6 for value in values_ns]


@dataclass
class Pairs:
    """Hold the samples of two iterations that ran in pairs."""

    first: Samples
    second: Samples

    @property
    def ratios(self) -> list[float]:
        """Return the ratio of each pair: the second's time over the first's."""
        return [second / first for first, second in zip(self.first.times, self.second.times, strict=True)]

    def metrics(self) -> dict[str, list[float]]:
        """Return `paired_ms` of the first and `baseline_ms` of the second iteration.

        If they share several phases, each has `paired_<phase>_ms` and `baseline_<phase>_ms`."""
        phases = sorted(self.first.phases.keys() & self.second.phases.keys())
        metrics = {}
        for name, samples in (("paired", self.first), ("baseline", self.second)):
            series = samples.metrics()
            metrics[f"{name}_ms"] = series["total_ms"]
            if len(phases) > 1:
                for phase in phases:
                    metrics[f"{name}_{phase}_ms"] = series[f"{phase}_ms"]
        return metrics


@contextlib.contextmanager
def _without_collector() -> Iterator[None]:
    gc.collect()
    gc.disable()
    try:
        yield
    finally:
        gc.enable()


@_without_collector()
def measure(
    iteration: Iteration, clock, seconds: float, before: Callable[[], None] = nothing, repeats: bool = True,
    least: int = LEAST,
) -> Samples:  # fmt: skip
    """Time an iteration by this module's rule, calling `before` untimed before each.

    An iteration that `repeats` can follow another one without `before` between them. On a GPU, such iterations run in
    batches if they are short. The garbage collector is off meanwhile. Raises ValueError if two iterations mark
    different phases."""
    samples = Samples(iteration, clock, before)
    end_s = clock.seconds() + max(seconds / 3, clock.least_s)
    while not samples.total or (clock.seconds() < end_s and not _is_steady(samples.total, clock)):
        samples.add()
        if repeats and len(samples.total) == LOOKS[0]:
            samples.batch()
    samples.warmup = len(samples.total)
    _sample(samples.add, lambda: samples.times, clock, seconds, least)
    return samples


@_without_collector()
def exactly(iteration: Iteration, clock, count: int, before: Callable[[], None] = nothing) -> Samples:
    """Time `count` iterations from the first one on, without a warm-up."""
    samples = Samples(iteration, clock, before)
    for _ in range(count):
        samples.add()
    return samples


@_without_collector()
def compare(
    first: Iteration, second: Iteration, clock, seconds: float, seed: int = 0,
    before: tuple[Callable[[], None], Callable[[], None]] = (nothing, nothing), repeats: bool = True,
) -> Pairs:  # fmt: skip
    """Time two iterations in pairs, in random order, by the rule of this module.

    Every second pair reverses the order of the one before. Sampling ends once the interval of the pairs' ratio is
    narrow. Short iterations run in batches, as in `measure`, if both `repeats`."""
    pairs = Pairs(Samples(first, clock, before[0]), Samples(second, clock, before[1]))
    sides = [pairs.first, pairs.second]
    coin = random.Random(seed)

    def add_pair() -> None:
        if len(pairs.first.times) % 2 == 0:
            coin.shuffle(sides)
        for side in sides:
            side.add_in_turn()
        sides.reverse()

    end_s = clock.seconds() + max(seconds / 3, clock.least_s)
    # most callers have just timed the first side; the second may never have run
    pairs.second.add_in_turn()
    while len(pairs.first.total) < WARM_PAIRS or (
        clock.seconds() < end_s and (len(pairs.first.total) < FEWEST or clock.least_s > 0)
    ):
        add_pair()
    for side in sides:
        side.warmup = len(side.total)
        if repeats:
            side.batch()
    _sample(add_pair, lambda: pairs.ratios, clock, seconds, LEAST)
    return pairs


def _sample(add: Callable[[], None], series: Callable[[], list[float]], clock, seconds: float, least: int) -> None:
    """Add to a series of samples or pairs until its median's interval is narrow."""
    began_s = clock.seconds()
    while len(series()) < MOST:
        spent_s = clock.seconds() - began_s
        are_enough = len(series()) >= least or (len(series()) >= FEWEST and spent_s >= SLOW_S * least)
        if are_enough and spent_s >= clock.least_s and (spent_s >= seconds or _is_narrow(series())):
            break
        add()


def _is_steady(totals: list[float], clock) -> bool:
    """Tell if a warm-up can end before its time.

    On a GPU it never can, since the frequency takes time to rise."""
    return clock.least_s == 0 and len(totals) in LOOKS and steady_state.steady(totals) is not None


def _is_narrow(series: list[float]) -> bool:
    """Tell if the interval of the median is narrower than 1% of it, at a look."""
    if len(series) not in LOOKS:
        return False
    low, high = intervals.order_statistics(series)
    return high - low <= TARGET * statistics.median(series)
