"""Show a sweep's progress: a bar in its terminal, and a status file beside the records for others.

Reading a status takes no lock: a sweep on this host runs if its process is alive, one elsewhere if its file says so.
"""

import contextlib
import getpass
import json
import math
import os
import platform
import statistics
import sys
import time
from collections.abc import Iterable
from datetime import UTC, datetime
from pathlib import Path
from typing import TextIO

import psutil
from tqdm import tqdm

from lib.instruments.processes import is_alive
from lib.sweep import lock
from lib.sweep.lock import Shard

FIELDS = {
    "sweep": str, "shard": str, "state": str, "process": int, "user": str, "host": str, "started": str, "updated": str,
    "done": int, "all": int, "failed": int, "left_s": int | float, "in_hand": list,
}  # fmt: skip
EXPECTED_S = 120  # as long as this counts the pace that was expected, beside that of the sweep so far
CLOCK_STEP_S = 60  # largest change of the wall clock allowed since a process began


def file(folder: Path, shard: Shard) -> Path:
    """Return the status file of a shard."""
    return shard.file(folder, ".status", ".json")


def statuses(folder: Path) -> list[dict]:
    """Read the status files of a folder, the latest first; `running` is added to each."""
    found = filter(None, map(_read, folder.glob(".status-*-of-*.json")))
    return sorted(found, key=lambda one: one["updated"], reverse=True)


def _read(path: Path) -> dict | None:
    """Read a status file, or return None unless each field has its type."""
    with contextlib.suppress(OSError, ValueError, RecursionError, KeyError, TypeError):
        one = json.loads(path.read_text())
        lock.parse(one["shard"])
        if all(isinstance(one[name], kind) for name, kind in FIELDS.items()) and math.isfinite(one["left_s"]):
            return one | {"running": one["state"] == "running" and _is_running(one)}
    return None


def _is_running(one: dict) -> bool:
    """Tell if a supervisor's process is alive; on another host it is assumed to be."""
    if one["host"] != platform.node():
        return True
    with contextlib.suppress(psutil.Error, OverflowError):
        process = psutil.Process(one["process"])
        later_s = process.create_time() - datetime.fromisoformat(one["started"]).timestamp()
        return is_alive(process) and later_s < CLOCK_STEP_S  # later: another process has its number
    return False


def owner(folder: Path, shard: Shard) -> str:
    """Describe the sweep that holds a shard of a folder."""
    one = _read(file(folder, shard))
    return line(one) if one and one["running"] else "another sweep, which has not reported yet"


def line(one: dict) -> str:
    """Describe a status in one line."""
    who = f"sweep {one['sweep']}" + (f", shard {one['shard']}" if one["shard"] != str(lock.WHOLE) else "")
    where = f"process {one['process']} of {one['user']} on {one['host']}, since {one['started']}"
    where += f", last updated {one['updated']}" if one["running"] else ""
    state = "ended unexpectedly" if one["state"] == "running" and not one["running"] else one["state"]
    text = f"{who}: {state}, {one['done']} of {one['all']} records, {one['failed']} failed ({where})"
    if one["running"]:
        text += "".join(f"; now {name}" for name in one["in_hand"]) + f"; about {clock(one['left_s'])} left"
    return text


def clock(seconds: float) -> str:
    """Format seconds as h:mm:ss or m:ss."""
    minutes, rest = divmod(round(seconds), 60)
    return f"{minutes // 60}:{minutes % 60:02d}:{rest:02d}" if minutes >= 60 else f"{minutes}:{rest:02d}"


class _Quiet:
    """A stream that ignores a closed pipe or a full disk."""

    def __init__(self, stream: TextIO):
        self._stream = stream

    def __getattr__(self, name: str):
        return getattr(self._stream, name)

    def write(self, text: str) -> None:
        """Write if possible."""
        with contextlib.suppress(OSError):
            self._stream.write(text)

    def flush(self) -> None:
        """Flush if possible."""
        with contextlib.suppress(OSError):
            self._stream.flush()


