"""Functions that tests call in ranks: what each does there fails, waits or takes a while."""

import time

import torch
import torch.distributed as dist

from lib import timing
from lib.parallel import ranks


def refuse(rank: int) -> None:
    if dist.get_rank() == rank:
        raise ValueError(f"rank {rank} refuses")
    dist.barrier()


def wait_for_rank_0() -> None:
    if dist.get_rank() == 0:
        time.sleep(60)
    dist.barrier()


def times() -> list:
    """Time a pretended iteration in which either rank is the slower one in one phase."""
    instants = iter([0, 30, 40] if dist.get_rank() else [0, 10, 60])
    clock = ranks.Clock(timing.HostClock(now=lambda: next(instants)))
    clock.start()
    clock.mark()
    clock.mark()
    return clock.stop()


def samples() -> int:
    """Sample an iteration that takes unequal times on the ranks; return how many samples this rank took."""
    torch.manual_seed(dist.get_rank())

    def iteration(mark) -> None:
        torch.randn(int(torch.randint(1, 5000, ()))).sort()
        mark("sort")

    return len(timing.measure(iteration, ranks.Clock(timing.HostClock()), seconds=0.2).total)


def dtype_of_logits(case) -> torch.dtype:
    training = case.setup().training
    training.iteration(timing.nothing)
    return training.last["logits"].dtype
