"""Functions that tests call in ranks."""

import copy
import functools

import torch
import torch.distributed as dist
from torch import nn

import course
from lib import timing
from lib.parallel import ranks


def refuse(rank: int) -> None:
    if dist.get_rank() == rank:
        raise ValueError(f"rank {rank} refuses")
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


def errors_of_course_adapters() -> list[float]:
    """Train by each of the course's adapters; return the largest errors, against one process with all examples."""
    torch.manual_seed(0)
    plain = nn.Sequential(nn.Embedding(11, 8), nn.Linear(8, 8), nn.Tanh(), nn.Linear(8, 11))
    tokens = torch.randint(11, (dist.get_world_size(), 5, 2))
    after_backward = {
        course.get_ddp_individual_parameters: course.ddp_individual_parameters_on_after_backward,
        course.get_fsdp: course.fsdp_on_after_backward,
    }
    for size in (1e-4, None):
        bucketed = functools.partial(course.get_ddp_bucketed, bucket_size_mb=size)
        after_backward[bucketed] = course.ddp_bucketed_on_after_backward
    results = []
    for wrap, end in after_backward.items():
        expected = copy.deepcopy(plain)
        step(expected, tokens.flatten(0, 1), torch.optim.AdamW(expected.parameters()))
        replica = wrap(copy.deepcopy(plain))
        optimizer = course.get_sharded_optimizer(replica.parameters(), torch.optim.AdamW)
        if wrap is course.get_fsdp:
            optimizer = torch.optim.AdamW(replica.parameters())
        step(replica, tokens[dist.get_rank()], optimizer, end)
        state = replica.module.state_dict()
        if wrap is course.get_fsdp:
            state = course.fsdp_gather_full_params(replica)
        results.append(max((state[name] - value).abs().max().item() for name, value in expected.state_dict().items()))
    return results


def step(network: nn.Module, tokens: torch.Tensor, optimizer: torch.optim.Optimizer, end=None) -> None:
    course.ddp_bucketed_on_train_batch_start(network, optimizer)
    nn.functional.cross_entropy(network(tokens[:, 0]), tokens[:, 1]).backward()
    if end:
        end(network, optimizer)
    optimizer.step()
