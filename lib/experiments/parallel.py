"""Measure a training step of several ranks, by our ways and PyTorch's.

- `plain`: one process on the whole batch, with all threads. Several ranks of one machine must beat it to be of use.
- `naive`, `flat`, `overlap`, `bucketed`: each rank has the whole model, and gradients are averaged (`parallel.ddp`).
- `sharded`: bucketed, and each rank has a share of the optimizer's states (`parallel.sharded`).
- `fsdp`: each rank has a share of everything but the norms (`parallel.fsdp`).
- `torch_ddp`, `torch_zero`, `torch_fsdp`: the baselines, by PyTorch's own classes; `torch_zero` is its optimizer alone,
  and gradients are averaged as in `bucketed`.
"""

import statistics
from dataclasses import dataclass, field, replace
from typing import ClassVar

import torch
import torch.distributed as dist

from lib import model, precision, timing
from lib.catalog import CATALOG
from lib.cost import flops
from lib.experiments.case import Case, Recording, Work
from lib.experiments.on_ranks import BACKEND_NAMES, OnRanks
from lib.experiments.step import TOLERANCE, Step
from lib.experiments.training_on_ranks import Replica, Shards, TorchShards
from lib.instruments import peak_memory
from lib.parallel import accounting, ddp, timeline
from lib.validate import one_of

PLAIN = "plain"
VARIANTS = CATALOG["parallel"].variants
TRACED = [*ddp.VARIANTS, "fsdp"]  # whose messages may travel beside a pass
REPLICAS = {"fsdp": Shards, "torch_fsdp": TorchShards}  # the class of each variant that shares parameters


@dataclass(frozen=True)
class Parallel(OnRanks):
    """Train on `world` ranks that share `batch_size` sequences, by a `variant`.

    `bucket_mib` is 0 for the default and for variants without buckets; `world` is 1 for `plain` alone. Raises
    ValueError for an unknown or impossible value."""

    experiment: ClassVar[str] = "parallel"
    size: str = one_of(model.SIZES, "tiny")
    context_length: int = field(default=128, metadata={"least": 2})
    batch_size: int = 4
    precision: str = one_of(precision.NAMES, "fp32")
    variant: str = one_of(VARIANTS, "naive")
    bucket_mib: int = field(default=0, metadata={"least": 0})
    world: int = 2
    backend: str = one_of(BACKEND_NAMES, "auto")
    device: str = "auto"

    def __post_init__(self):
        super().__post_init__()
        if (self.world == 1) != (self.variant == PLAIN):
            expected = "1" if self.variant == PLAIN else "2 or more"
            raise ValueError(f"world: got {self.world}, expected {expected} for {self.variant}")
        if self.batch_size % self.world:
            raise ValueError(f"batch_size: got {self.batch_size}, expected a multiple of world, {self.world}")
        if self.bucket_mib and not VARIANTS[self.variant].has_buckets:
            raise ValueError(f"bucket_mib: got {self.bucket_mib}, expected 0 for {self.variant}")

    @property
    def step(self) -> Step:
        """Return the step of one process on the whole batch."""
        return Step(
            size=self.size, context_length=self.context_length, batch_size=self.batch_size, precision=self.precision,
            compiled=False, attention="sdpa", optimizer="fused", mode="train_step", device=self.device,
        )  # fmt: skip

    @property
    def rank_shape(self) -> flops.Shape:
        """Return the dimensions of the model and of a rank's part of the batch."""
        return replace(self.step.shape, batch_size=self.batch_size // self.world)

    def unavailable(self) -> str | None:
        if self.variant == PLAIN:
            return self.step.unavailable()
        return super().unavailable()

    def measure(self, record: Recording, seconds: float) -> None:
        """Measure one process here, and several in their ranks."""
        if self.variant == PLAIN:
            Case.measure(self, record, seconds)
        else:
            super().measure(record, seconds)

    def measure_in_rank(self, record: Recording, seconds: float) -> None:
        """Measure as in one process.

        Outside a sweep, and in its first round, the four of `ddp.VARIANTS` also time their messages alone. They and
        `fsdp` record the course of a step."""
        super().measure_in_rank(record, seconds)
        work = record.works[0]
        if record.round <= 1 and self.variant in TRACED:
            median_ms = statistics.median(record.metrics["total_ms"])
            record.metrics["timeline"] = timeline.typical_step(work.iteration, work.before, median_ms)
        if record.round > 1 or self.variant not in ddp.VARIANTS:
            return
        tensors = []
        for bucket in work.training.network.buckets:
            elements = sum(param.numel() for param in bucket)
            tensors.append(torch.zeros(elements, device=self.place))

        def alone(mark: timing.Mark) -> None:
            for tensor in tensors:
                dist.all_reduce(tensor)
            mark("messages")

        record.metrics["alone_ms"] = timing.measure(alone, work.clock, seconds).metrics()["total_ms"]

    def setup(self) -> Work:
        """Build the training step in this rank, ready to measure."""
        if self.variant == PLAIN:
            return self.step.setup()
        training = REPLICAS.get(self.variant, Replica)(self)
        own_bytes = accounting.state_bytes(VARIANTS[self.variant].scheme, self.rank_shape, self.world)
        facts = {
            "tokens": self.step.shape.tokens,
            "parameters": self.rank_shape.parameters,
            "forward_flops": flops.forward_flops(self.step.shape),
            "backward_flops": flops.backward_flops(self.step.shape),
            **{f"predicted_{name}_mib": [size / peak_memory.MIB] for name, size in own_bytes.items()},
        }
        # PyTorch's own averaging, and the variants that share parameters, have none
        buckets = getattr(training.network, "buckets", None)
        if buckets:
            bucket_bytes = [sum(param.nbytes for param in bucket) for bucket in buckets]
            facts |= {"messages": len(buckets), "largest_message_mib": max(bucket_bytes) / peak_memory.MIB}
        return Work(
            self.place, training.iteration, training.expected, training.result, TOLERANCE[self.precision], facts,
            before=training.before, around_first=training.memory_of_first, training=training, clock=self.clock(),
        )  # fmt: skip
