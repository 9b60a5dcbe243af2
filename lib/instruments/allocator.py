"""Let the C library keep freed memory, so that it need not ask for it again.

By default glibc may give large freed blocks back to the system. Its threshold adapts to what the process freed before
(mallopt(3)). So two processes that run the same code can take different times.
"""

import ctypes
import functools
import platform

# parameters of glibc's malloc.h: -4 is M_MMAP_MAX, a count; -1 is M_TRIM_THRESHOLD, where -1 is never; -2 is M_TOP_PAD
KEEP = {-4: 0, -1: -1, -2: 64 * 2**20}
_current = "default"  # what this process does with freed memory


def current() -> str:
    """Return what this process does with freed memory: `keeps` or `default`."""
    return _current


def use(allocator: str) -> None:
    """Make this process keep freed memory, or leave the default.

    Only glibc can keep it. Raises ValueError for the default in a process that keeps freed memory already, since glibc
    cannot go back."""
    global _current
    if allocator == _current:
        return
    if allocator == "default":
        raise ValueError("allocator: got default, expected keeps, which this process already uses (use a new kernel)")
    if glibc():
        for parameter, value in KEEP.items():
            glibc().mallopt(parameter, value)
        _current = "keeps"


def release() -> None:
    """Give free memory back to the system, for the next case."""
    if glibc():
        glibc().malloc_trim(0)


@functools.cache
def glibc() -> ctypes.CDLL | None:
    """Return the C library where it can be told to keep freed memory, else None."""
    if platform.libc_ver()[0] != "glibc":
        return None
    return ctypes.CDLL(None)
