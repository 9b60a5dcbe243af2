"""Read the sizes of the caches, and flush the last one between iterations."""

import platform
from collections.abc import Callable
from pathlib import Path

import torch

from lib.instruments import processor

CACHES = Path("/sys/devices/system/cpu/cpu0/cache")


def size_bytes(device: str) -> int:
    """Return the size of the last cache before memory, or 128 MiB if it is unknown."""
    if device == "cuda":
        return torch.cuda.get_device_properties(0).L2_cache_size
    return max((round(mib * 2**20) for mib in levels_mib().values()), default=128 * 2**20)


def levels_mib() -> dict[str, float]:
    """Return the sizes of the processor's caches from the second level on, as `l2_mib` and so on."""
    if platform.system() == "Darwin":
        sizes = {f"l{level}_mib": processor.sysctl(f"hw.l{level}cachesize") for level in (2, 3)}
        return {name: int(size) / 2**20 for name, size in sizes.items() if size.isdecimal() and int(size)}
    found = {}
    for file in sorted(CACHES.glob("index*/size")):
        level, size = (file.with_name(name).read_text().strip() for name in ("level", "size"))
        found[f"l{level}_mib"] = int(size.removesuffix("K")) / 1024
    found.pop("l1_mib", None)
    return found


def flush(device: str) -> Callable[[], None]:
    """Return a function that reads twice the size of the caches, which evicts their contents.

    Call it outside the timed region. It writes nothing, since the timed iteration would have to write that back."""
    other = torch.zeros(2 * size_bytes(device) // 4, device=device)
    return lambda: other.sum()
