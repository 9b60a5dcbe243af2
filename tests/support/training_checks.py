"""Functions that tests call in ranks: training on all of them beside the same training in each process."""

import copy
import gc
import weakref
from dataclasses import replace
from unittest import mock

import pytest
import torch
import torch.distributed as dist
from torch import nn

from lib import model as lm
from lib.parallel import collectives
from lib.parallel.ddp import DistributedDataParallel
from lib.parallel.fsdp import FullySharded

EXAMPLES = 4  # of a rank
TOY = lm.Config(23, 8, 8, 12, 2, 2)
TINY = replace(lm.SIZES["tiny"], context_length=16)


class Viewed(nn.Linear):
    """Return a view, which the caller may change in place."""

    def forward(self, x):
        return super().forward(x)[:]


class Toy(nn.Module):
    """Predict a number by layers of uneven sizes; `spare` works in some steps, also of one rank, `never` in none."""

    def __init__(self, alike: bool):
        super().__init__()
        self.alike = alike  # all ranks use the same layers
        self.first = nn.Linear(7, 13)
        self.spare = nn.Linear(13, 13)
        self.never = nn.Linear(3, 3)
        self.norm = nn.LayerNorm(13)
        self.layers = nn.ModuleList([Viewed(13, 13), Viewed(13, 13)])
        self.last = nn.Linear(13, 1)
        self.scale = nn.Parameter(torch.tensor(1.5))
        self.register_buffer("shift", torch.randn(13))

    def forward(self, x, spare: bool):
        x = self.norm(self.first(x) * self.scale + self.shift)
        if spare:
            x = self.spare(x)
        for layer in self.layers:
            x = x + layer(x).tanh_()
        return self.last(x)


def built(name: str) -> nn.Module:
    if name in ("toy", "alike"):
        return Toy(alike=name == "alike")
    network = lm.TransformerLM(TINY if name == "tiny" else TOY)
    if name == "compiled":
        for layer in network.layers:
            layer.compile(backend="aot_eager")
    if name == "tied":
        network.lm_head.weight = network.token_embeddings.weight
    if name == "frozen":
        network.layers[0].attn.q_proj.requires_grad_(False)
        network.ln_final.requires_grad_(False)
        network.token_embeddings.requires_grad_(False)
    return network


def rank_loss(network: nn.Module, step: int, rank: int, part: int = 0) -> torch.Tensor:
    generator = torch.Generator().manual_seed(1000 * step + 10 * rank + part)
    plain = getattr(network, "module", network)
    if isinstance(plain, Toy):
        x = torch.randn(EXAMPLES, 7, generator=generator)
        spare = step == 1 or (step == 3 and (rank == 1 or plain.alike))
        return (network(x, spare).float() - 1).square().mean()
    tokens = torch.randint(plain.config.vocab_size, (EXAMPLES, plain.config.context_length + 1), generator=generator)
    return lm.loss(network(tokens[:, :-1]).float(), tokens[:, 1:])


def difference(state: dict, expected: dict) -> float:
    """Return the largest difference of two state dicts of equal names and shapes."""
    assert {name: value.shape for name, value in state.items()} == {name: v.shape for name, v in expected.items()}
    return max((state[name].double() - value.double()).abs().max().item() for name, value in expected.items())


def add_up(network: nn.Module, step: int, parts: int = 1) -> None:
    """Give a plain network the average of all ranks' gradients, one rank after the other."""
    network.zero_grad()
    world = dist.get_world_size()
    for rank in range(world):
        for part in range(parts):
            (rank_loss(network, step, rank, part) / world / parts).backward()


def wrapped(kind: str, module: nn.Module, dtype: torch.dtype | None = None, **options) -> nn.Module:
    if kind == "fsdp":
        return FullySharded(module, dtype)
    return DistributedDataParallel(module, **options)


def whole(network: nn.Module) -> dict[str, torch.Tensor]:
    if isinstance(network, FullySharded):
        return network.gather_full_parameters()
    return copy.deepcopy(network.module.state_dict())


