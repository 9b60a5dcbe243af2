"""Functions that tests call in ranks by name: training on all ranks beside the same training in each process."""

import contextlib
import copy
import gc
import os
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from unittest import mock

import torch
import torch.distributed as dist
from torch import nn

from lib import model as lm
from lib import timing
from lib.adam import AdamW, Hyper
from lib.instruments.live_memory import held_bytes
from lib.parallel import ranks, transfers
from lib.parallel.ddp import DistributedDataParallel
from lib.parallel.fsdp import FullySharded
from lib.parallel.sharded import ShardedOptimizer

EXAMPLES = 4  # of a rank
TOY, TINY = lm.Config(23, 8, 8, 12, 2, 2), replace(lm.SIZES["tiny"], context_length=16)


class Toy(nn.Module):
    """Predict a number by layers of uneven sizes; `spare` works in some steps, also of one rank, `never` in none."""

    def __init__(self, alike: bool):
        super().__init__()
        self.alike = alike  # all ranks use the same layers
        self.first, self.spare, self.never = nn.Linear(7, 13), nn.Linear(13, 13), nn.Linear(3, 3)
        self.layers = nn.ModuleList(nn.Linear(13, 13) for _ in range(3))
        self.last = nn.Linear(13, 1)
        self.scale = nn.Parameter(torch.ones(13))
        self.register_buffer("shift", torch.randn(13))

    def forward(self, x, spare: bool):
        x = self.first(x) * self.scale + self.shift
        x = self.spare(x) if spare else x
        for layer in self.layers:
            x = x + torch.tanh(layer(x))
        return self.last(x)


def process() -> tuple[int, int]:
    """Return the identity of this rank's process, and its threads."""
    return os.getpid(), torch.get_num_threads()


def refuse(rank: int) -> None:
    """Raise in one rank, while the others wait for it."""
    if dist.get_rank() == rank:
        raise ValueError(f"rank {rank} refuses")
    dist.barrier()


def said(refused: Callable) -> str:
    """Return what is said to what is refused."""
    try:
        refused()
    except (RuntimeError, ValueError) as error:
        return str(error)


def times() -> list:
    """Time a pretended iteration in which either rank is the slower one in one phase."""
    instants = iter([0, 30, 40, 90] if dist.get_rank() else [0, 10, 60, 70])
    clock = ranks.Clock(timing.HostClock(now=lambda: next(instants)))
    clock.start()
    clock.mark()
    clock.mark()
    return clock.stop()


def built(name: str) -> nn.Module:
    """Build a model with random weights."""
    if name in ("plain", "tied", "frozen"):
        made = lm.TransformerLM(TOY)
    else:
        made = lm.TransformerLM(TINY) if name == "tiny" else Toy(alike=name == "alike")
    if name == "tied":
        made.lm_head.weight = made.token_embeddings.weight
    if name == "frozen":
        made.layers[0].attn.q_proj.requires_grad_(False)
        made.ln_final.requires_grad_(False)
        made.token_embeddings.requires_grad_(False)
    return made


def rank_loss(network: nn.Module, step: int, rank: int, part: int = 0) -> torch.Tensor:
    """Compute the loss of one rank's examples in a step."""
    generator = torch.Generator().manual_seed(1000 * step + 10 * rank + part)
    inner = getattr(network, "module", network)
    if isinstance(inner, Toy):
        x = torch.randn(EXAMPLES, 7, generator=generator)
        return (network(x, step == 1 or (step == 3 and (rank == 1 or inner.alike))) - 1).square().mean()
    shape = EXAMPLES, inner.config.context_length + 1
    tokens = torch.randint(inner.config.vocab_size, shape, generator=generator)
    return lm.loss(network(tokens[:, :-1]).float(), tokens[:, 1:])


def reference_step(network: nn.Module, optimizer, step: int, parts: int = 1, zeros: bool = False) -> None:
    """Train on the examples of all ranks in one process; with `zeros` in place of missing gradients."""
    optimizer.zero_grad()
    if zeros:
        for param in network.parameters():
            param.grad = torch.zeros_like(param) if param.requires_grad else None
    world = dist.get_world_size()
    for rank in range(world):
        for part in range(parts):
            (rank_loss(network, step, rank, part) / world / parts).backward()
    optimizer.step()


