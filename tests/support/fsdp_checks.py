"""Functions that tests call in ranks: what only fully sharded training has to do."""

import copy

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.utils.checkpoint import checkpoint

from lib.parallel.fsdp import FullySharded
from training_checks import add_up, built, difference, rank_loss, whole


def assign_data(module: nn.Module) -> None:
    for param in module.parameters():
        param.data = param.data - 0.1 * param.grad


def assign_views(module: nn.Module) -> None:
    params = list(module.parameters())
    vector = nn.utils.parameters_to_vector(params) - 0.1 * nn.utils.parameters_to_vector(p.grad for p in params)
    nn.utils.vector_to_parameters(vector, params)


@torch.no_grad()
def change_in_place(module: nn.Module) -> None:
    for param in module.parameters():
        param.sub_(param.grad, alpha=0.1)


def changed_from_outside(change, model: str) -> float:
    """Train a copy three steps without an optimizer; return the largest difference of weights from one process'."""
    torch.manual_seed(0)
    first = FullySharded(built(model))
    start = first.gather_full_parameters()
    plain = built(model)
    plain.load_state_dict(start)
    network = copy.deepcopy(first)
    for step in range(3):
        rank_loss(network, step, dist.get_rank()).backward()
        # a forward pass without a backward pass leaves the last layer gathered
        rank_loss(network, step, dist.get_rank())
        change(network)
        network.zero_grad()
        add_up(plain, step)
        change(plain)
    assert difference(first.gather_full_parameters(), start) == 0
    first.load_full_parameters(plain.state_dict())
    assert difference(first.gather_full_parameters(), plain.state_dict()) == 0
    return difference(network.gather_full_parameters(), plain.state_dict())


def clipped(norm_type: float) -> dict:
    """Clip gradients as torch does in one process; return the differences of the norm and of the gradients."""
    torch.manual_seed(0)
    network = FullySharded(built("plain"))
    plain = built("plain")
    plain.load_state_dict(network.gather_full_parameters())
    rank_loss(network, 0, dist.get_rank()).backward()
    add_up(plain, 0)
    norm = network.clip_grad_norm_(0.1, norm_type)
    right = nn.utils.clip_grad_norm_(plain.parameters(), 0.1, norm_type)
    change_in_place(network)
    change_in_place(plain)
    return {"norm": abs(norm / right - 1).item(), "error": difference(whole(network), plain.state_dict())}


def finite_gradients() -> bool:
    """Let one rank's rows overflow in fp16; return True if this rank's gradients look finite to GradScaler."""
    torch.manual_seed(0)
    network = FullySharded(built("alike"), torch.float16)
    scaler = torch.amp.GradScaler("cpu", init_scale=1.0)
    optimizer = torch.optim.SGD(network.parameters(), lr=0.1)
    loss = rank_loss(network, 0, dist.get_rank())
    if dist.get_rank() == 0:
        shard = next(shard for shard in network._shards if shard.is_divided)
        take_average = shard.take_average

        def overflow() -> None:
            is_due = shard.reducing is not None
            take_average()
            if is_due:
                shard.gradient.view(-1)[0] = torch.inf

        shard.take_average = overflow
    scaler.scale(loss).backward()
    scaler.step(optimizer)
    scaler.update()
    return scaler.get_scale() == 1.0


class Checkpointed(nn.Module):
    """Run layers, each in a checkpoint."""

    def __init__(self, reentrant: bool):
        super().__init__()
        self.layers = nn.ModuleList([nn.Linear(8, 8), nn.Linear(8, 8)])
        self.reentrant = reentrant

    def forward(self, x):
        for layer in self.layers:
            x = checkpoint(layer, x, use_reentrant=self.reentrant)
        return x


def checkpointed(reentrant: bool) -> None:
    """Train a step of layers in checkpoints, and wrap the wrapper."""
    network = FullySharded(Checkpointed(reentrant))
    with pytest.raises(ValueError, match="expected one that is wrapped once"):
        FullySharded(network)
    network(torch.ones(2, 8, requires_grad=True)).sum().backward()
    assert all(shard.padded.untyped_storage().nbytes() == 0 for shard in network._shards)


def gathered_memory(dtype: torch.dtype | None) -> dict:
    """Return the most bytes that were gathered in a step, and those after it."""
    torch.manual_seed(0)
    network = FullySharded(built("tiny"), dtype)
    most = []

    def note(*_) -> None:
        most.append(sum(shard.padded.untyped_storage().nbytes() for shard in network._shards))

    for module in network.module.modules():
        module.register_forward_pre_hook(note)
    for param in network.module.parameters():
        param.register_post_accumulate_grad_hook(note)
    for step in range(2):
        rank_loss(network, step, dist.get_rank()).backward()
        network.finish_gradient_synchronization()
    note()
    return {"most": max(most), "after": most[-1]}
