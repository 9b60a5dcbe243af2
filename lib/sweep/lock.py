"""Names the shards of a sweep, and locks the one that a supervisor does, one file a shard; imports nothing heavy.

The system frees a lock when the process ends, however it ends, so that none is ever to be removed by hand.
"""

import contextlib
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from filelock import FileLock, Timeout

from lib.paths import LOCK
from lib.records import atomic

MOMENT_S = 10  # within which another supervisor has taken its shard


@dataclass(frozen=True)
class Shard:
    """The `number`-th of `count` equal parts of a sweep."""

    number: int = 1
    count: int = 1

    def __str__(self) -> str:
        return f"{self.number}/{self.count}"

    def range(self, total: int) -> range:
        """Return which of `total` things are in the shard."""
        return range((self.number - 1) * total // self.count, self.number * total // self.count)

    def file(self, folder: Path, beginning: str, ending: str = "") -> Path:
        """Return the shard's own file in a folder, such as `.lock-2-of-8`."""
        return folder / f"{beginning}-{self.number}-of-{self.count}{ending}"


WHOLE = Shard()


class Busy(Exception):
    """Another supervisor holds `shard`: the same one, or one of another number of shards."""

    def __init__(self, shard: Shard):
        super().__init__(f"shard {shard} is held")
        self.shard = shard


def parse(text: str) -> Shard:
    """Return the shard that a text such as 2/4 names. Raises ValueError."""
    found = re.fullmatch(r"([1-9]\d{0,3})/([1-9]\d{0,3})", text)
    if not found or int(found[1]) > int(found[2]):
        raise ValueError(f"shard: {text!r} must be k/n, such as 2/4, where k is 1 to n and n at most 9999")
    return Shard(int(found[1]), int(found[2]))


@contextlib.contextmanager
def held(shard: Shard, folder: Path) -> Iterator[None]:
    """Hold a shard of a folder for the block. Raises Busy, or atomic.CannotWrite.

    A lock on the folder, held for a moment, lets only one supervisor at a time look at the locks of the others."""
    with contextlib.ExitStack() as stack:
        with atomic.as_cannot_write(folder):
            folder.mkdir(parents=True, exist_ok=True)
            with FileLock(folder / LOCK, timeout=MOMENT_S):
                for other in _shards(folder):
                    if other.count != shard.count:
                        with _taken(other, folder):
                            pass
                stack.enter_context(_taken(shard, folder))
        yield


def _shards(folder: Path) -> list[Shard]:
    """Return the shards that have ever been locked in a folder."""
    names = (re.fullmatch(rf"{re.escape(LOCK)}-(\d+)-of-(\d+)", file.name) for file in folder.iterdir())
    return [Shard(int(found[1]), int(found[2])) for found in names if found]


def _taken(shard: Shard, folder: Path) -> contextlib.AbstractContextManager:
    """Take the lock of a shard until the block ends. Raises Busy at once where it is held."""
    try:
        return FileLock(shard.file(folder, LOCK)).acquire(timeout=0)
    except Timeout:
        raise Busy(shard) from None
