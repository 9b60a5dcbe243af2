"""Notices what disturbs a measurement from outside: a busy machine, the work of others, steps of the wall clock."""

import contextlib
import os
import time
from dataclasses import dataclass
from datetime import UTC, datetime

import psutil
import torch

from lib import precision, timing

LEAST_SECONDS = 0.5  # between two looks; the counters count hundredths of a second
NOTICEABLE_SECONDS = 1.0  # of a step of the wall clock


def probe(device: str) -> list[float]:
    """Time 10 small matrix products, always the same, after 3 that do not count, in milliseconds.

    They take longer where less of the machine is left to whoever measures."""
    rows = 256 if device == "cpu" else 2048
    matrix = torch.ones(rows, rows, device=device)
    out = torch.empty_like(matrix)

    def iteration(mark: timing.Mark) -> None:
        torch.mm(matrix, matrix, out=out)
        mark("run")

    with precision.strict():  # whatever the case beside it computes in
        return timing.measure(iteration, timing.clock(device), timing.Plan(3, 10)).metrics()["total_ms"]


@dataclass(frozen=True)
class Look:
    """CPU seconds `at` one moment: of all cores, of those the `busy` ones, and of those the `own` ones.

    A hypervisor's other machines count as busy; inside a container the seconds are those of the whole machine."""

    at: float
    all: float
    busy: float
    own: float


def look() -> Look:
    """Read the counters. Own are this process and its descendants, in a sweep those of all kernels side by side."""
    times = psutil.cpu_times()._asdict()
    every = sum(seconds for kind, seconds in times.items() if kind not in ("guest", "guest_nice"))  # user has these
    idle, own, me = times["idle"] + times.get("iowait", 0.0), 0.0, psutil.Process()
    # whoever starts a machine's kernels: the supervisor, on a node of a cluster Ray
    top = psutil.Process(int(os.environ.get("RAY_RAYLET_PID", me.ppid()))) if "SWEEP_RUN" in os.environ else me
    for process in (top, *top.children(recursive=True)):
        with contextlib.suppress(psutil.Error):  # it is just gone
            # with those that it waited for, of which macOS tells a process itself alone
            own += sum(os.times()[:4] if process == me else process.cpu_times()[:4])
    return Look(time.monotonic(), every, every - idle, own)


def others_percent(before: Look, after: Look) -> float | None:
    """Return the percentage of all cores' time between two looks that others used.

    None where the looks are too close to each other, or the system does not count."""
    seconds = after.all - before.all
    if after.at - before.at < LEAST_SECONDS or seconds <= 0:
        return None
    used = (after.busy - before.busy) - (after.own - before.own)
    return round(100 * min(1.0, max(0.0, used / seconds)), 1)


def now() -> datetime:
    """Ask the wall clock."""
    return datetime.now(UTC)


class Period:
    """The time from its making to its `end`, by a clock that nobody sets.

    Then `noticed` has what the environment of a record made in it tells: `others_percent`, where that is known, and
    `clock_stepped_s`, by how much the wall clock was set meanwhile, if it was."""

    def __init__(self):
        self.noticed: dict[str, float] = {}
        self.wall, self.before = now(), look()

    @property
    def started(self) -> str:
        """When it began, by the wall clock."""
        return self.wall.isoformat(timespec="seconds")

    def end(self) -> float:
        """Return how many seconds it took."""
        after, wall = look(), now()
        seconds = after.at - self.before.at
        stepped_s = (wall - self.wall).total_seconds() - seconds
        if abs(stepped_s) > NOTICEABLE_SECONDS:
            self.noticed["clock_stepped_s"] = round(stepped_s, 1)
        percent = others_percent(self.before, after)
        if percent is not None:
            self.noticed["others_percent"] = percent
        return seconds
