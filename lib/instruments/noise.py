"""Detect disturbances of a measurement: a busy machine, other work, steps of the wall clock."""

import contextlib
import os
import time
from dataclasses import dataclass
from datetime import UTC, datetime

import psutil
import torch

from lib import precision, timing
from lib.instruments.device import on

PROBE_S = 0.05  # that the probe's warm-up and its products each last on a GPU; on a CPU their number is enough
LEAST_SECONDS = 0.5  # between two readings; the counters count hundredths of a second
NOTICEABLE_SECONDS = 1.0  # of a step of the wall clock


def probe(device: str) -> list[float]:
    """Time the noise probe: 10 equal matrix products or more after 3 warm-ups, in milliseconds.

    They take longer while other work uses the machine."""
    rows = 256 if device == "cpu" else 2048
    plan = timing.Plan(3, 10, least_s=tuple(min(PROBE_S, least_s) for least_s in on(device).least_s))
    matrix = torch.ones(rows, rows, device=device)
    out = torch.empty_like(matrix)

    def iteration(mark: timing.Mark) -> None:
        torch.mm(matrix, matrix, out=out)
        mark("run")

    with precision.strict():  # whatever the case's precision
        return timing.measure(iteration, on(device).clock(), plan).metrics()["total_ms"]


@dataclass(frozen=True)
class CpuSeconds:
    """Hold CPU seconds `at` one moment: of all cores, the `busy` ones, and our `own`.

    A hypervisor's other machines count as busy. In a container, the seconds are those of the whole machine."""

    at: float
    all: float
    busy: float
    own: float


def cpu_seconds() -> CpuSeconds:
    """Read the counters. Own are this process and its descendants, or all kernels in a sweep."""
    times = psutil.cpu_times()._asdict()
    every = sum(seconds for kind, seconds in times.items() if kind not in ("guest", "guest_nice"))  # part of user
    idle, own, me = times["idle"] + times.get("iowait", 0.0), 0.0, psutil.Process()
    # the process that starts this machine's kernels: the supervisor, or Ray on a node of a cluster
    top = psutil.Process(int(os.environ.get("RAY_RAYLET_PID", me.ppid()))) if "SWEEP_RUN" in os.environ else me
    for process in (top, *top.children(recursive=True)):
        with contextlib.suppress(psutil.Error):  # the process has just ended
            # includes ended children, which macOS reports to a process itself only
            own += sum(os.times()[:4] if process == me else process.cpu_times()[:4])
    return CpuSeconds(time.monotonic(), every, every - idle, own)


def others_percent(before: CpuSeconds, after: CpuSeconds) -> float | None:
    """Return the percentage of all cores' time that others used between two readings.

    Returns None if the readings are too close to each other, or if the system does not count."""
    seconds = after.all - before.all
    if after.at - before.at < LEAST_SECONDS or seconds <= 0:
        return None
    used = (after.busy - before.busy) - (after.own - before.own)
    return round(100 * min(1.0, max(0.0, used / seconds)), 1)


def now() -> datetime:
    """Read the wall clock."""
    return datetime.now(UTC)


class Period:
    """Measure the time from its creation to `end`, by a clock that nobody sets.

    `end` fills `noticed` for the record's environment: `others_percent`, if known, and `clock_stepped_s`, the seconds
    by which the wall clock was set meanwhile, if it was."""

    def __init__(self):
        self.noticed: dict[str, float] = {}
        self.wall, self.before = now(), cpu_seconds()

    @property
    def started(self) -> str:
        """Return when it began, by the wall clock."""
        return self.wall.isoformat(timespec="seconds")

    def end(self) -> float:
        """Return how many seconds it took."""
        after, wall = cpu_seconds(), now()
        seconds = after.at - self.before.at
        stepped_s = (wall - self.wall).total_seconds() - seconds
        if abs(stepped_s) > NOTICEABLE_SECONDS:
            self.noticed["clock_stepped_s"] = round(stepped_s, 1)
        percent = others_percent(self.before, after)
        if percent is not None:
            self.noticed["others_percent"] = percent
        return seconds
