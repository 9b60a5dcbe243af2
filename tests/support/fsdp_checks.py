"""Functions that tests call in ranks: what only fully sharded training has to do."""

import copy
from dataclasses import dataclass

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.utils.checkpoint import checkpoint

from lib.instruments.peak_memory import follow, identity
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
    right = nn.utils.clip_grad_norm_(plain.parameters(), 0.1, norm_type)
    norms = network.clip_grad_norm_(1e9, norm_type), nn.utils.clip_grad_norm_(network.parameters(), 0.1, norm_type)
    change_in_place(network)
    change_in_place(plain)
    return {
        "norm": max(abs(norm / right - 1).item() for norm in norms),
        "error": difference(whole(network), plain.state_dict()),
    }


def infinite_gradient(make) -> list:
    """Scale the loss, of whose gradient rank 0's rows overflow; return the scale and the change of weights."""
    torch.manual_seed(0)
    network = FullySharded(built("alike"))
    start = network.gather_full_parameters()
    scaler = torch.amp.GradScaler("cpu", init_scale=2.0)
    optimizer = make(network.parameters(), lr=0.1)
    scaler.scale(rank_loss(network, 0, dist.get_rank())).backward()
    if dist.get_rank() == 0:
        network.module.first.weight.grad[0, 0] = torch.inf
    scaler.step(optimizer)
    scaler.update()
    return [scaler.get_scale(), difference(network.gather_full_parameters(), start)]


class Checkpointed(nn.Module):
    """Run eight layers, in checkpoints of several."""

    def __init__(self, size: int, reentrant: bool):
        super().__init__()
        self.layers = nn.ModuleList([nn.Linear(8, 8) for _ in range(8)])
        self.size = size
        self.reentrant = reentrant

    def forward(self, x):
        for first in range(0, 8, self.size):
            group = nn.Sequential(*self.layers[first : first + self.size])
            x = checkpoint(group, x, use_reentrant=self.reentrant)
        return x


def most_gathered(network: FullySharded) -> dict:
    """Return a dict that gets the most bytes gathered in a step."""
    seen = {"most": 0}

    def note(*_) -> None:
        seen["now"] = sum(shard.padded.untyped_storage().nbytes() for shard in network._shards)
        seen["most"] = max(seen.values())

    for module in network.module.modules():
        module.register_forward_pre_hook(note)
    for param in network.module.parameters():
        param.register_post_accumulate_grad_hook(note)
    return seen


def checkpointed(size: int = 1, reentrant: bool = False) -> float:
    """Train a step of layers in checkpoints; return how many were gathered at most."""
    network = FullySharded(Checkpointed(size, reentrant))
    seen = most_gathered(network)
    network(torch.ones(2, 8, requires_grad=True)).sum().backward()
    assert all(shard.padded.untyped_storage().nbytes() == 0 for shard in network._shards)
    return seen["most"] / (4 * 8 * 9)


@dataclass
class Output:
    logits: torch.Tensor


def refused() -> None:
    """Use a module and its wrapper in ways that have no right result."""
    network = FullySharded(nn.Sequential(nn.Embedding(5, 8, max_norm=0.1), nn.Linear(8, 8)))
    with pytest.raises(ValueError, match=r"module: .*expected one that is wrapped once"):
        FullySharded(network.module)
    with pytest.raises(RuntimeError, match="parameter: got a change in place while its layer computes"):
        network(torch.arange(5))
    state = network.gather_full_parameters()
    with pytest.raises(ValueError, match=r"0.weight: got \(1,\), expected \(5, 8\)"):
        network.load_full_parameters(state | {"0.weight": torch.ones(1)})
    module = nn.Sequential(nn.Linear(8, 8))
    module[0].register_forward_hook(lambda module, inputs, output: Output(output))
    with pytest.raises(TypeError, match="output: got Output, expected tensors"):
        FullySharded(module)(torch.ones(2, 8))
    with pytest.raises(RuntimeError, match="expected use_reentrant=False"):
        checkpointed(reentrant=True)


def gathered_memory(dtype: torch.dtype | None) -> dict:
    """Return the most bytes that were gathered in a step, those after it, and what `follow` believes of these."""
    torch.manual_seed(0)
    network = FullySharded(built("tiny"), dtype)
    seen = most_gathered(network)

    def step(number: int) -> None:
        rank_loss(network, number, dist.get_rank()).backward()
        network.finish_gradient_synchronization()

    step(0)
    history = follow(lambda mark: step(1))
    storages = [shard.padded.untyped_storage() for shard in network._shards]
    followed = [history.alive[identity(storage)]["bytes"] for storage in storages]
    return {"most": seen["most"], "after": sum(map(len, storages)), "followed": sum(followed)}
