"""Notices what disturbs a measurement from outside, the work of other processes and steps of the wall clock; measures
nothing itself, and reads only counters that the system keeps anyway.
"""

import contextlib
import json
import os
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from datetime import UTC, datetime

import psutil

LEAST_SECONDS = 1.0  # between two looks; the counters count hundredths of a second
NOTICEABLE_SECONDS = 1.0  # of a step of the wall clock
_IDLE = ("idle", "iowait")
_WITHIN = ("guest", "guest_nice")  # what `user` and `nice` contain already


@dataclass(frozen=True)
class Look:
    """The counters at one moment, in seconds: of all cores together, and `own`, of the process `root` and its
    descendants with all that they have waited for; in `living` by number what each of them used itself. What a
    hypervisor gave to other machines counts as busy; inside a container they are those of the whole machine."""

    at: float
    all: float
    busy: float
    own: float
    living: dict[str, float] = field(default_factory=dict)
    root: int = 0


def look(root: int = 0) -> Look:
    """The counters now, where `root`, or else this process, and its descendants are no others."""
    times = psutil.cpu_times()._asdict()
    every = sum(seconds for kind, seconds in times.items() if kind not in _WITHIN)
    idle = sum(times.get(kind, 0.0) for kind in _IDLE)
    spent: dict[str, Sequence[float]] = {}
    with contextlib.suppress(psutil.NoSuchProcess):  # whoever started this one may be gone
        top = psutil.Process(root or os.getpid())
        spent = {str(process.pid): _spent(process) for process in (top, *top.children(recursive=True))}
    living = {number: user + system for number, (user, system, *_) in spent.items()}
    return Look(time.monotonic(), every, every - idle, sum(map(sum, spent.values())), living, root)


def handed_on() -> str:
    """A look for the process that is about to be started, its `SWEEP_LOOK`. Its root is this process, so that kernels
    that run side by side are no others to each other; on a node of a cluster it is Ray's, which starts all of them."""
    return json.dumps(asdict(look(int(os.environ.get("RAY_RAYLET_PID", os.getpid())))))


def first() -> Look:
    """The look from which on this process is watched: the one it was handed, else now."""
    return Look(**json.loads(os.environ["SWEEP_LOOK"])) if "SWEEP_LOOK" in os.environ else look()


def _spent(process: psutil.Process) -> Sequence[float]:
    """Seconds of a process that is alive, and of those that it has waited for, each in user mode and in the system;
    none of one that is just gone."""
    if process.pid == os.getpid():
        return os.times()[:4]  # the only place where macOS tells of those that were waited for
    try:
        return process.cpu_times()[:4]
    except psutil.Error:
        return (0.0,) * 4


def others_percent(before: Look, after: Look) -> float | None:
    """The share of all cores' time between two looks that others used, in percent; None where they are too close to
    each other to tell, or the system does not count. What a process used in all is lost from `own` when it ends and
    its parent is gone; then what the living used in the meantime is the better estimate."""
    seconds = after.all - before.all
    if after.at - before.at < LEAST_SECONDS or seconds <= 0:
        return None
    living = sum(max(0.0, spent - before.living.get(number, 0.0)) for number, spent in after.living.items())
    used = (after.busy - before.busy) - max(after.own - before.own, living)
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
        self.noticed, at_present = {}, look(Period.last.root)
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
