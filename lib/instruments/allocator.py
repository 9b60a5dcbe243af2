"""Let the C library keep freed memory, so that it need not ask for it again.

By default glibc may give large freed blocks back to the system. Its threshold adapts to what the process freed before
(mallopt(3)). So two processes that run the same code can take different times.

>>> allocator.use("keeps")
"""

import ctypes
import functools
import os
import platform

from lib import validate

ALLOCATORS = ("keeps", "default")
# of malloc.h: M_MMAP_MAX, a count; M_TRIM_THRESHOLD, where -1 is never; M_TOP_PAD, bytes
KEEP = {-4: 0, -1: -1, -2: 64 * 2**20}
_kept: list[bool] = []  # one entry once this process keeps freed memory


def chosen() -> str:
    """Return the allocator that $ALLOCATOR names, or `keeps`.

    Raises ValueError for an unknown name."""
    name = os.environ.get("ALLOCATOR", "keeps")
    validate.choice("ALLOCATOR", name, ALLOCATORS)
    return name


def current() -> str:
    """Return what this process does with freed memory: `keeps` or `default`."""
    return "keeps" if _kept else "default"


def can_keep() -> bool:
    """Return True where the C library can be told to keep freed memory, which is glibc alone."""
    return _glibc() is not None


def use(allocator: str) -> None:
    """Make this process keep freed memory where it can, or leave the default.

    Raises ValueError for the default in a process that keeps freed memory: glibc cannot go back."""
    if allocator == "default" and _kept:
        raise ValueError("allocator: got default, expected keeps, which this process already uses (use a new kernel)")
    if allocator == "keeps" and not _kept and can_keep():
        _kept.extend([True] * all(_glibc().mallopt(parameter, value) for parameter, value in KEEP.items()))


def release() -> None:
    """Give free memory back to the system, so that it counts as available to the next case."""
    if can_keep():
        _glibc().malloc_trim(0)


@functools.cache
def _glibc() -> ctypes.CDLL | None:
    return ctypes.CDLL(None) if platform.libc_ver()[0] == "glibc" else None
