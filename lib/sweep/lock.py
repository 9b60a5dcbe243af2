"""Name the shards of a sweep and lock the one that a supervisor runs, with one lock file per shard.

The system frees a lock when its process ends in any way, so no lock needs to be removed by hand.
"""

import contextlib
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from filelock import FileLock, Timeout

from lib.paths import LOCK
from lib.records import atomic

WAIT_S = 10  # for another supervisor to finish taking its shard


@dataclass(frozen=True)
class Shard:
    """One of `count` equal parts of a sweep, numbered from 1."""

    number: int = 1
    count: int = 1

    def __str__(self) -> str:
        return f"{self.number}/{self.count}"

    def range(self, total: int) -> range:
        """Return the indices of the shard's items among `total`."""
        return range((self.number - 1) * total // self.count, self.number * total // self.count)

    def file(self, folder: Path, beginning: str, ending: str = "") -> Path:
        """Return the shard's own file in a folder, such as `.lock-2-of-8`."""
        return folder / f"{beginning}-{self.number}-of-{self.count}{ending}"


WHOLE = Shard()


class Busy(Exception):
    """Raised when another supervisor holds `shard`: the same one, or one of a different count."""

    def __init__(self, shard: Shard):
        super().__init__(f"shard {shard} is held")
        self.shard = shard


def parse(text: str) -> Shard:
    """Parse a shard such as 2/4. Raises ValueError."""
    found = re.fullmatch(r"([1-9]\d{0,3})/([1-9]\d{0,3})", text)
    if not found or int(found[1]) > int(found[2]):
        raise ValueError(f"shard: got {text!r}, expected K/N such as 2/4, with K from 1 to N and N up to 9999")
    return Shard(int(found[1]), int(found[2]))


@contextlib.contextmanager
def held(shard: Shard, folder: Path) -> Iterator[None]:
    """Lock a shard of a folder for the block. Raises Busy or atomic.CannotWrite.

    A short lock on the folder lets only one supervisor at a time check the other locks."""
    with contextlib.ExitStack() as stack:
        with atomic.as_cannot_write(folder):
            folder.mkdir(parents=True, exist_ok=True)
            with FileLock(folder / LOCK, timeout=WAIT_S):
                for other in _shards(folder):
                    if other.count != shard.count:
                        with _acquire(other, folder):
                            pass
                stack.enter_context(_acquire(shard, folder))
        yield


def _shards(folder: Path) -> list[Shard]:
    """Return the shards that have ever been locked in a folder."""
    names = (re.fullmatch(rf"{re.escape(LOCK)}-(\d+)-of-(\d+)", file.name) for file in folder.iterdir())
    return [Shard(int(found[1]), int(found[2])) for found in names if found]


def _acquire(shard: Shard, folder: Path) -> contextlib.AbstractContextManager:
    """Lock a shard until the block ends. Raises Busy at once if it is locked."""
    try:
        return FileLock(shard.file(folder, LOCK)).acquire(timeout=0)
    except Timeout:
        raise Busy(shard) from None
