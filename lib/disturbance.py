"""Notices what disturbs a measurement from outside, the work of other processes and steps of the wall clock; measures
nothing itself, and reads only counters that the system keeps anyway.
"""

import json
import os
import time
from dataclasses import asdict, dataclass, replace
from datetime import UTC, datetime

import psutil

LEAST_SECONDS = 1.0  # between two looks; the counters count hundredths of a second
NOTICEABLE_SECONDS = 1.0  # of a step of the wall clock
_IDLE = ("idle", "iowait")
_WITHIN = ("guest", "guest_nice")  # what `user` and `nice` contain already


@dataclass(frozen=True)
class Look:
    """The counters at one moment, in seconds: of all cores together, and of this process with its descendants. What a
    hypervisor gave to other machines counts as busy; inside a container they are those of the whole machine."""

    at: float
    all: float
    busy: float
    own: float


def look() -> Look:
    """The counters now."""
    times = psutil.cpu_times()._asdict()
    every = sum(seconds for kind, seconds in times.items() if kind not in _WITHIN)
    idle = sum(times.get(kind, 0.0) for kind in _IDLE)
    own = sum(os.times()[:4]) + sum(map(_spent, psutil.Process().children(recursive=True)))
    return Look(time.monotonic(), every, every - idle, own)


def handed_on() -> str:
    """A look for the process that is about to be started, which has used nothing yet: its `SWEEP_LOOK`."""
    return json.dumps(asdict(replace(look(), own=0.0)))


def first() -> Look:
    """The look from which on this process is watched: the one it was handed, else now."""
    return Look(**json.loads(os.environ["SWEEP_LOOK"])) if "SWEEP_LOOK" in os.environ else look()


def _spent(child: psutil.Process) -> float:
    """Seconds of a child that is alive and of those that it has waited for; none of one that is just gone."""
    try:
        return sum(child.cpu_times()[:4])
    except psutil.Error:
        return 0.0


def others_percent(before: Look, after: Look) -> float | None:
    """The share of all cores' time between two looks that others used, in percent; None where they are too close to
    each other to tell, or the system does not count."""
    seconds = after.all - before.all
    if after.at - before.at < LEAST_SECONDS or seconds <= 0:
        return None
    used = (after.busy - before.busy) - (after.own - before.own)
    return round(100 * min(1.0, max(0.0, used / seconds)), 1)


def now() -> datetime:
    """What the wall clock says, the one place where it is asked."""
    return datetime.now(UTC)


class Period:
    """The time from its making to its `end`, by a clock that nobody sets; `noticed` is what the environment of a record
    made in it tells: `others_percent`, from the period before this one or else the start of this process, where that is
    known, and once it has ended `clock_stepped_s`, by how much the wall clock was set meanwhile."""

    last = first()

    def __init__(self):
        self.noticed, at_present = {}, look()
        percent = others_percent(Period.last, at_present)
        if percent is not None:  # else the next one looks further back
            self.noticed["others_percent"], Period.last = percent, at_present
        self.wall, self.began = now(), time.monotonic()

    @property
    def started(self) -> str:
        """When it began, by the wall clock."""
        return self.wall.isoformat(timespec="seconds")

    def end(self) -> float:
        """How many seconds it took."""
        seconds = time.monotonic() - self.began
        stepped_s = (now() - self.wall).total_seconds() - seconds
        if abs(stepped_s) > NOTICEABLE_SECONDS:
            self.noticed["clock_stepped_s"] = round(stepped_s, 1)
        return seconds
