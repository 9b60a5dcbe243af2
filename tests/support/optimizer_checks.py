"""Functions that tests call in ranks: sharded optimizers beside the same optimizer in each process."""

import copy
from unittest import mock

import pytest
import torch
import torch.distributed as dist
from torch import nn

from lib import fast
from lib.adam import AdamW, Hyper
from lib.fast import MastersAdamW, full_state_dict
from lib.parallel.ddp import DistributedDataParallel
from lib.parallel.sharded import ShardedOptimizer
from training_checks import add_up, built, difference, rank_loss

OPTIMIZERS = {
    "torch": (torch.optim.AdamW, {"lr": 0.01, "weight_decay": 0.1}),
    "ours": (AdamW, {"variant": "fused", "hyper": Hyper(lr=0.01, weight_decay=0.1)}),
}


class Counting(torch.optim.SGD):
    """Step by a rate that falls with a count that it keeps in its groups."""

    def step(self, closure=None):
        for group in self.param_groups:
            group["count"] = group.get("count", 0) + 1
            group["lr"] = 0.1 / group["count"]
        return super().step(closure)


def other_optimizers(name: str) -> float:
    """Train by optimizers that keep state in groups, or look at shapes; return the largest difference of weights."""
    make = {
        "counting": (Counting, {"momentum": 0.9}),
        "muon": (torch.optim.Muon, {"lr": 0.1}),
        "torch": OPTIMIZERS["torch"],
    }
    optimizer_cls, settings = make[name]
    torch.manual_seed(0)
    network = nn.Sequential(*(nn.Linear(6, 6, bias=False) for _ in range(5)))
    plain = copy.deepcopy(network)
    sharded = ShardedOptimizer(network.parameters(), optimizer_cls, **settings)
    reference = optimizer_cls(plain.parameters(), **settings)
    for step in range(6):
        if step == 2:
            network, sharded = copy.deepcopy((network, sharded))
        if step == 4:
            # the state of one process
            sharded = ShardedOptimizer(network.parameters(), optimizer_cls, **settings)
            sharded.load_state_dict(copy.deepcopy(reference.state_dict()))
        for module in (network, plain):
            module.zero_grad()
            module(torch.eye(6) + step).square().mean().backward()
        sharded.step()
        reference.step()
    states = [None] * dist.get_world_size()
    dist.all_gather_object(states, sharded.state_dict())
    neighbour = (dist.get_rank() + 1) % dist.get_world_size()
    with pytest.raises(ValueError, match=f"state_dict: got the share of rank {neighbour} of 2, expected"):
        sharded.load_state_dict(states[neighbour])
    return difference(network.state_dict(), plain.state_dict())


def groups(network: nn.Module) -> list[dict]:
    params = list(network.parameters())
    return [{"params": params[:3]}, {"params": params[3:], "lr": 0.002, "weight_decay": 0.0}]


def sharded_optimizer(model: str, optimizer: str) -> dict:
    """Train ten steps with groups, a schedule and one group more, stopped and continued half way."""
    torch.manual_seed(0)
    network = built(model)
    optimizer_cls, settings = OPTIMIZERS[optimizer]
    plain = copy.deepcopy(network)
    start = copy.deepcopy(network.state_dict())
    sharded = ShardedOptimizer(groups(network), optimizer_cls, **settings)
    reference = optimizer_cls(groups(plain), **settings)
    schedules = [torch.optim.lr_scheduler.StepLR(each, 3, 0.5) for each in (sharded, reference)]
    for step in range(10):
        if step == 5:
            state = copy.deepcopy(sharded.state_dict())
            sharded = ShardedOptimizer(groups(network), optimizer_cls, **settings)
            sharded.load_state_dict(state)
            schedules[0].optimizer = sharded
            for each, module in ((sharded, network), (reference, plain)):
                module.added = nn.Parameter(torch.ones(5))
                each.add_param_group({"params": [module.added], "lr": 0.1})
        for module in (network, plain):
            add_up(module, step)
            if step >= 5:
                module.added.grad = torch.full((5,), 0.5 + step)
        loss = sharded.step(lambda step=step: 3.0 + step)
        reference.step()
        for schedule in schedules:
            schedule.step()
    return {
        "error": difference(network.state_dict(), plain.state_dict()),
        "loss": loss,
        "own": nn.utils.parameters_to_vector(sharded.state).numel(),
        "all": nn.utils.parameters_to_vector(reference.state).numel(),
        "rates": [group["lr"] for group in sharded.param_groups] == [group["lr"] for group in reference.param_groups],
        "change": difference({name: plain.state_dict()[name] for name in start}, start),
    }


# compiling takes long, and `test_fast` does it
@mock.patch.object(fast, "_compiled", return_value=fast._update_and_round)
def masters(_, is_sharded: bool) -> dict:
    """Train five steps with rounded matrices, stopped and continued half way; compare with one process and rank 0."""
    torch.manual_seed(0)
    module = built("plain")
    plain = copy.deepcopy(module)
    start = copy.deepcopy(module.state_dict())
    reference = MastersAdamW(plain.parameters(), Hyper(lr=0.01))
    reference.round_matrices(plain)
    optimizer = MastersAdamW(module.parameters(), Hyper(lr=0.01))
    if is_sharded:
        optimizer = ShardedOptimizer(module.parameters(), MastersAdamW, hyper=Hyper(lr=0.01))
    getattr(optimizer, "inner", optimizer).round_matrices(module)
    network = DistributedDataParallel(module)
    for step in range(5):
        for each in (module, plain):
            each.zero_grad()
        with torch.autocast("cpu", torch.bfloat16):
            rank_loss(network, step, dist.get_rank()).backward()
            add_up(plain, step)
        network.finish_gradient_synchronization()
        optimizer.step()
        reference.step()
        if step == 2:
            optimizer.load_state_dict(copy.deepcopy(optimizer.state_dict()))
    own = full_state_dict(module, optimizer)
    expected = full_state_dict(plain, reference)
    weights = nn.utils.parameters_to_vector(module.parameters()).detach()
    of_rank_0 = weights.clone()
    dist.broadcast(of_rank_0, 0)
    return {
        "error": max(
            ((own[name] - right).norm() / (right - start[name]).norm()).item() for name, right in expected.items()
        ),
        "between_ranks": (weights - of_rank_0).abs().max().item(),
        "masters": sum("master" in state for state in optimizer.state.values()),
        "types": sorted({str(state["exp_avg"].dtype) for state in optimizer.state.values()}),
    }
