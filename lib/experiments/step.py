"""Measure one training step of the language model, or its first phases."""

from dataclasses import dataclass, field, replace
from typing import ClassVar

from lib import adam, attention, model, precision
from lib.catalog import CATALOG
from lib.config import MODES
from lib.cost import flops, memory
from lib.experiments.attention import attention_unavailable
from lib.experiments.case import Case, Work
from lib.experiments.training import MASTERS, Training
from lib.instruments import memory_limit, peak_memory
from lib.validate import one_of

# without loss scaling gradients underflow in fp16: in `small` they have an error of 0.02, and the logits one of 0.001
TOLERANCE = precision.TOLERANCE | {"fp16": 1e-1}


@dataclass(frozen=True)
class Step(Case):
    """Run a step, or the phases that `mode` names; raises ValueError for a bad value."""

    experiment: ClassVar[str] = "step"
    checkpoint: ClassVar[int] = 0  # layers in a group that keeps only its input; 0: no checkpointing
    size: str = one_of(model.SIZES, "tiny")
    # a single token gives the queries no gradient to check
    context_length: int = field(default=128, metadata={"least": 2})
    batch_size: int = 4
    precision: str = one_of(precision.NAMES, "fp32")
    compiled: bool = False
    attention: str = one_of(attention.VARIANTS, "naive")
    optimizer: str = one_of((*adam.VARIANTS, MASTERS), "single_tensor")
    mode: str = one_of(MODES, "train_step")
    device: str = "auto"

    def __post_init__(self):
        super().__post_init__()
        if self.optimizer == MASTERS and self.precision != "bf16":
            raise ValueError(f"precision: got {self.precision}, expected bf16 with the optimizer {MASTERS}")

    @property
    def config(self) -> model.Config:
        """Return the config of the model."""
        return replace(model.SIZES[self.size], context_length=self.context_length)

    @property
    def shape(self) -> flops.Shape:
        """Return the dimensions that costs depend on."""
        return flops.shape_of(self.config, self.batch_size)

    @property
    def compiles(self) -> bool:
        attention_variant = CATALOG["attention"].variants[self.attention]
        variants = CATALOG["adam"].variants | CATALOG["ladder"].variants
        return self.compiled or attention_variant.compiles or variants[self.optimizer].compiles

    def unavailable(self) -> str | None:
        missing = attention_unavailable(self, self.attention, self.config.d_head)
        return missing or memory_limit.refusal(self.formula_bytes(), self.device)

    def formula_bytes(self) -> int:
        """Return the peak memory of the step by `cost.memory.peak_bytes`."""
        return memory.peak_bytes(
            self.shape, self.precision, self.attention, self.optimizer, self.mode, self.device, self.checkpoint
        )

    def setup(self) -> Work:
        """Build the training step, ready to measure."""
        return self.work(Training(self, self.checkpoint))

    def work(self, training: Training) -> Work:
        """Return the measurable work of a model in training, with its costs in theory."""
        traffic = flops.bytes_outside_products(self.shape, self.precision, self.attention)
        facts = {
            "tokens": self.shape.tokens,
            "parameters": self.shape.parameters,
            "formula_mib": [self.formula_bytes() / peak_memory.MIB],
            "forward_flops": flops.forward_flops(self.shape),
            "backward_flops": flops.backward_flops(self.shape),
            "forward_bytes": sum(forward for forward, _ in traffic.values()),
            "backward_bytes": sum(backward for _, backward in traffic.values()),
            "optimizer_bytes": flops.adam_bytes(self.shape.parameters, amsgrad=False),
        }
        return Work(
            self.device, training.iteration, training.expected, training.result, TOLERANCE[self.precision], facts,
            before=training.before, training=training,
        )  # fmt: skip
