"""Read the size of the last cache before memory, and flush it between iterations."""

from collections.abc import Callable
from pathlib import Path

import torch


def size_bytes(device: str) -> int:
    """Return the size of the last cache before memory, or 128 MiB if it is unknown."""
    if device == "cuda":
        return torch.cuda.get_device_properties(0).L2_cache_size
    sizes = Path("/sys/devices/system/cpu/cpu0/cache").glob("index*/size")
    return max((int(file.read_text().strip().removesuffix("K")) * 1024 for file in sizes), default=128 * 2**20)


def flush(device: str) -> Callable[[], None]:
    """Return a function that reads twice the size of the caches, which evicts their contents.

    Call it outside the timed region. It writes nothing, since the timed iteration would have to write that back."""
    other = torch.zeros(2 * size_bytes(device) // 4, device=device)
    return lambda: other.sum()
