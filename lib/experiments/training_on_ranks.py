"""Train one model on several ranks, each on its part of the batch."""

import contextlib
from collections.abc import Callable, Iterator
from dataclasses import replace

import torch
import torch.distributed as dist
from torch import Tensor, nn

from lib import adam, model, precision, timing
from lib.experiments.training import Training
from lib.instruments import peak_memory
from lib.instruments.memory_trace import held_bytes
from lib.parallel import ddp
from lib.parallel.fsdp import FullySharded
from lib.parallel.sharded import ShardedOptimizer
from lib.timing import Mark

FIRST = "layers.0.attn.q_proj.weight"  # whose gradient passes through every layer


class Replica(Training):
    """Train a replica in this rank, whose sequences come first in `batch`.

    `variant` says how gradients are averaged: the four of `ddp.VARIANTS`, or `torch_ddp`. `sharded` and `torch_zero`
    also share the optimizer's states. `synchronize` waits until gradients are the averages of all ranks."""

    def __init__(self, case):
        super().__init__(replace(case.step, device=case.place))
        own = case.batch_size // case.world
        self.batch = self.batch.roll(-own * dist.get_rank(), 0)
        self.inputs_BT = self.batch[:, :-1]
        self.targets_BT = self.batch[:, 1:]
        self.own_BT = self.inputs_BT[:own]
        self.own_targets_BT = self.targets_BT[:own]
        self.synchronize: Callable[[], None] = timing.nothing
        self.build(case)

    def build(self, case) -> None:
        """Wrap the module, and share the optimizer's states, as the variant does."""
        if case.variant == "torch_ddp":
            self.network = nn.parallel.DistributedDataParallel(
                self.module, bucket_cap_mb=case.bucket_mib or None, gradient_as_bucket_view=True,
                broadcast_buffers=False,
            )  # fmt: skip
        else:
            variant = case.variant if case.variant in ddp.VARIANTS else "bucketed"
            self.network = ddp.DistributedDataParallel(self.module, variant, case.bucket_mib or ddp.BUCKET_MIB)
            self.synchronize = self.network.finish_gradient_synchronization
        if case.variant == "sharded":
            self.optimizer = ShardedOptimizer(self.module.parameters(), adam.AdamW, variant="fused")
        if case.variant == "torch_zero":
            # takes two seconds, which others save
            from torch.distributed.optim import ZeroRedundancyOptimizer

            self.optimizer = ZeroRedundancyOptimizer(self.module.parameters(), adam.AdamW, variant="fused")

    def iteration(self, mark: Mark) -> None:
        """Run a step; synchronization left after backward is a phase of its own."""
        with self.autocast:
            self.last["logits"] = self.network(self.own_BT)
            self.last["loss"] = model.loss(self.last["logits"], self.own_targets_BT)
        mark("forward")
        self.last["loss"].backward()
        mark("backward")
        self.synchronize()
        mark("synchronization")
        self.optimizer.step()
        mark("optimizer")

    def held_mib(self) -> dict[str, list[float]]:
        """Return the MiB of parameters, gradients and optimizer's states, and of all."""
        params = list(self.network.parameters())
        # ZeroRedundancyOptimizer's own is inside
        optimizer = getattr(self.optimizer, "optim", self.optimizer)
        states = []
        for state in optimizer.state.values():
            states += [value for value in state.values() if isinstance(value, Tensor)]
        gradients = [param.grad for param in params if param.grad is not None]
        owners = {"parameters": params, "gradients": gradients, "states": states}
        sizes = held_bytes(owners, self.case.device)
        return {name: [size / peak_memory.MIB] for name, size in sizes.items()}

    @contextlib.contextmanager
    def memory_of_first(self) -> Iterator[dict]:
        """Fill in live memory before the first step and around its optimizer, by owner."""
        metrics = {"initial_mib": self.held_mib()["all"]}

        def before_step(*_) -> None:
            metrics["before_step_mib"] = self.held_mib()["all"]

        hook = self.optimizer.register_step_pre_hook(before_step)
        yield metrics
        hook.remove()
        for owner, mib in self.held_mib().items():
            name = "after_step_mib" if owner == "all" else f"after_{owner}_mib"
            metrics[name] = mib


class Shards(Replica):
    """Train a model by `FullySharded`: each rank holds a part of each parameter."""

    def build(self, case) -> None:
        """Shard the module, and optimize the shards."""
        self.network = FullySharded(self.module, compute_dtype=precision.AUTOCAST[case.precision])
        self.synchronize = self.network.finish_gradient_synchronization
        self._use_shards()

    def _use_shards(self) -> None:
        """Optimize the shards, and drop references to the whole model."""
        # the wrapper casts
        self.autocast = contextlib.nullcontext()
        self.weights = {}
        self.first = None
        self.optimizer = adam.AdamW(self.network.parameters(), self.case.optimizer)

    def whole(self) -> dict[str, Tensor]:
        """Gather all parameters and buffers, by their names in the plain model."""
        return self.network.gather_full_parameters()

    def first_gradient(self) -> Tensor:
        """Gather the first query weights' gradient, of which each rank has some rows."""
        own_rows = self.module.get_parameter(FIRST).grad
        rows = [None] * dist.get_world_size()
        dist.all_gather_object(rows, own_rows.cpu())
        return torch.cat(rows).to(own_rows.device)

    def expected(self) -> dict:
        """Compute the plain model's results, as `Training` does, from gathered weights."""
        self.weights = self.whole() | dict(self.module.named_buffers())
        self.first = self.weights[FIRST].requires_grad_()
        expected = super().expected()
        self.weights = {}
        self.first = None
        return expected

    def result(self) -> dict[str, Tensor]:
        """Return the results of the first iteration, gathered from all ranks."""
        gradient = self.first_gradient()
        self.first = self.whole()[FIRST]
        self.first.grad = gradient
        result = super().result()
        self.first = None
        return result


class TorchShards(Shards):
    """Train a model in shards by PyTorch's `fully_shard`."""

    def build(self, case) -> None:
        """Shard each layer, then the rest."""
        # these take two seconds, which others save
        from torch.distributed.device_mesh import init_device_mesh
        from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard

        narrow = precision.AUTOCAST[case.precision]
        # by default that of any accelerator here
        settings = {"mesh": init_device_mesh(case.place, (case.world,))}
        if narrow is not None:
            settings["mp_policy"] = MixedPrecisionPolicy(param_dtype=narrow)
        for layer in self.module.layers:
            fully_shard(layer, **settings)
        fully_shard(self.module, **settings)
        self._use_shards()

    def whole(self) -> dict[str, Tensor]:
        """Gather all parameters, by their names in the plain model."""
        return {name: param.full_tensor().detach() for name, param in self.module.named_parameters()}

    def first_gradient(self) -> Tensor:
        """Gather the gradient of the first layer's query weights."""
        return self.module.get_parameter(FIRST).grad.full_tensor()


def training(case) -> Replica:
    """Build model, optimizer and batch of a case of `parallel` in this rank."""
    if case.variant == "fsdp":
        return Shards(case)
    if case.variant == "torch_fsdp":
        return TorchShards(case)
    return Replica(case)


def messages(network: nn.Module) -> list[Tensor]:
    """Return tensors as large as the messages by which our ways average gradients."""
    return [torch.zeros(sum(param.numel() for param in bucket)) for bucket in network.buckets]
