"""Time the phases of one iteration by marks inside it, and keep every sample.

An iteration is a callable that takes `mark` and calls `mark(name)` where each of its phases ends. One rule says how
long to sample, whatever is measured: warm up until the times are steady or a third of `seconds` is over; then sample
until the interval of the median is narrower than 1% or `seconds` are over, at least 3 and at most 2,000 times.
Everything that runs counts as time, what is untimed too.
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

LEAST = 3  # samples or pairs, however long they take
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

    queues = False  # True if the host goes on while the device still works
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

    def stop(self) -> tuple[list[int], int, int]:
        """Return nanoseconds between the marks, until now, and until the last mark.

        The last two are wall time since the start; where the clock `queues`, the host marks before the device gets
        there."""
        wall_ns = self.now() - self.instants[0]
        host_ns = self.instants[-1] - self.instants[0]
        durations = [after - before for before, after in zip(self.instants, self.instants[1:], strict=False)]
        return durations, wall_ns, host_ns

    def seconds(self) -> float:
        """Return the time by which sampling ends; a clock of several ranks gives all of them the same."""
        return self.now() / 1e9


@dataclass
class Samples:
    """Hold all samples in order, in nanoseconds; the first `warmup` are warm-ups.

    A sample is one iteration, or the mean of `calls` of them in a batch."""

    warmup: int = 0
    calls: int = 1
    phases: dict[str, list[float]] = field(default_factory=dict)
    total: list[float] = field(default_factory=list)
    wall: list[float] = field(default_factory=list)
    host: list[float] = field(default_factory=list)  # until the last mark, where the clock `queues`
    faults: list[int] = field(default_factory=list)  # minor page faults of the process in each sample

    def metrics(self) -> dict[str, list[float] | int]:
        """Return `<phase>_ms`, `total_ms`, `wall_ms` and `host_ms`; `warmup_ms` has the totals of warm-ups.

        `minor_faults` has the page faults of each sample, and `calls_a_sample` is there if there are several."""
        series = {**self.phases, "total": self.total, "wall": self.wall}
        if self.host:
            series["host"] = self.host
        metrics = {f"{name}_ms": _milliseconds(values[self.warmup :]) for name, values in series.items()}
        metrics["warmup_ms"] = _milliseconds(self.total[: self.warmup])
        metrics["minor_faults"] = self.faults[self.warmup :]
        if self.calls > 1:
            metrics["calls_a_sample"] = self.calls
        return metrics


def _milliseconds(values_ns: list[float]) -> list[float]:
    return [value / 1e6 for value in values_ns]


def measure(
    iteration: Iteration, clock, seconds: float, before: Callable[[], None] = nothing, repeats: bool | None = None,
    least: int = LEAST,
) -> Samples:  # fmt: skip
    """Time an iteration by the rule of this module, calling `before` untimed before each.

    If an iteration `repeats`, it can follow another without `before`; by default that is so where it does nothing. On a
    device, such iterations run in batches where they are short. The garbage collector is off meanwhile. Raises
    ValueError when two iterations mark different phases."""
    if repeats is None:
        repeats = before is nothing
    samples = Samples()
    with _without_collector():
        end_s = clock.seconds() + max(seconds / 3, clock.least_s)
        while not samples.total or (clock.seconds() < end_s and not _is_steady(samples.total, clock)):
            _add_sample(samples, iteration, clock, before)
            if repeats and len(samples.total) == FIRST_LOOK:
                samples.calls = batch(clock, samples.total)
        samples.warmup = len(samples.total)
        began_s = clock.seconds()
        while True:
            times = samples.total[samples.warmup :]
            spent_s = clock.seconds() - began_s
            if len(times) >= least and spent_s >= clock.least_s and (spent_s >= seconds or is_narrow(times)):
                break
            if len(times) >= MOST:
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
    before()
    faults = minor_faults()
    durations, wall_ns, host_ns = _once(iteration, clock, samples.calls, len(samples.phases) > 1)
    samples.faults.append(minor_faults() - faults)
    if samples.wall and list(durations) != list(samples.phases):
        raise ValueError(f"phases: got {list(durations)}, expected those of the first, {list(samples.phases)}")
    for name, phase_ns in durations.items():
        samples.phases.setdefault(name, []).append(phase_ns)
    samples.total.append(sum(durations.values()))
    samples.wall.append(wall_ns)
    if clock.queues:
        samples.host.append(host_ns)


def _is_look(count: int) -> bool:
    """Tell if a series of this length is looked at: 10, 15, 23, 35, ..., since each look takes time."""
    look = FIRST_LOOK
    while look < count:
        look = math.ceil(look * LOOKS)
    return look == count


def _is_steady(totals: list[float], clock) -> bool:
    """Tell if a warm-up can end: never on a device, whose clock needs its time."""
    return clock.least_s == 0 and _is_look(len(totals)) and steady_state.steady(totals) is not None


def is_narrow(times: list[float]) -> bool:
    """Tell if the interval of the median is narrower than 1% of it, at a look."""
    if not _is_look(len(times)):
        return False
    low, high = intervals.order_statistics(times)
    return high - low <= TARGET * statistics.median(times)


def batch(clock, totals: list[float]) -> int:
    """Return how many calls a device's events enclose, for an iteration that took these times."""
    middle = statistics.median(totals)
    if middle >= clock.short_ns:
        return 1
    return math.ceil(BATCH_NS / max(middle, RESOLUTION_NS))


