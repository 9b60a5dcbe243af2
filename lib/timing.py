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
MOST = 5_000  # samples, or warm-ups, that a least time alone can ask for
SHORT_NS = 100_000  # iterations shorter than this are timed in batches, between two events of a device
BATCH = 10  # times that a batch takes, about; the way from the host to its two events then costs a percent
RESOLUTION_NS = 500  # of CUDA's events (cudaEventElapsedTime)
EVICTED_NS = 50_000_000  # in a pair, the caches that the other side left matter to a shorter iteration
STOPPING = 0.975  # confidence of the interval that ends sampling: stopping when it is narrow costs some of its coverage


def nothing(*_) -> None:
    """Do nothing before an iteration, or at a mark."""


class HostClock:
    """Read the host's clock at each mark, once the device has finished its work.

    `now` returns integer nanoseconds; `synchronize` waits for the device (a CPU needs no waiting). Iterations below
    `short_ns` are timed in batches, where waiting takes long."""

    queues = False  # True if the host goes on while the device still works

    def __init__(self, now: Callable[[], int] = time.perf_counter_ns, synchronize=lambda: None, short_ns: int = 0):
        self.now, self.synchronize, self.short_ns = now, synchronize, short_ns

    def start(self) -> None:
        self.synchronize()
        self.instants = [self.now()]

    def mark(self) -> None:
        self.synchronize()
        self.instants.append(self.now())

    def stop(self) -> tuple[list[int], int, int]:
        """Return nanoseconds between the marks, until now, and until the last mark.

        The last two are wall time since the start; the host may call `mark` before the device gets there."""
        wall_ns, host_ns = self.now() - self.instants[0], self.instants[-1] - self.instants[0]
        return [b - a for a, b in zip(self.instants, self.instants[1:], strict=False)], wall_ns, host_ns


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
        metrics = {f"{name}_ms": [ns / 1e6 for ns in values[self.warmup :]] for name, values in series.items()}
        metrics["warmup_ms"] = [ns / 1e6 for ns in self.total[: self.warmup]]
        metrics["minor_faults"] = self.faults[self.warmup :]
        if self.calls > 1:
            metrics["calls_a_sample"] = self.calls
        return metrics


@dataclass(frozen=True)
class Plan:
    """Decide how long to measure.

    Without a `target`, that is exactly `warmup` and then `samples` iterations. With one, these are upper limits, and
    each part also ends after `seconds`, sampling not before 10. The warm-up ends once its last iterations are steady.
    Sampling ends, after 15 or more, if the first two thirds gave a median's interval narrower than `target` percent.
    Whatever the rest says, the two parts last for the seconds of `least_s`, in which a GPU's clock rises."""

    warmup: int
    samples: int
    target: float = 0.0
    seconds: float = math.inf
    least_s: tuple[float, float] = (0.0, 0.0)

    def warm(self, totals: list[float], spent_ns: float) -> bool:
        """Return True if these iterations, which took `spent_ns`, suffice as warm-ups."""
        if spent_ns < self.least_s[0] * 1e9 and len(totals) < MOST:
            return False
        if len(totals) >= self.warmup or not self.target:
            return len(totals) >= self.warmup
        return spent_ns > self.seconds * 1e9 or steady_state.steady(totals) is not None

    def enough(self, totals: list[float], spent_ns: float) -> bool:
        """Return True if these samples, which took `spent_ns`, suffice."""
        n = len(totals)
        if spent_ns < self.least_s[1] * 1e9 and n < MOST:
            return False
        if n >= self.samples or not self.target or n < LEAST:
            return n >= self.samples
        if spent_ns > self.seconds * 1e9:
            return True
        first, look = LEAST, LEAST + LEAST // 2
        while look < n:
            first, look = look, look + look // 2
        if look > n:
            return False
        earlier = totals[:first]  # they may look narrow by luck, so half as many samples more were taken
        low, high = intervals.order_statistics(earlier, STOPPING)
        return high - low <= self.target / 100 * statistics.median(earlier)


def measure(
    iteration: Iteration, clock, plan: Plan, before: Callable[[], None] = nothing, repeats: bool | None = None
) -> Samples:
    """Time the iterations of the plan under `clock`, calling `before` untimed before each.

    If an iteration `repeats`, it can follow another without `before`; by default that is so where it does nothing.
    On a GPU, such iterations run in batches where they are short (see `batches`). The garbage collector is off
    meanwhile. Raises ValueError when two iterations mark different phases."""
    found, spent_ns = Samples(), 0.0
    repeats = before is nothing if repeats is None else repeats

    def once() -> None:
        nonlocal spent_ns
        before()
        earlier = minor_faults()
        durations, wall_ns, host_ns = _once(iteration, clock, found.calls, len(found.phases) > 1)
        found.faults.append(minor_faults() - earlier)
        if found.wall and list(durations) != list(found.phases):
            phases = list(found.phases)
            raise ValueError(f"phases: got {list(durations)}, expected those of the first iteration, {phases}")
        for name, ns in durations.items():
            found.phases.setdefault(name, []).append(ns)
        found.total.append(sum(durations.values()))
        found.wall.append(wall_ns)
        found.host += [host_ns] * clock.queues
        spent_ns += wall_ns * found.calls

    with _without_collector():
        while not plan.warm(found.total, spent_ns):
            once()
            if len(found.total) == LEAST and repeats:
                (found.calls,) = batches(clock, found.total)
        found.warmup, spent_ns = len(found.total), 0.0
        while not plan.enough(found.total[found.warmup :], spent_ns):
            once()
    return found