class Progress:
    """A sweep's bar and status file.

    The time left sums what each case `took_s` earlier (by machine and record; else the median of those known).
    It is scaled by the pace so far, which counts little in the first minutes, and divided by the number of slots,
    `lanes`."""

    def __init__(
        self, folder: Path, shard: Shard, sweep: str, done: int, took_s: dict[tuple[str, str], float | None], lanes: int
    ):
        self.path, self.shard, self.sweep, self.lanes = file(folder, shard), shard, sweep, lanes
        self.took_s, self.left = took_s, set(took_s)
        timed = [each for each in took_s.values() if each]
        self.typical = statistics.median(timed) if timed else 5.0
        self.spent, self.promised, self.failed = 0.0, 0.0, 0
        self.current: dict[object, tuple[tuple[str, str], float]] = {}  # the case at each slot, and its start
        self.started = now()
        shape = "{desc} {bar} {n_fmt}/{total_fmt}, {elapsed} elapsed{postfix}"
        self.bar = tqdm(
            total=done + len(took_s), initial=done, unit="case", dynamic_ncols=True, bar_format=shape,
            file=_Quiet(sys.stderr),
        )  # fmt: skip
        self.write("running")

    def begins(self, slot: object, key: tuple[str, str]) -> None:
        """Note that a case begins at a slot."""
        self.current[slot] = key, time.monotonic()
        shown = key[1].replace("/", "  ", 1)
        self.bar.set_description_str(shown[:56].ljust(56), refresh=False)
        self._show()

    def ends(self, slot: object, key: tuple[str, str], failed: bool = False) -> None:
        """Note that a case is done or given up."""
        case, began = self.current.pop(slot, (None, 0.0))
        if case == key:
            self.spent += time.monotonic() - began
            self.promised += self._seconds(key)
        self.failed += failed
        if key in self.left:
            self.left.discard(key)
            self.bar.update()
        self._show()

    def adds(self, keys: list[tuple[str, str]]) -> None:
        """Note further cases to measure."""
        self.left |= set(keys)
        self.bar.total += len(keys)

    def drops(self, keys: Iterable[tuple[str, str]]) -> None:
        """Remove cases that will not be measured, such as those that failed in another round."""
        dropped = self.left & set(keys)
        self.left -= dropped
        self.bar.total -= len(dropped)

    @property
    def left_s(self) -> float:
        """Estimate the seconds left."""
        pace = (EXPECTED_S + self.spent) / (EXPECTED_S + self.promised)
        return pace * sum(map(self._seconds, self.left)) / self.lanes

    def _seconds(self, key: tuple[str, str]) -> float:
        return self.took_s.get(key) or self.typical

    def _show(self) -> None:
        self.bar.set_postfix_str(f"about {clock(self.left_s)} left", refresh=False)
        self.bar.refresh()
        self.write("running")

    def write(self, state: str) -> None:
        """Write the status file, completely or not at all; errors are ignored."""
        one = {
            "sweep": self.sweep, "shard": str(self.shard), "state": state, "process": os.getpid(), "user": _user(),
            "host": platform.node(), "started": self.started, "updated": now(), "done": self.bar.n,
            "all": self.bar.total, "failed": self.failed, "left_s": round(self.left_s, 1),
            "in_hand": [name for (_, name), _ in self.current.values()],
        }  # fmt: skip
        temporary = self.path.with_suffix(".new")
        with contextlib.suppress(OSError):
            temporary.write_text(json.dumps(one))
            os.replace(temporary, self.path)

    def close(self, state: str) -> None:
        """Close the bar and write the final state."""
        self.current.clear()
        self.bar.close()
        self.write(state)


def _user() -> str:
    try:
        return getpass.getuser()
    except (OSError, KeyError):  # a container may have users without a name
        return f"number {os.getuid()}"


def now() -> str:
    """Return the current time in the format of records."""
    return datetime.now(UTC).isoformat(timespec="seconds")
