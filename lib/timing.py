"""Time the phases of one iteration by marks inside it, and keep every sample.

An iteration is a callable that takes `mark` and calls `mark(name)` where each of its phases ends. One rule says how
long to sample, whatever is measured: warm up until the times are steady or a third of `seconds` is over; then sample
until the interval of the median is narrower than 1% or `seconds` are over, at least 3 and at most 2,000 times.
Everything that runs counts as time, what is untimed too.
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

LEAST = 3  # samples or pairs, however long they take
WARM_PAIRS = 2  # however long they take: until then two large models still ask the system for pages
MOST = 2_000  # samples or pairs, however short they are
TARGET = 0.01  # width of a median's interval, relative to the median, at which sampling ends
LOOKS = 1.5  # growth of the series between two looks at its interval: a look at each sample would stop by luck
FIRST_LOOK = 10  # samples; fewer have no interval of use, and no steady state

BATCHED_NS = 100_000  # a device's iterations shorter than this run in batches, between two events
BATCH_NS = 1_000_000  # length of a batch: the host's way to its two events then costs about a percent
RESOLUTION_NS = 500  # of CUDA's events (cudaEventElapsedTime)
EVICTED_NS = 50_000_000  # a shorter iteration notices that the other side of a pair has taken its place in the caches


def nothing(*_) -> None:
    """Do nothing before an iteration, or at a mark."""


class HostClock:
    """Read the host's clock at each mark, once the device has finished its work.

    `now` returns integer nanoseconds; `synchronize` waits for the device (a CPU needs no waiting). Iterations below
    `short_ns` run in batches."""

    least_s = 0.0  # that warming up and sampling last at least; a GPU's clock rises meanwhile

    def __init__(self, now: Callable[[], int] = time.perf_counter_ns, synchronize=nothing, short_ns: int = 0):
        self.now = now
        self.synchronize = synchronize
        self.short_ns = short_ns

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
        """Return the time that ends sampling, the same for all ranks of a clock."""
        return self.now() / 1e9


@dataclass
class Samples:
    """Hold all samples in order, in nanoseconds; the first `warmup` are warm-ups.

    A sample is one iteration, or the mean of `calls` of them in a batch."""

    warmup: int = 0
    calls: int = 1
    phases: dict[str, list[float]] = field(default_factory=dict)
    total: list[float] = field(default_factory=list)
    faults: list[int] = field(default_factory=list)  # minor page faults of the process in each sample

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


def _milliseconds(values_ns: list[float]) -> list[float]:
    return [value / 1e6 for value in values_ns]


def measure(
    iteration: Iteration, clock, seconds: float, before: Callable[[], None] = nothing, repeats: bool = True,
    least: int = LEAST,
) -> Samples:  # fmt: skip
    """Time an iteration by this module's rule, calling `before` untimed before each.

    If an iteration `repeats`, it can follow another without `before`: on a device, such iterations run in batches where
    they are short. The garbage collector is off meanwhile. Raises ValueError when two iterations mark different
    phases."""
    samples = Samples()
    with _without_collector():
        end_s = clock.seconds() + max(seconds / 3, clock.least_s)
        while not samples.total or (clock.seconds() < end_s and not _is_steady(samples.total, clock)):
            _add_sample(samples, iteration, clock, before)
            if repeats and len(samples.total) == FIRST_LOOK:
                samples.calls = _batch(clock, samples.total)
        samples.warmup = len(samples.total)
        began_s = clock.seconds()
        while len(samples.times) < MOST:
            spent_s = clock.seconds() - began_s
            can_end = len(samples.times) >= least and spent_s >= clock.least_s
            if can_end and (spent_s >= seconds or _is_narrow(samples.times)):
                break
            _add_sample(samples, iteration, clock, before)
    return samples


def exactly(iteration: Iteration, clock, count: int, before: Callable[[], None] = nothing) -> Samples:
    """Time `count` iterations from the first one on, without a warm-up."""
    samples = Samples()
    with _without_collector():
        for _ in range(count):
            _add_sample(samples, iteration, clock, before)
    return samples


def _add_sample(samples: Samples, iteration: Iteration, clock, before: Callable[[], None]) -> None:
    """Time a batch of calls; add the mean nanoseconds of each phase and of the whole."""
    before()
    # with one phase, the last call alone marks
    marks_each_call = len(samples.phases) > 1
    names: list[str] = []

    def mark(name: str) -> None:
        clock.mark()
        names.append(name)

    faults = _minor_faults()
    clock.start()
    for _ in range(samples.calls - 1):
        iteration(mark if marks_each_call else nothing)
    iteration(mark)
    durations_ns = clock.stop()
    samples.faults.append(_minor_faults() - faults)
    phases = dict.fromkeys(names, 0.0)
    marking_calls = samples.calls if marks_each_call else 1
    if not names or len(names) != len(phases) * marking_calls:
        raise ValueError(f"phases: got {names}, expected each phase to be marked once")
    if samples.total and list(phases) != list(samples.phases):
        raise ValueError(f"phases: got {list(phases)}, expected those of the first, {list(samples.phases)}")
    for name, duration_ns in zip(names, durations_ns, strict=True):
        phases[name] += duration_ns / samples.calls
    for name, phase_ns in phases.items():
        samples.phases.setdefault(name, []).append(phase_ns)
    samples.total.append(sum(phases.values()))


def _is_look(count: int) -> bool:
    """Tell if a series of this length is looked at: 10, 15, 23, ...; looks take time."""
    look = FIRST_LOOK
    while look < count:
        look = math.ceil(look * LOOKS)
    return look == count


def _is_steady(totals: list[float], clock) -> bool:
    """Tell if a warm-up can end: never on a device, whose clock needs its time."""
    return clock.least_s == 0 and _is_look(len(totals)) and steady_state.steady(totals) is not None


def _is_narrow(times: list[float]) -> bool:
    """Tell if the interval of the median is narrower than 1% of it, at a look."""
    if not _is_look(len(times)):
        return False
    low, high = intervals.order_statistics(times)
    return high - low <= TARGET * statistics.median(times)


def _batch(clock, totals: list[float]) -> int:
    """Return how many calls a device's events enclose, given an iteration's times."""
    middle = statistics.median(totals)
    if middle >= clock.short_ns:
        return 1
    return math.ceil(BATCH_NS / max(middle, RESOLUTION_NS))


@dataclass
class Pairs:
    """Hold the samples of two iterations that ran in pairs."""

    first: Samples = field(default_factory=Samples)
    second: Samples = field(default_factory=Samples)

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


def compare(
    first: Iteration, second: Iteration, clock, seconds: float, seed: int = 0,
    before: tuple[Callable[[], None], Callable[[], None]] = (nothing, nothing), repeats: bool = True,
) -> Pairs:  # fmt: skip
    """Time two iterations in pairs, in random order, by the rule of this module.

    Every second pair reverses the order of the one before. Sampling ends once the interval of the pairs' ratio is
    narrow. Short iterations run in batches if both can `repeat`, as in `measure`."""
    pairs = Pairs()

    def run_first() -> None:
        _add_side(pairs.first, first, clock, before[0])

    def run_second() -> None:
        _add_side(pairs.second, second, clock, before[1])

    coin = random.Random(seed)
    with _without_collector():
        end_s = clock.seconds() + max(seconds / 3, clock.least_s)
        # the first side was just measured; the second may never have run
        run_second()
        while len(pairs.first.total) < WARM_PAIRS or (
            clock.seconds() < end_s and (len(pairs.first.total) < LEAST or clock.least_s > 0)
        ):
            run_first()
            run_second()
        for samples in (pairs.first, pairs.second):
            if repeats and pairs.first.total:
                samples.calls = _batch(clock, samples.total)
            samples.warmup = len(samples.total)
        began_s = clock.seconds()
        first_begins = True
        while len(pairs.first.times) < MOST:
            spent_s = clock.seconds() - began_s
            if len(pairs.first.times) >= LEAST and (spent_s >= seconds or _is_narrow(pairs.ratios())):
                break
            if len(pairs.first.times) % 2 == 0:
                first_begins = coin.random() < 0.5
            if first_begins:
                run_first()
                run_second()
            else:
                run_second()
                run_first()
            first_begins = not first_begins
    return pairs


def _add_side(samples: Samples, iteration: Iteration, clock, before: Callable[[], None]) -> None:
    # brings its data back into the caches
    if min(samples.total, default=math.inf) < EVICTED_NS:
        before()
        iteration(nothing)
    _add_sample(samples, iteration, clock, before)


def _minor_faults() -> int:
    """Return how many page faults this process has had that needed no disk."""
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