def sgd(network):
    # with momentum and decay, a gradient of zeros has another effect than none
    return torch.optim.SGD(network.parameters(), lr=0.05, momentum=0.9, weight_decay=0.1)


def difference(found: dict, expected: dict) -> float:
    assert list(found) == list(expected)
    return max((found[name].double() - expected[name].double()).abs().max().item() for name in found)


@contextlib.contextmanager
def noted(label: Callable = lambda tensor: tensor.nbytes) -> Iterator[list]:
    """Yield a list that gets a label of each tensor that is sent inside, by default its bytes."""
    log = []

    def watched(begin: Callable) -> Callable:
        def begun(*given):
            log.append(label([each for each in given if isinstance(each, torch.Tensor)][-1]))
            return begin(*given)

        return begun

    names = ("average", "broadcast", "gather", "scatter")
    with mock.patch.multiple(transfers, **{name: watched(getattr(transfers, name)) for name in names}):
        yield log


def data_parallel(model: str, variant: str, bucket_mib: float, parts: int) -> dict:
    """Train five steps; return the largest difference, and the bytes of the collectives in their order."""
    torch.manual_seed(dist.get_rank())
    network = DistributedDataParallel(built(model), variant, bucket_mib)
    plain, start = copy.deepcopy(network.module), copy.deepcopy(network.module.state_dict())
    optimizer, reference = sgd(network), sgd(plain)
    counts = []
    with noted() as sent:
        for step in range(5):
            optimizer.zero_grad()
            with network.no_sync():
                for part in range(parts - 1):
                    (rank_loss(network, step, dist.get_rank(), part) / parts).backward()
            (rank_loss(network, step, dist.get_rank(), parts - 1) / parts).backward()
            counts.append(len(sent))
            network.finish_gradient_synchronization()
            optimizer.step()
            reference_step(plain, reference, step, parts)
    sizes = [param.nbytes for param in plain.parameters() if param.requires_grad]
    return {
        "error": difference(network.module.state_dict(), plain.state_dict()),
        "change": difference(plain.state_dict(), start),
        "parameters": len(sizes), "gradient_bytes": sum(sizes), "largest_bytes": max(sizes),
        "sent": sent,
        "in_backward": counts[0],
        "checksum": sum(value.double().sum().item() for value in network.state_dict().values()),
        "without": [key for key, param in network.module.named_parameters() if param.grad is None],
    }  # fmt: skip


def backward_twice() -> str:
    """Run two backward passes without a synchronization between them; return what is said."""
    network = DistributedDataParallel(built("plain"), "overlap")
    rank_loss(network, 0, 0).backward()
    told = said(lambda: rank_loss(network, 1, 0).backward())
    network.finish_gradient_synchronization()
    return told


OPTIMIZERS = {
    "torch": (torch.optim.AdamW, {"lr": 0.01, "weight_decay": 0.1}),
    "ours": (AdamW, {"variant": "fused", "hyper": Hyper(lr=0.01, weight_decay=0.1)}),
}


def groups(network: nn.Module) -> list[dict]:
    """Part the parameters into two groups with settings of their own."""
    params = list(network.parameters())
    return [{"params": params[:3]}, {"params": params[3:], "lr": 0.002, "weight_decay": 0.0}]


def averaged(network: nn.Module, step: int) -> None:
    """Give a network the average of the ranks' gradients, as data parallelism would."""
    network.zero_grad()
    for rank in range(dist.get_world_size()):
        (rank_loss(network, step, rank) / dist.get_world_size()).backward()