def trained(kind: str, model: str, parts: int = 1, **options) -> dict:
    """Train five steps on all ranks and in one process; return the largest difference, and what was sent."""
    torch.manual_seed(dist.get_rank())
    network = wrapped(kind, built(model), **options)
    plain = built(model)
    start = whole(network)
    plain.load_state_dict(start)
    # with momentum and decay, a gradient of zeros has another effect than none
    optimizer = torch.optim.SGD(network.parameters(), lr=0.05, momentum=0.9, weight_decay=0.1)
    reference = torch.optim.SGD(plain.parameters(), lr=0.05, momentum=0.9, weight_decay=0.1)
    with mock.patch.object(collectives, "average", side_effect=collectives.average) as averages:
        for step in range(5):
            averages.reset_mock()
            for part in range(parts):
                loss = rank_loss(network, step, dist.get_rank(), part) / parts
                if part == 0:
                    optimizer.zero_grad()  # where many loops have it
                loss.backward()
            in_backward = averages.call_count
            network.finish_gradient_synchronization()
            for param in network.module.parameters():
                if param.requires_grad:
                    assert (param.grad.shape, param.grad.dtype) == (param.data.shape, param.data.dtype)
                else:
                    assert param.grad is None
            add_up(plain, step, parts)
            for param in plain.parameters():
                if param.requires_grad and param.grad is None:
                    param.grad = torch.zeros_like(param)
            optimizer.step()
            reference.step()
    return {
        "error": difference(whole(network), plain.state_dict()),
        "change": difference(plain.state_dict(), start),
        "sizes": [param.nbytes for param in plain.parameters() if param.requires_grad],
        "sent": [call.args[0].nbytes for call in averages.call_args_list],
        "in_backward": in_backward,
        "own": nn.utils.parameters_to_vector(network.parameters()).numel(),
        "matrices": sum(param.numel() for param in plain.parameters() if param.dim() > 1),
        "vectors": sum(param.numel() for param in plain.parameters() if param.dim() <= 1),
    }


def backward_twice() -> None:
    network = DistributedDataParallel(built("plain"), "overlap")
    losses = [rank_loss(network, step, 0) for step in range(2)]
    losses[0].backward()
    with pytest.raises(RuntimeError, match="before finish_gradient_synchronization"):
        losses[1].backward()
    network.finish_gradient_synchronization()


class Failing(torch.autograd.Function):
    """Fail in the backward pass."""

    @staticmethod
    def forward(ctx, x):
        return x.clone()

    @staticmethod
    def backward(ctx, gradient):
        raise RuntimeError("backward failed")


def fail_half_way(network: nn.Module, step: int) -> None:
    """Begin a backward pass that ends after the last layers."""
    hook = network.module.layers[0].register_forward_hook(lambda module, inputs, output: Failing.apply(output))
    with pytest.raises(RuntimeError, match="backward failed"):
        rank_loss(network, step, dist.get_rank()).backward()
    hook.remove()


def uneven_use(kind: str, **options) -> float:
    """Use a wrapper as PyTorch's are used: dropped batches, failed passes, accumulation, a second wrapper, freezing.

    Return the largest difference of gradients from those of one process."""
    torch.manual_seed(0)
    module = built("plain")
    plain = copy.deepcopy(module)
    network = wrapped(kind, module, **options)
    rank = dist.get_rank()
    # a batch that is dropped, then one that fails
    rank_loss(network, 0, rank).backward()
    network.zero_grad()
    fail_half_way(network, 1)
    network.zero_grad()
    differences = []

    def compare(step: int, parts: int = 1) -> None:
        """Finish, and compare what the optimizer sees."""
        network.finish_gradient_synchronization()
        add_up(plain, step, parts)
        optimizer = torch.optim.SGD(network.parameters(), lr=1.0)
        optimizer.step()
        torch.optim.SGD(plain.parameters(), lr=1.0).step()
        optimizer.zero_grad()
        differences.append(difference(whole(network), plain.state_dict()))

    rank_loss(network, 2, rank).backward()
    compare(2)
    for part in range(2):
        (rank_loss(network, 3, rank, part) / 2).backward()
    compare(3, parts=2)
    if kind == "ddp":
        with network.no_sync():
            (rank_loss(network, 4, rank, 0) / 2).backward()
        (rank_loss(network, 4, rank, 1) / 2).backward()
        compare(4, parts=2)
        first = network
        module.layers[0].requires_grad_(False)
        network = wrapped(kind, module, **options)
        module.layers[0].requires_grad_(True)
        rank_loss(network, 5, rank).backward()
        compare(5)
        del first
        for owner in (module, plain):
            owner.layers[0].requires_grad_(False)
        rank_loss(network, 6, rank).backward()
        network.finish_gradient_synchronization()
        assert all(param.grad is None for param in module.layers[0].parameters())
        compare(6)
        del network
        rank_loss(module, 7, rank).backward()
    return max(differences)


def freed(kind: str) -> bool:
    """Train a step and let go of the module; return True if the collector finds its parameters."""
    network = wrapped(kind, built("plain"))
    rank_loss(network, 0, dist.get_rank()).backward()
    network.finish_gradient_synchronization()
    params = [weakref.ref(param) for param in network.parameters()]
    del network
    gc.collect()
    return all(param() is None for param in params)
