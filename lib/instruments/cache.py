"""Flush the caches of a device between iterations."""

from collections.abc import Callable

import torch

from lib.instruments.device import on

LEAST_BYTES = 256 * 2**20  # to read: some GPUs' caches are larger than what they report as their second level
TIMES = 4  # the size of the cache: less may leave lines of the case in a cache that does not evict the oldest


def flush(device: str) -> Callable[[], torch.Tensor]:
    """Return a function that reads more than the caches hold, which empties them.

    Call it outside the timed region. It writes nothing, since the timed iteration would have to write that back."""
    size_bytes = max(LEAST_BYTES, TIMES * on(device).cache_bytes())
    return torch.zeros(size_bytes // 4, device=device).sum
