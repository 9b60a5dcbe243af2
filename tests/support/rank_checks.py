"""Functions that tests call in ranks by name."""

import os
import time

import torch
import torch.distributed as dist

from lib import timing
from lib.parallel import ranks


def threads() -> int:
    return torch.get_num_threads()


def pid() -> int:
    return os.getpid()


def refuse(rank: int) -> None:
    """Raise in one rank, while the others wait for it."""
    if dist.get_rank() == rank:
        raise ValueError(f"rank {rank} refuses")
    dist.barrier()


def die(rank: int) -> None:
    """End one rank without a word, while the others wait for it."""
    if dist.get_rank() == rank:
        os._exit(7)
    dist.barrier()


def hang() -> None:
    """Never answer from rank 1."""
    while dist.get_rank() == 1:
        time.sleep(1)


def times() -> list:
    """Time a pretended iteration in which either rank is the slower one in one phase."""
    instants = iter([0, 30, 40, 90] if dist.get_rank() else [0, 10, 60, 70])
    clock = ranks.Clock(timing.HostClock(now=lambda: next(instants)))
    clock.start()
    clock.mark()
    clock.mark()
    return clock.stop()