def sharded_optimizer(model: str, optimizer: str) -> dict:
    """Train ten steps with groups, a schedule and one group more; return the largest difference."""
    torch.manual_seed(0)
    network, (cls, settings) = built(model), OPTIMIZERS[optimizer]
    plain, start = copy.deepcopy(network), copy.deepcopy(network.state_dict())
    optimizer, reference = ShardedOptimizer(groups(network), cls, **settings), cls(groups(plain), **settings)
    added, added_plain = nn.Parameter(torch.ones(5)), nn.Parameter(torch.ones(5))
    schedules = [torch.optim.lr_scheduler.StepLR(each, 3, 0.5) for each in (optimizer, reference)]
    for step in range(10):
        if step == 5:
            optimizer.add_param_group({"params": [added], "lr": 0.1})
            reference.add_param_group({"params": [added_plain], "lr": 0.1})
        for each, extra in ((network, added), (plain, added_plain)):
            averaged(each, step)
            extra.grad = torch.full((5,), 0.5 + step)
        loss = optimizer.step(lambda step=step: 3.0 + step)
        reference.step()
        for schedule in schedules:
            schedule.step()
    params = list(network.parameters())
    return {
        "error": max(
            difference(network.state_dict(), plain.state_dict()), (added - added_plain).abs().max().item()
        ),
        "state_error": state_difference(optimizer.state_dict(), reference.state_dict()),
        "loss": loss,
        "own": sum(param.numel() for param in optimizer.state),
        "numel": sum(param.numel() for param in params if param.requires_grad) + 5,
        "change": difference(plain.state_dict(), start),
    }  # fmt: skip


def state_difference(found: dict, expected: dict) -> float:
    """Compare two state dicts of optimizers, their groups by equality."""
    assert found["param_groups"] == expected["param_groups"]
    assert list(found["state"]) == list(expected["state"])
    pairs = [(found["state"][index], entries) for index, entries in expected["state"].items()]
    assert all(list(one) == list(other) for one, other in pairs)
    return max((one[name] - other[name]).abs().max().item() for one, other in pairs for name in other)


def saved_state(path: str, optimizer: str) -> None:
    """Save weights and optimizer state after five steps, as rank 0 has them."""
    torch.manual_seed(0)
    network, (cls, settings) = built("plain"), OPTIMIZERS[optimizer]
    optimizer = ShardedOptimizer(groups(network), cls, **settings)
    for step in range(5):
        averaged(network, step)
        optimizer.step()
    state = optimizer.state_dict()
    if dist.get_rank() == 0:
        torch.save({"network": network.state_dict(), "optimizer": state}, path)
    dist.barrier()


def continued(path: str, optimizer: str, sharded: bool = True) -> float:
    """Load what was saved, train five steps more, and return the largest difference from ten steps in one process.

    The gradients are those of two ranks, whatever the number of ranks."""
    saved, (cls, settings) = torch.load(path, weights_only=True), OPTIMIZERS[optimizer]
    torch.manual_seed(0)
    plain = built("plain")
    network = copy.deepcopy(plain)
    reference = cls(groups(plain), **settings)
    network.load_state_dict(saved["network"])
    optimizer = ShardedOptimizer(groups(network), cls, **settings) if sharded else cls(groups(network), **settings)
    optimizer.load_state_dict(saved["optimizer"])
    for step in range(10):
        for each, its in [(plain, reference)] + [(network, optimizer)] * (step >= 5):
            each.zero_grad()
            for rank in range(2):
                (rank_loss(each, step, rank) / 2).backward()
            its.step()
    return difference(network.state_dict(), plain.state_dict())


def broadcasts() -> list[int]:
    """Return the bytes of each broadcast of a step."""
    network = built("tiny")
    averaged(network, 0)
    with noted() as sent:
        ShardedOptimizer(network.parameters(), torch.optim.SGD, lr=0.1).step()
    return sent


def other_groups() -> str:
    """Load a state of two parameters for one; return what is said."""
    first, second = (
        ShardedOptimizer([nn.Parameter(torch.ones(2)) for _ in range(n)], torch.optim.SGD, lr=1.0) for n in (1, 2)
    )
    return said(lambda: first.load_state_dict(second.state_dict()))