def batches(clock, *totals: list[float]) -> list[int]:
    """Return how many calls to time together, of each iteration that took these times.

    Several on a device if one of them is short: launch and events would count as its time."""
    middles = [statistics.median(times) for times in totals]
    short = min(middles) < clock.short_ns
    return [math.ceil(BATCH * clock.short_ns / max(middle, RESOLUTION_NS)) if short else 1 for middle in middles]


@dataclass(frozen=True)
class Pairs:
    """Hold the times of two iterations that ran in pairs, in nanoseconds.

    `phases` has the times of each phase that both mark: those of the first iteration and those of the second. Each
    time is that of one iteration, or the mean of a batch: `calls` has the sizes of the first's and the second's."""

    first: list[float] = field(default_factory=list)
    second: list[float] = field(default_factory=list)
    phases: dict[str, tuple[list[float], list[float]]] = field(default_factory=dict)
    calls: list[int] = field(default_factory=lambda: [1, 1])

    def add(self, first: dict[str, float], second: dict[str, float]) -> None:
        """Add the phases of one pair."""
        self.first.append(sum(first.values()))
        self.second.append(sum(second.values()))
        for phase in first.keys() & second.keys():
            for times, ns in zip(self.phases.setdefault(phase, ([], [])), (first[phase], second[phase]), strict=True):
                times.append(ns)

    def metrics(self) -> dict[str, list[float] | int]:
        """Return `paired_ms` of the first and `baseline_ms` of the second iteration.

        If there are several phases, each has `paired_<phase>_ms` and `baseline_<phase>_ms`. Of batches,
        `calls_a_pair` has both sizes."""
        series = {"": (self.first, self.second)}
        series |= {f"{phase}_": both for phase, both in sorted(self.phases.items()) if len(self.phases) > 1}
        times = {
            f"{side}_{phase}ms": [ns / 1e6 for ns in times]
            for phase, both in series.items()
            for side, times in zip(("paired", "baseline"), both, strict=True)
        }
        return times | ({"calls_a_pair": self.calls} if max(self.calls) > 1 else {})


def compare(
    first: Iteration, second: Iteration, clock, most: int = 400, seconds: float = math.inf, seed: int = 0,
    before: tuple[Callable[[], None], Callable[[], None]] = (nothing, nothing), repeats: bool | None = None,
    effect: float = intervals.EFFECT, least_s: float = 0.0,
) -> Pairs:  # fmt: skip
    """Time two iterations in pairs, in random order.

    Every second pair reverses the order of the one before. A few uncounted pairs, which last for `least_s` or more,
    warm up both sides. An iteration below 50 ms runs once uncounted before it counts, since the other one has evicted
    its data from the caches. Short ones that both can repeat count in batches, as in `measure`. The spread of 10 pairs
    says how many are needed to see a relative difference of `effect`; more follow if those spread wider. It stops at
    `most` pairs or, after the fifth, once all that ran has taken `seconds`."""
    coin, warm, sides = random.Random(seed), Pairs(), ((first, before[0]), (second, before[1]))
    calls, phases, fastest_ns, spent_ns = [1, 1], [1, 1], [math.inf, math.inf], 0.0
    repeats = before == (nothing, nothing) if repeats is None else repeats

    def once(order: tuple[int, int]) -> list[dict[str, float]]:
        nonlocal spent_ns
        taken = [{}, {}]
        for side in order:
            iteration, prepare = sides[side]
            for count in [1] * (fastest_ns[side] < EVICTED_NS) + [calls[side]]:  # the last one counts
                prepare()
                taken[side], wall_ns, _ = _once(iteration, clock, count, phases[side] > 1)
                phases[side] = len(taken[side])
                fastest_ns[side] = min(fastest_ns[side], wall_ns)
                spent_ns += wall_ns * count
        return taken

    with _without_collector():
        while not warm.first or spent_ns < 1e9 * max(least_s, seconds / 5 if len(warm.first) < UNCOUNTED else 0):
            warm.add(*once((0, 1)))
        if repeats:
            calls = batches(clock, warm.first, warm.second)
        pairs, planned, orders, spent_ns = Pairs(calls=calls), PILOT, [], 0.0
        while len(pairs.first) < min(planned, most):
            if len(pairs.first) >= LEAST_PAIRS and spent_ns > seconds * 1e9:
                break
            orders = orders or coin.sample(((0, 1), (1, 0)), 2)  # each side goes first equally often
            pairs.add(*once(orders.pop()))
            if len(pairs.first) == planned:
                logs = [math.log(a / b) for a, b in zip(pairs.first, pairs.second, strict=True)]
                planned = intervals.pairs_needed(logs, effect)
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


def _once(iteration: Iteration, clock, calls: int, every: bool = False) -> tuple[dict[str, float], float, float]:
    """Return what `clock.stop` does, for the mean of the calls; the last one marks, or `every` one."""
    names: list[str] = []

    def mark(name: str) -> None:
        clock.mark()
        names.append(name)

    clock.start()
    for _ in range(calls - 1):
        iteration(mark if every else nothing)
    iteration(mark)
    durations, wall_ns, host_ns = clock.stop()
    found = dict.fromkeys(names, 0.0)
    if not names or len(names) != len(found) * (calls if every else 1):
        raise ValueError(f"phases: got {names}, expected each phase to be marked once")
    for name, ns in zip(names, durations, strict=True):
        found[name] += ns / calls
    return found, wall_ns / calls, host_ns / calls
