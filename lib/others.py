"""Tells how much of the machine other processes use, from counters that the system keeps anyway; measures nothing.

What a hypervisor gave to other machines counts too. On a machine shared through containers the counters are those of
the whole of it.
"""

import os
import time

import psutil

LEAST_SECONDS = 1.0  # between two looks; the counters count hundredths of a second
_IDLE = ("idle", "iowait")
_WITHIN = ("guest", "guest_nice")  # what `user` and `nice` contain already


class Look:
    """The counters at one moment, in seconds: of all cores together, and of this process with its descendants."""

    def __init__(self):
        times = psutil.cpu_times()._asdict()
        self.at = time.monotonic()
        self.all = sum(seconds for kind, seconds in times.items() if kind not in _WITHIN)
        self.busy = self.all - sum(times.get(kind, 0.0) for kind in _IDLE)
        self.own = sum(os.times()[:4]) + sum(map(_spent, psutil.Process().children(recursive=True)))


def _spent(child: psutil.Process) -> float:
    """Seconds of a child that is alive and of those that it has waited for; none of one that is just gone."""
    try:
        return sum(child.cpu_times()[:4])
    except psutil.Error:
        return 0.0


def percent(before: Look, after: Look) -> float | None:
    """The share of all cores' time between two looks that others used, in percent; None where they are too close to
    each other to tell, or the system does not count."""
    seconds = after.all - before.all
    if after.at - before.at < LEAST_SECONDS or seconds <= 0:
        return None
    used = (after.busy - before.busy) - (after.own - before.own)
    return round(100 * min(1.0, max(0.0, used / seconds)), 1)