def shared_memory() -> dict:
    """Shard an optimizer of parameters that share their memory with others, of which one is frozen at first."""
    whole = torch.arange(12.0)
    params = [nn.Parameter(part) for part in whole.split(4)] + [nn.Parameter(torch.ones(6), requires_grad=False)]
    optimizer = ShardedOptimizer(params, torch.optim.SGD, lr=1.0)
    for step in range(2):
        for param in params:
            param.grad = torch.ones_like(param)
        params[3].grad = torch.ones(6) if step else None
        optimizer.step()
        params[3].requires_grad_(True)
    return {"whole": whole.tolist(), "later": params[3].tolist()}


def fully_sharded(model: str, dtype: str = "float32", parts: int = 1) -> dict:
    """Train five steps; return the largest differences of weights and of the loss, and what was sent in each step."""
    torch.manual_seed(dist.get_rank())
    plain = built(model)
    network = FullySharded(copy.deepcopy(plain), None if dtype == "float32" else getattr(torch, dtype))
    start = network.gather_full_parameters()
    plain.load_state_dict(start)
    optimizer, reference = (sgd(each) for each in (network, plain))
    orders, loss_errors, shards = [], [], network._shards()

    def label(tensor: torch.Tensor) -> tuple[str, int]:
        gathered = [f"gather {shard.name}" for shard in shards if shard.whole is tensor]
        (name,) = gathered or [f"reduce {shard.name}" for shard in shards if shard.gradients is tensor]
        return name, tensor.nbytes

    for step in range(5):
        optimizer.zero_grad()
        with noted(label) as sent:
            for part in range(parts):
                (rank_loss(network, step, dist.get_rank(), part) / parts).backward()
            network.finish_gradient_synchronization()
        optimizer.step()
        orders.append([name for name, _ in sent])
        reference_step(plain, reference, step, parts, zeros=True)
        with torch.no_grad():
            loss_errors.append(abs(rank_loss(network, step, 0) - rank_loss(plain, step, 0)).item())
    end, expected = network.gather_full_parameters(), plain.state_dict()
    return {
        "error": difference(end, expected), "loss_error": max(loss_errors), "orders": orders,
        "bytes": [size for _, size in sent], "change": difference(expected, start),
        "gathered": sum(shard.whole.untyped_storage().nbytes() for shard in shards),
    }  # fmt: skip


def fully_sharded_memory(dtype: str) -> dict:
    """Return the bytes of all tensors of this rank after a step, and the most that were gathered in it."""
    torch.manual_seed(0)
    gc.collect()
    gc.freeze()  # what is there already is not looked at, and not counted
    network = FullySharded(built("tiny"), None if dtype == "float32" else getattr(torch, dtype))
    optimizer = torch.optim.AdamW(network.parameters())
    at_start = live_bytes()
    shards, gathered = network._shards(), []

    def note(*_):
        gathered.append(sum(shard.whole.untyped_storage().nbytes() for shard in shards))

    for module in network.module.modules():
        module.register_forward_pre_hook(note)
    for step in range(2):
        optimizer.zero_grad()
        loss = rank_loss(network, step, dist.get_rank())
        for param in network.module.parameters():
            param.register_post_accumulate_grad_hook(note)
        loss.backward()
        network.finish_gradient_synchronization()
        optimizer.step()
    del loss
    at_end = live_bytes()
    gc.unfreeze()
    return {
        "start_bytes": at_start, "step_bytes": at_end, "gathered_bytes": max(gathered),
        "layers": sorted(sum(shard.whole_bytes for shard in layer.shards) for layer in network._layers),
        "parameters": sum(shard.numel for shard in shards),
    }  # fmt: skip


def live_bytes() -> int:
    """Count the bytes of all tensors that Python can reach, once the backend's threads have let go of theirs."""
    counts = []
    for _ in range(10):
        time.sleep(0.02)
        counts.append(held_bytes({}, "cpu")["all"])
    return min(counts)


def reloaded() -> float:
    """Load a plain model's weights into a sharded one, in the middle of a step; return the difference."""
    torch.manual_seed(5)
    network, other = FullySharded(built("plain")), built("plain")
    rank_loss(network, 0, 0)
    network.load_state_dict(other.state_dict())
    return difference(network.state_dict(), other.state_dict())


def moved() -> str:
    """Move a sharded module; return what is said."""
    return said(lambda: FullySharded(built("plain")).to(torch.float64))
