"""Name the shards of a sweep, and lock the one that a supervisor runs.

Each shard has a lock file beside the records. The system frees it when its process ends, however that happens.
"""

import contextlib
import hashlib
import os
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from filelock import FileLock, Timeout

from lib import execution, paths

WAIT_S = 0.5  # for a lock: another process may hold it for a moment, to see if the shard runs


class Busy(Exception):
    """Say that another sweep runs on these results."""


@dataclass(frozen=True)
class Shard:
    """Hold shard `number`, from 1, of `count`."""

    number: int = 1
    count: int = 1

    def __str__(self) -> str:
        return f"{self.number}/{self.count}"

    def file(self, kind: str) -> Path:
        """Return a file of this shard beside the records, such as `.lock-2-of-8`."""
        return paths.results() / f".{kind}-{self.number}-of-{self.count}"

    def scratch(self) -> Path:
        """Return this shard's folder for kernels.

        It is among the temporary files, as sockets need short paths. Every start of the shard finds the
        same one, and clears what a killed supervisor has left there."""
        key = f"{os.getuid()} {paths.results().resolve()} {self}"
        return Path(execution.socket_folder(), f"sweep-{hashlib.sha256(key.encode()).hexdigest()[:8]}")

    def is_running(self) -> bool:
        """Tell if a supervisor holds the lock of this shard."""
        try:
            # another process may look at the same moment
            with FileLock(self.file("lock")).acquire(timeout=WAIT_S):
                return False
        # only its own user can open another user's lock, so it counts as held
        except (Timeout, PermissionError):
            return True


def parse(text: str) -> Shard:
    """Parse a shard such as 2/4. Raises ValueError."""
    match = re.fullmatch(r"([1-9]\d*)/([1-9]\d*)", text)
    if not match or int(match[1]) > int(match[2]):
        raise ValueError(f"shard: got {text!r}, expected k/n such as 2/4, with k from 1 to n")
    return Shard(int(match[1]), int(match[2]))


def known() -> list[Shard]:
    """List the shards that were ever locked on these results."""
    names = sorted(file.name for file in paths.results().glob(".lock-*-of-*"))
    return [Shard(*map(int, re.findall(r"\d+", name))) for name in names]


@contextlib.contextmanager
def hold(shard: Shard) -> Iterator[None]:
    """Hold a shard's lock. Raises OSError, or Busy if one that excludes it runs."""
    paths.results().mkdir(parents=True, exist_ok=True)
    try:
        lock = FileLock(shard.file("lock")).acquire(timeout=WAIT_S)
    except Timeout:
        raise Busy(f"shard {shard} is running already on {paths.results()}") from None
    with lock:
        # under the own lock, so that of two that start together at least one sees the other
        for known_shard in known():
            if known_shard.count != shard.count and known_shard.is_running():
                raise Busy(f"shard {known_shard} of another sweep is running on {paths.results()}")
        yield
