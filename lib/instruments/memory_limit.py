"""Limit a case's memory, so that running out ends the case and not the machine.

Under a soft RLIMIT_DATA (setrlimit(2)) an allocation beyond the limit fails at once: PyTorch raises a RuntimeError,
"can't allocate memory", and the process goes on. Close to the limit a library may instead end the process, as libgomp
does where it cannot start a thread.
"""

import contextlib
import platform
import resource
from collections.abc import Iterator

import psutil

from lib.instruments.device import on

SHARE_OF_FREE = 0.9  # the rest is for the system and for what this process takes beside the case


@contextlib.contextmanager
def limit(processes: int = 1, device: str = "cpu") -> Iterator[int | None]:
    """Limit the memory of this process in the block, and yield the limit in bytes.

    Yields None where nothing is limited: on other systems than Linux, and on a GPU, whose own allocator raises."""
    if device != "cpu" or platform.system() != "Linux":
        yield None
        return
    former_soft, hard = resource.getrlimit(resource.RLIMIT_DATA)
    limit_bytes = offered_bytes(processes)
    resource.setrlimit(resource.RLIMIT_DATA, (limit_bytes, hard))
    try:
        yield limit_bytes
    finally:
        resource.setrlimit(resource.RLIMIT_DATA, (former_soft, hard))


def offered_bytes(processes: int = 1) -> int:
    """Return the bytes that this process may have on Linux.

    It is what the process has now, and its share of nine tenths of what is free. `processes` (slots or ranks) have
    equal shares."""
    # heap and private writable mappings, as the limit counts them, with the freed pages that the process keeps
    data_bytes = psutil.Process().memory_info().data
    offered = data_bytes + int(SHARE_OF_FREE * on("cpu").free_bytes() / processes)
    for present_limit in resource.getrlimit(resource.RLIMIT_DATA):
        if present_limit != resource.RLIM_INFINITY:
            offered = min(offered, present_limit)
    return offered


def refusal(needed_bytes: int, device: str) -> str | None:
    """Return why a case with this predicted peak is not run, or None.

    Where nothing limits a process's memory, a case must not begin that would exhaust it. Linux and CUDA need no
    prediction: there a case that does not fit fails by itself."""
    if device == "cuda" or platform.system() == "Linux":
        return None
    most_bytes = SHARE_OF_FREE * on(device).free_bytes()
    if needed_bytes <= most_bytes:
        return None
    return f"memory: got {needed_bytes / 2**20:,.0f} MiB by its formula, expected at most {most_bytes / 2**20:,.0f}"
