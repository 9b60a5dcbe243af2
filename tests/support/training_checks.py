"""Functions that tests call in ranks: training on all of them beside the same training in each process."""

import copy
import gc
import weakref
from dataclasses import dataclass, replace
from unittest import mock

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.utils.checkpoint import checkpoint

from lib import model as lm
from lib.adam import AdamW, Hyper
from lib.fast import MastersAdamW, full_state_dict
from lib.parallel import collectives
from lib.parallel.ddp import DistributedDataParallel
from lib.parallel.fsdp import FullySharded
from lib.parallel.sharded import ShardedOptimizer

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
        "own": sum(param.numel() for param in network.parameters()),
        "matrices": sum(param.numel() for param in plain.parameters() if param.dim() > 1),
        "vectors": sum(param.numel() for param in plain.parameters() if param.dim() <= 1),
    }


def backward_twice() -> None:
    network = DistributedDataParallel(built("plain"), "overlap")
    losses = [rank_loss(network, step, 0) for step in range(2)]
    losses[0].backward()
    try:
        losses[1].backward()
    finally:
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


OPTIMIZERS = {
    "torch": (torch.optim.AdamW, {"lr": 0.01, "weight_decay": 0.1}),
    "ours": (AdamW, {"variant": "fused", "hyper": Hyper(lr=0.01, weight_decay=0.1)}),
}


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
        "own": sum(param.numel() for param in sharded.state),
        "all": sum(param.numel() for param in reference.state),
        "rates": [group["lr"] for group in sharded.param_groups] == [group["lr"] for group in reference.param_groups],
        "change": difference({name: plain.state_dict()[name] for name in start}, start),
    }


def masters(is_sharded: bool) -> dict:
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


def gathered_memory(dtype: torch.dtype | None) -> dict:
    """Return the most bytes that were gathered in a step, and those after it."""
    torch.manual_seed(0)
    network = FullySharded(built("tiny"), dtype)
    seen = most_gathered(network)
    for step in range(2):
        rank_loss(network, step, dist.get_rank()).backward()
        network.finish_gradient_synchronization()
    return {"most": seen["most"], "after": sum(shard.padded.untyped_storage().nbytes() for shard in network._shards)}


def freed(kind: str) -> bool:
    """Train a step and let go of the module; return True if the collector finds its parameters."""
    network = wrapped(kind, built("plain"))
    rank_loss(network, 0, dist.get_rank()).backward()
    network.finish_gradient_synchronization()
    params = [weakref.ref(param) for param in network.parameters()]
    del network
    gc.collect()
    return all(param() is None for param in params)
