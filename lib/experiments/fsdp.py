"""Measure a training step of several ranks that share all of its states, and its memory."""

import contextlib
from dataclasses import dataclass
from typing import ClassVar

from torch import Tensor

from lib import adam, precision
from lib.experiments.steps_on_ranks import StepOnRanks, TrainingOnRanks
from lib.parallel import accounting
from lib.parallel.fsdp import FullySharded
from lib.validate import one_of

FIRST = "layers.0.attn.q_proj.weight"


@dataclass(frozen=True)
class Fsdp(StepOnRanks):
    """A training step of ranks that each have the whole model (`plain`), or a share: `fsdp`, `torch`.

    Below fp32, `plain` computes under autocast; the others gather parameters and scatter gradients in the narrow
    type."""

    experiment: ClassVar[str] = "fsdp"
    variants: ClassVar[dict[str, str]] = {"plain": "bucketed", "fsdp": "fsdp", "torch": "fsdp"}
    precision: str = one_of(precision.NAMES)

    def formula_bytes(self) -> int:
        """Return the peak memory of a rank in its step by `parallel.accounting`.

        In shards, beside the activations of a plain rank, two units have weights, gradients, a flat copy of these, and
        a buffer in which to receive others."""
        if self.variant == "plain":
            return super().formula_bytes()
        ways = self.own_shape, self.world, self.precision, "sdpa", "fused", self.place
        whole, shared = (accounting.memory_bytes(scheme, *ways) for scheme in ("bucketed", "fsdp"))
        return int(sum((shared | {"activations": whole["activations"]}).values()) + 3 * shared["gathered"])

    def training(self) -> TrainingOnRanks:
        """Build the model, whole or in shards."""
        if self.variant != "plain":
            return SHARDED[self.variant](self)
        training = TrainingOnRanks(self)
        training.replicate()
        return training


class OurShards(TrainingOnRanks):
    """Train a model in shards by `FullySharded`."""

    def __init__(self, case: Fsdp):
        super().__init__(case)
        self.network = FullySharded(self.module, compute_dtype=precision.AUTOCAST[case.precision])
        self.synchronize = self.network.finish_gradient_synchronization
        self._without_whole()

    def _without_whole(self) -> None:
        """Forget what kept the whole model; cast by what shards it, and optimize the shards."""
        self.autocast, self.weights, self.first = contextlib.nullcontext(), {}, None
        self.optimizer = adam.AdamW(self.network.parameters(), self.case.optimizer)

    def whole(self) -> dict[str, Tensor]:
        """Gather all parameters and buffers, by their names in the plain model."""
        return self.network.gather_full_parameters()

    def expected(self) -> dict:
        """Compute the results of the plain model, as `Training` does, from the gathered weights."""
        self.weights = self.whole() | dict(self.module.named_buffers())
        self.first = self.weights[FIRST].requires_grad_()
        try:
            return super().expected()
        finally:
            self.weights, self.first = {}, None

    def result(self) -> dict[str, Tensor]:
        """Return the results of the first iteration, gathered from all ranks."""
        self.first = self.whole()[FIRST]
        self.first.grad = self._gradient()
        try:
            return super().result()
        finally:
            self.first = None

    def _gradient(self) -> Tensor:
        """Gather the gradient of the first layer's query weights."""
        shards = list(self.network.parameters())
        values = [shard.data for shard in shards]
        for shard in shards:
            shard.data = shard.grad
        gathered = self.whole()[FIRST]
        for shard, value in zip(shards, values, strict=True):
            shard.data = value
        return gathered


class TorchShards(OurShards):
    """Train a model in shards by PyTorch's `fully_shard`."""

    def __init__(self, case: Fsdp):
        from torch.distributed.device_mesh import init_device_mesh  # these take two seconds, which no other case needs
        from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard

        TrainingOnRanks.__init__(self, case)
        narrow = precision.AUTOCAST[case.precision]
        mesh = init_device_mesh(case.place, (case.world,))  # by default that of any accelerator here
        settings = {"mesh": mesh} | ({"mp_policy": MixedPrecisionPolicy(param_dtype=narrow)} if narrow else {})
        for layer in self.module.layers:
            fully_shard(layer, **settings)
        fully_shard(self.module, **settings)
        self._without_whole()

    def whole(self) -> dict[str, Tensor]:
        """Gather all parameters, by their names in the plain model."""
        return {name: param.full_tensor().detach() for name, param in self.module.named_parameters()}

    def _gradient(self) -> Tensor:
        return self.module.get_parameter(FIRST).grad.full_tensor()


SHARDED = {"fsdp": OurShards, "torch": TorchShards}