@dataclass
class Pairs:
    """Hold the times of two iterations that ran in pairs, in nanoseconds.

    `phases` has, for each phase that both mark, its times in the first and in the second. Each time is that of one
    iteration, or the mean of a batch: `calls` has the sizes of the first's and the second's."""

    first: list[float] = field(default_factory=list)
    second: list[float] = field(default_factory=list)
    phases: dict[str, tuple[list[float], list[float]]] = field(default_factory=dict)
    calls: list[int] = field(default_factory=lambda: [1, 1])

    def add(self, first: dict[str, float], second: dict[str, float]) -> None:
        """Add the phases of one pair."""
        self.first.append(sum(first.values()))
        self.second.append(sum(second.values()))
        for phase in first:
            if phase in second:
                times = self.phases.setdefault(phase, ([], []))
                times[0].append(first[phase])
                times[1].append(second[phase])

    def ratios(self) -> list[float]:
        """Return the ratio of each pair: the second's time over the first's."""
        return [second / first for first, second in zip(self.first, self.second, strict=True)]

    def metrics(self) -> dict[str, list[float] | list[int]]:
        """Return `paired_ms` of the first and `baseline_ms` of the second iteration.

        If there are several phases, each has `paired_<phase>_ms` and `baseline_<phase>_ms`. Of batches,
        `calls_a_pair` has both sizes."""
        metrics = {"paired_ms": _milliseconds(self.first), "baseline_ms": _milliseconds(self.second)}
        if len(self.phases) > 1:
            for phase, (first, second) in sorted(self.phases.items()):
                metrics[f"paired_{phase}_ms"] = _milliseconds(first)
                metrics[f"baseline_{phase}_ms"] = _milliseconds(second)
        if max(self.calls) > 1:
            metrics["calls_a_pair"] = self.calls
        return metrics


class _Side:
    """Run one side of the pairs; its data is back in the caches when a short iteration counts."""

    def __init__(self, iteration: Iteration, before: Callable[[], None], clock):
        self.iteration = iteration
        self.before = before
        self.clock = clock
        self.calls = 1
        self.phases = 1
        self.fastest_ns = math.inf

    def run(self) -> dict[str, float]:
        if self.fastest_ns < EVICTED_NS:
            self._time(1)
        return self._time(self.calls)

    def _time(self, calls: int) -> dict[str, float]:
        self.before()
        durations, wall_ns, _ = _once(self.iteration, self.clock, calls, self.phases > 1)
        self.phases = len(durations)
        self.fastest_ns = min(self.fastest_ns, wall_ns)
        return durations


def compare(
    first: Iteration, second: Iteration, clock, seconds: float, seed: int = 0,
    before: tuple[Callable[[], None], Callable[[], None]] = (nothing, nothing), repeats: bool | None = None,
) -> Pairs:  # fmt: skip
    """Time two iterations in pairs, in random order, by the rule of this module.

    Every second pair reverses the order of the one before. Sampling ends once the interval of the pairs' ratio is
    narrow. Short iterations that both can repeat run in batches, as in `measure`."""
    if repeats is None:
        repeats = before == (nothing, nothing)
    sides = (_Side(first, before[0], clock), _Side(second, before[1], clock))
    coin = random.Random(seed)
    warm = Pairs()
    pairs = Pairs()
    with _without_collector():
        end_s = clock.seconds() + max(seconds / 3, clock.least_s)
        # the first side was just measured; the second may never have run
        sides[1].run()
        while clock.seconds() < end_s and (len(warm.first) < LEAST or clock.least_s > 0):
            warm.add(sides[0].run(), sides[1].run())
        if repeats and warm.first:
            for side, times in zip(sides, (warm.first, warm.second), strict=True):
                side.calls = batch(clock, times)
        pairs.calls = [side.calls for side in sides]
        began_s = clock.seconds()
        first_begins = True
        while len(pairs.first) < MOST:
            spent_s = clock.seconds() - began_s
            if len(pairs.first) >= LEAST and (spent_s >= seconds or is_narrow(pairs.ratios())):
                break
            if len(pairs.first) % 2 == 0:
                first_begins = coin.random() < 0.5
            if first_begins:
                first_phases = sides[0].run()
                second_phases = sides[1].run()
            else:
                second_phases = sides[1].run()
                first_phases = sides[0].run()
            pairs.add(first_phases, second_phases)
            first_begins = not first_begins
    return pairs


def minor_faults() -> int:
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


def _once(iteration: Iteration, clock, calls: int, mark_each: bool = False) -> tuple[dict[str, float], float, float]:
    """Time a batch of calls; return the mean nanoseconds of each phase, of the whole and of the host's part.

    Only the last call marks, unless there are several phases."""
    names: list[str] = []

    def mark(name: str) -> None:
        clock.mark()
        names.append(name)

    clock.start()
    for _ in range(calls - 1):
        iteration(mark if mark_each else nothing)
    iteration(mark)
    durations, wall_ns, host_ns = clock.stop()
    phases = dict.fromkeys(names, 0.0)
    marks_each_phase_once = len(names) == len(phases) * (calls if mark_each else 1)
    if not names or not marks_each_phase_once:
        raise ValueError(f"phases: got {names}, expected each phase to be marked once")
    for name, duration_ns in zip(names, durations, strict=True):
        phases[name] += duration_ns / calls
    return phases, wall_ns / calls, host_ns / calls
