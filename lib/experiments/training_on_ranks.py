"""Train one model on several ranks, each on its part of the batch."""

import contextlib
import time
from collections.abc import Iterator
from dataclasses import replace

import torch
import torch.distributed as dist
from torch import Tensor, nn

from lib import adam, precision, timing
from lib.experiments.training import FIRST, Training
from lib.instruments import peak_memory
from lib.instruments.memory_trace import count_bytes
from lib.parallel import ddp
from lib.parallel.fsdp import FullySharded
from lib.parallel.sharded import ShardedOptimizer


class Replica(Training):
    """Train a replica in this rank, on its part of the batch.

    `variant` says how gradients are averaged: the four of `ddp.VARIANTS`, or `torch_ddp`. `sharded` and `torch_zero`
    average as `bucketed` does, and share the optimizer's states by our class or PyTorch's."""

    def __init__(self, parallel_case):
        super().__init__(replace(parallel_case.step, device=parallel_case.place))
        own = parallel_case.batch_size // parallel_case.world
        # as in Training, an index in the whole batch
        self.sequence = own * dist.get_rank()
        self.inputs_BT = self.inputs_BT[self.sequence : self.sequence + own]
        self.targets_BT = self.targets_BT[self.sequence : self.sequence + own]
        self.synchronize = timing.nothing
        self.wrap(parallel_case)

    def wrap(self, parallel_case) -> None:
        """Wrap the module, and share the optimizer's states, as the variant does."""
        variant = parallel_case.variant
        bucket_mib = parallel_case.bucket_mib  # 0: the default
        if variant == "torch_ddp":
            # it waits in the backward pass, so `synchronization` takes no time
            self.network = nn.parallel.DistributedDataParallel(
                self.module, bucket_cap_mb=bucket_mib or None, gradient_as_bucket_view=True, broadcast_buffers=False
            )
        else:
            averaging = variant if variant in ddp.VARIANTS else "bucketed"
            self.network = ddp.DistributedDataParallel(self.module, averaging, bucket_mib or ddp.BUCKET_MIB)
            self.synchronize = self.network.finish_gradient_synchronization
        if variant == "sharded":
            self.optimizer = ShardedOptimizer(self.module.parameters(), adam.AdamW, variant="fused")
        if variant == "torch_zero":
            # imported here, since it takes a second
            from torch.distributed.optim import ZeroRedundancyOptimizer

            self.optimizer = ZeroRedundancyOptimizer(self.module.parameters(), adam.AdamW, variant="fused")

    def held_mib(self) -> dict[str, list[float]]:
        """Return live memory: `parameters_mib`, `gradients_mib`, `states_mib`, `all_mib`."""
        params = list(self.network.parameters())
        gradients = [param.grad for param in params if param.grad is not None]
        # ZeroRedundancyOptimizer's own is inside
        optimizer = getattr(self.optimizer, "optim", self.optimizer)
        states = []
        for state in optimizer.state.values():
            states += [value for value in state.values() if isinstance(value, Tensor)]
        # what results are checked against stays for later cases, and is no part of training
        reference = [value for value in self.expected().values() if isinstance(value, Tensor)]
        owners = {"reference": reference, "parameters": params, "gradients": gradients, "states": states}
        # gloo's threads may have tensors still to free, for which they need the interpreter
        time.sleep(0.05)
        sizes = count_bytes(owners, self.case.device)
        sizes["all"] -= sizes.pop("reference")
        return peak_memory.in_mib(sizes)

    @contextlib.contextmanager
    def memory_of_first(self) -> Iterator[dict]:
        """Yield a dict that gets live memory in MiB.

        - `initial_mib`: the `all_mib` of `held_mib` before the block.
        - `before_step_mib`: the same before the optimizer's step.
        - `after_parameters_mib` to `after_all_mib`: all of `held_mib` after the block."""
        metrics = {"initial_mib": self.held_mib()["all_mib"]}

        def before_step(*_) -> None:
            metrics["before_step_mib"] = self.held_mib()["all_mib"]

        hook = self.optimizer.register_step_pre_hook(before_step)
        try:
            yield metrics
        finally:
            hook.remove()
        for name, mib in self.held_mib().items():
            metrics[f"after_{name}"] = mib


class Shards(Replica):
    """Train by `FullySharded`: each rank holds rows of matrices, and vectors whole."""

    def wrap(self, parallel_case) -> None:
        """Shard the module by our class."""
        self.network = FullySharded(self.module, compute_dtype=precision.AUTOCAST[parallel_case.precision])
        self.synchronize = self.network.finish_gradient_synchronization
        self.prepare_shards()

    def prepare_shards(self) -> None:
        """Let the wrapper cast instead of autocast, and give the optimizer the shards."""
        self.autocast = contextlib.nullcontext()
        # autocast would compute the loss in fp32, too
        self.network.register_forward_hook(lambda module, inputs, logits: logits.float())
        # PyTorch's `fully_shard` has replaced the parameters
        self.first = self.module.get_parameter(FIRST)
        self.optimizer = adam.AdamW(self.network.parameters(), self.case.optimizer)

    def plain(self, weights: Tensor) -> Tensor:
        """Return the whole matrix of which each rank has some rows."""
        rows = [None] * dist.get_world_size()
        dist.all_gather_object(rows, weights.cpu())
        return torch.cat(rows)


class TorchShards(Shards):
    """Train a model in shards by PyTorch's `fully_shard`."""

    def wrap(self, parallel_case) -> None:
        """Shard each layer, then the rest."""
        # imported here, since it takes a second
        from torch.distributed.device_mesh import init_device_mesh
        from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard

        narrow = precision.AUTOCAST[parallel_case.precision]
        # the default mesh would use any accelerator of this machine
        settings = {"mesh": init_device_mesh(parallel_case.place, (parallel_case.world,))}
        if narrow is not None:
            settings["mp_policy"] = MixedPrecisionPolicy(param_dtype=narrow)
        for layer in self.module.layers:
            fully_shard(layer, **settings)
        fully_shard(self.module, **settings)
        self.prepare_shards()

    def plain(self, weights: Tensor) -> Tensor:
        """Return the whole matrix of which each rank has a part."""
        return weights.full_tensor()
