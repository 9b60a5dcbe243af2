"""Times the phases of one iteration by marks inside it, and keeps every sample; knows no model.

An iteration is a callable that takes `mark` and calls `mark(name)` where each of its phases ends.
"""

import gc
import time
from collections.abc import Callable
from dataclasses import dataclass, field

import torch

Mark = Callable[[str], None]
Iteration = Callable[[Mark], None]


class HostClock:
    """Reads the host's clock at each mark, once the device has finished what it was given.

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
        """Nanoseconds between the marks, and on the wall from the start to now."""
        wall_ns = self.now() - self.instants[0]
        return [b - a for a, b in zip(self.instants, self.instants[1:], strict=False)], wall_ns


class CudaClock:
    """Records a CUDA event at each mark, and waits for the device once, when the iteration is over."""

    def start(self) -> None:
        torch.cuda.synchronize()
        self.began_ns = time.perf_counter_ns()
        self.events = []
        self.mark()

    def mark(self) -> None:
        self.events.append(torch.cuda.Event(enable_timing=True))
        self.events[-1].record()

    def stop(self) -> tuple[list[int], int]:
        """Nanoseconds of device time between the marks, and on the wall from the start to the end of it all."""
        torch.cuda.synchronize()
        wall_ns = time.perf_counter_ns() - self.began_ns
        pairs = zip(self.events, self.events[1:], strict=False)
        return [round(a.elapsed_time(b) * 1e6) for a, b in pairs], wall_ns


def clock(device: str) -> HostClock | CudaClock:
    """The clock for a device: cpu, cuda or mps."""
    if device == "cuda":
        return CudaClock()
    return HostClock(synchronize=torch.mps.synchronize) if device == "mps" else HostClock()


@dataclass(frozen=True)
class Samples:
    """Every iteration in the order in which it ran, in nanoseconds; the first `warmup` are warm-ups."""

    warmup: int
    phases: dict[str, list[int]] = field(default_factory=dict)
    wall: list[int] = field(default_factory=list)

    def metrics(self) -> dict[str, list[float]]:
        """Milliseconds: `<phase>_ms`, their sum `total_ms` and `wall_ms` of the measured iterations, and
        `warmup_ms`, the totals of the warm-ups."""
        total = [sum(sample) for sample in zip(*self.phases.values(), strict=True)]
        series = {**self.phases, "total": total, "wall": self.wall}
        metrics = {f"{name}_ms": [ns / 1e6 for ns in values[self.warmup :]] for name, values in series.items()}
        return metrics | {"warmup_ms": [ns / 1e6 for ns in total[: self.warmup]]}


def measure(iteration: Iteration, clock, warmup: int, samples: int, before=lambda: None) -> Samples:
    """Run `warmup` + `samples` iterations under `clock`, calling `before` outside the timed region of each.

    The garbage collector is off meanwhile and restored after. Raises ValueError when two iterations mark
    different phases."""
    result = Samples(warmup)
    collecting = gc.isenabled()
    gc.collect()
    gc.disable()
    try:
        for _ in range(warmup + samples):
            before()
            phases, wall_ns = _once(iteration, clock)
            if result.wall and list(phases) != list(result.phases):
                raise ValueError(f"phases: {list(phases)} differ from the first, {list(result.phases)}")
            for name, ns in phases.items():
                result.phases.setdefault(name, []).append(ns)
            result.wall.append(wall_ns)
    finally:
        if collecting:
            gc.enable()
    return result


def _once(iteration: Iteration, clock) -> tuple[dict[str, int], int]:
    names = []

    def mark(name: str) -> None:
        clock.mark()
        names.append(name)

    clock.start()
    iteration(mark)
    durations, wall_ns = clock.stop()
    if not names or len(set(names)) < len(names):
        raise ValueError(f"phases: an iteration marks each of its phases once, not {names}")
    return dict(zip(names, durations, strict=True)), wall_ns
