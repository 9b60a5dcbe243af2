"""Shows how far a sweep is: a bar where it runs, and a small file beside the records for other terminals.

Imports nothing heavy, and takes no lock: a sweep on this host runs where its process lives, another as it last told.
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
from datetime import UTC, datetime
from pathlib import Path
from typing import TextIO

import psutil
from tqdm import tqdm

from lib.sweep import lock, processes
from lib.sweep.lock import Shard

FIELDS = {
    "sweep": str, "shard": str, "state": str, "process": int, "user": str, "host": str, "started": str, "updated": str,
    "done": int, "all": int, "failed": int, "left_s": int | float, "in_hand": list,
}  # fmt: skip
CLOCK_STEP_S = 60  # by which the wall clock may have been set since a process began


def file(folder: Path, shard: Shard) -> Path:
    """Return the file in which a supervisor tells how far it is with its shard."""
    return shard.file(folder, ".status", ".json")


def told(folder: Path) -> list[dict]:
    """Return what the supervisors of a folder told last, the latest first, each with whether it is `running`."""
    found = []
    for path in folder.glob(".status-*-of-*.json"):
        with contextlib.suppress(OSError, ValueError, RecursionError):
            found.append(_parsed(path.read_text()))
    return sorted(found, key=lambda one: one["updated"], reverse=True)


def _parsed(text: str) -> dict:
    """Return what a status file tells. Raises ValueError unless every field is there and of its type."""
    one = json.loads(text)
    if not isinstance(one, dict) or not all(isinstance(one.get(name), kind) for name, kind in FIELDS.items()):
        raise ValueError("status: it is none")
    if not math.isfinite(one["left_s"]):
        raise ValueError("left_s: must be finite")
    lock.parse(one["shard"])
    return one | {"running": one["state"] == "running" and _lives(one)}


def _lives(one: dict) -> bool:
    """Tell whether the process of a supervisor lives, as far as can be seen from this host."""
    if one["host"] != platform.node():
        return True
    with contextlib.suppress(psutil.Error, OverflowError):
        process = psutil.Process(one["process"])
        later_s = process.create_time() - datetime.fromisoformat(one["started"]).timestamp()
        return processes.lives(process) and later_s < CLOCK_STEP_S  # else another process got its number
    return False


def owner(folder: Path, shard: Shard) -> str:
    """Say who holds a shard of a folder."""
    with contextlib.suppress(OSError, ValueError, RecursionError):
        one = _parsed(file(folder, shard).read_text())
        if one["running"]:
            return line(one)
    return "a sweep that has not told anything yet"


def line(one: dict) -> str:
    """Say in one line what a supervisor told."""
    who = f"sweep {one['sweep']}" + (f", shard {one['shard']}" if one["shard"] != str(lock.WHOLE) else "")
    where = f"process {one['process']} of {one['user']} on {one['host']}, since {one['started']}"
    where += f", last told {one['updated']}" if one["running"] else ""
    state = "ended without a word" if one["state"] == "running" and not one["running"] else one["state"]
    text = f"{who}: {state}, {one['done']} of {one['all']} records, {one['failed']} failed ({where})"
    if one["running"]:
        text += "".join(f"; now {name}" for name in one["in_hand"]) + f"; about {clock(one['left_s'])} left"
    return text


def clock(seconds: float) -> str:
    """Seconds as h:mm:ss or m:ss."""
    minutes, rest = divmod(round(seconds), 60)
    return f"{minutes // 60}:{minutes % 60:02d}:{rest:02d}" if minutes >= 60 else f"{minutes}:{rest:02d}"


class _Quiet:
    """A stream that says nothing where nobody can hear it, a closed pipe or a full disk."""

    def __init__(self, stream: TextIO):
        self._stream = stream

    def __getattr__(self, name: str):
        return getattr(self._stream, name)

    def write(self, text: str) -> None:
        """Write, or not."""
        with contextlib.suppress(OSError):
            self._stream.write(text)

    def flush(self) -> None:
        """Write what is still held back, or not."""
        with contextlib.suppress(OSError):
            self._stream.flush()


class Progress:
    """The state of a sweep as it goes on: its bar, and its file in the folder. The time left is what the same cases
    took when they were last measured (`known`, seconds by machine and name; the median of them for others), scaled by
    what is done so far, over so many `lanes` side by side."""

    def __init__(
        self, folder: Path, shard: Shard, sweep: str, done: int, known: dict[tuple[str, str], float | None], lanes: int
    ):
        self.path, self.shard, self.sweep, self.lanes = file(folder, shard), shard, sweep, lanes
        self.known, self.left = known, set(known)
        timed = [seconds for seconds in known.values() if seconds]
        self.typical = statistics.median(timed) if timed else 5.0
        self.spent, self.promised, self.failed = 0.0, 0.0, 0
        self.hands: dict[object, tuple[tuple[str, str], float]] = {}  # what is in hand at each slot, and since when
        self.started = now()
        shape = "{desc} {bar} {n_fmt}/{total_fmt}, {elapsed} gone{postfix}"
        self.bar = tqdm(
            total=done + len(known), initial=done, unit="case", dynamic_ncols=True, bar_format=shape,
            file=_Quiet(sys.stderr),
        )  # fmt: skip
        self.tell("running")

    def begins(self, slot: object, key: tuple[str, str]) -> None:
        """A case begins at a slot, which has one at a time."""
        self.hands[slot] = key, time.monotonic()
        shown = key[1].replace("/", "  ", 1)
        self.bar.set_description_str(shown[:56].ljust(56), refresh=False)
        self._show()

    def ends(self, slot: object, key: tuple[str, str], failed: bool = False) -> None:
        """A case is done, or given up."""
        in_hand, began = self.hands.pop(slot, (None, 0.0))
        if in_hand == key:
            self.spent += time.monotonic() - began
            self.promised += self._seconds(key)
        self.failed += failed
        if key in self.left:
            self.left.discard(key)
            self.bar.update()
        self._show()

    def drops(self, key: tuple[str, str]) -> None:
        """A case is not to be measured after all, since it ended badly in another round."""
        if key in self.left:
            self.left.discard(key)
            self.bar.total -= 1

    @property
    def left_s(self) -> float:
        """Seconds that are left, as far as one can tell."""
        pace = self.spent / self.promised if self.promised else 1.0
        return pace * sum(map(self._seconds, self.left)) / self.lanes

    def _seconds(self, key: tuple[str, str]) -> float:
        return self.known.get(key) or self.typical

    def _show(self) -> None:
        self.bar.set_postfix_str(f"about {clock(self.left_s)} left", refresh=False)
        self.bar.refresh()
        self.tell("running")

    def tell(self, state: str) -> None:
        """Write the file, whole or not at all; that it cannot be written is no reason to stop."""
        one = {
            "sweep": self.sweep, "shard": str(self.shard), "state": state, "process": os.getpid(), "user": _user(),
            "host": platform.node(), "started": self.started, "updated": now(), "done": self.bar.n,
            "all": self.bar.total, "failed": self.failed, "left_s": round(self.left_s, 1),
            "in_hand": [name for (_, name), _ in self.hands.values()],
        }  # fmt: skip
        temporary = self.path.with_suffix(".new")
        with contextlib.suppress(OSError):
            temporary.write_text(json.dumps(one))
            os.replace(temporary, self.path)

    def close(self, state: str) -> None:
        """Leave the bar as it stands, and tell how it ended."""
        self.hands.clear()
        self.bar.close()
        self.tell(state)


def _user() -> str:
    try:
        return getpass.getuser()
    except (OSError, KeyError):  # a container may have users without a name
        return f"number {os.getuid()}"


def now() -> str:
    """Return the moment as records have it."""
    return datetime.now(UTC).isoformat(timespec="seconds")
