"""Tells how large the last cache before memory is, and empties it of what an iteration is about to use."""

from collections.abc import Callable
from pathlib import Path

import torch


def size_bytes(device: str) -> int:
    """Return the size of the last cache before memory; 128 MiB where the system does not tell."""
    if device == "cuda":
        return torch.cuda.get_device_properties(0).L2_cache_size
    sizes = Path("/sys/devices/system/cpu/cpu0/cache").glob("index*/size")
    return max((int(file.read_text().strip().removesuffix("K")) * 1024 for file in sizes), default=128 * 2**20)


def flush(device: str) -> Callable[[], None]:
    """Return a function that reads twice what the caches hold, to be called outside the timed region.

    What was in them is driven out, for times of cold ones. It writes nothing, since the timed iteration would have to
    write that back."""
    other = torch.zeros(2 * size_bytes(device) // 4, device=device)
    return lambda: other.sum()
