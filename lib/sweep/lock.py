"""The share of a sweep that one supervisor does, and its lock on the results folder; imports nothing heavy.

The system frees the lock when the process ends, however it ends, so that none is ever to be removed by hand.
"""

import contextlib
import fcntl
import os
import re
import struct
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from lib.paths import LOCK
from lib.records import atomic

BYTES = 2**20  # of the lock's file: a share locks its part of them, so that what overlaps excludes one another

# what fcntl asks with, a struct flock: its shape and the order of its fields
if sys.platform == "darwin":
    _FLOCK, _FIELDS = "qqihh", ("start", "length", "process", "kind", "whence")
else:
    _FLOCK, _FIELDS = "hhqqi", ("kind", "whence", "start", "length", "process")


class Busy(Exception):
    """Another supervisor has this share of the folder, or a part of it."""


@dataclass(frozen=True)
class Share:
    """The `number`-th of `count` equal shares."""

    number: int = 1
    count: int = 1

    def __str__(self) -> str:
        return f"{self.number}/{self.count}"

    def range(self, total: int) -> range:
        """Which of so many things are in the share."""
        return range((self.number - 1) * total // self.count, self.number * total // self.count)

    def overlaps(self, other: "Share") -> bool:
        """Whether some part is in both."""
        mine, theirs = self.range(BYTES), other.range(BYTES)
        return mine.start < theirs.stop and theirs.start < mine.stop


WHOLE = Share()


def parse(text: str) -> Share:
    """The share that a text such as 2/4 names. Raises ValueError."""
    found = re.fullmatch(r"([1-9]\d{0,3})/([1-9]\d{0,3})", text)
    if not found or int(found[1]) > int(found[2]):
        raise ValueError(f"shard: {text!r} must be k/n, such as 2/4, where k is 1 to n and n at most 9999")
    return Share(int(found[1]), int(found[2]))


@contextlib.contextmanager
def held(share: Share, folder: Path) -> Iterator[None]:
    """Lock the share of a folder for the block. Raises Busy, or atomic.CannotWrite."""
    part = share.range(BYTES)
    with contextlib.ExitStack() as stack:
        with atomic.in_words(folder):
            folder.mkdir(parents=True, exist_ok=True)
            file = stack.enter_context(open(folder / LOCK, "ab"))
            try:
                fcntl.lockf(file, fcntl.LOCK_EX | fcntl.LOCK_NB, len(part), part.start)
            except (BlockingIOError, PermissionError):
                raise Busy(f"share {share} of {folder} is in other hands") from None
        yield


def free(share: Share, folder: Path) -> bool:
    """Whether nobody has the share, or a part of it; asks without taking it, and whoever may read the folder may ask.
    Not for the process that has it itself, which would lose it. Raises OSError where that is not permitted."""
    part = share.range(BYTES)
    asked = {"kind": fcntl.F_WRLCK, "whence": os.SEEK_SET, "start": part.start, "length": len(part), "process": 0}
    flock = struct.pack(_FLOCK, *map(asked.get, _FIELDS))
    with contextlib.suppress(FileNotFoundError), open(folder / LOCK, "rb") as file:
        answer = struct.unpack(_FLOCK, fcntl.fcntl(file, fcntl.F_GETLK, flock))
        return answer[_FIELDS.index("kind")] == fcntl.F_UNLCK
    return True
