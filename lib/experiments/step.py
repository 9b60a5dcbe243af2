"""Measure one training step of the language model, or its first phases."""

from dataclasses import dataclass, field, replace
from typing import ClassVar

from lib import adam, attention, model, precision
from lib.cost import flops, memory
from lib.experiments import attending, exact
from lib.experiments.case import Case, Work
from lib.experiments.training import MODES, Training
from lib.instruments import peak_memory
from lib.validate import one_of

TOLERANCE = {"fp32": 1e-4, "tf32": 5e-2, "bf16": 1e-1, "fp16": 1e-1}  # in fp16 gradients underflow without scaling


@dataclass(frozen=True)
class Step(Case):
    """A training step, or the phases that `mode` names; raises ValueError for a bad value."""

    experiment: ClassVar[str] = "step"
    graphs: ClassVar[bool] = False  # True if CUDA graphs replay the step
    size: str = one_of(model.SIZES)
    context_length: int = field(metadata={"least": 2})  # a single token gives the queries no gradient to check
    batch_size: int
    precision: str = one_of(precision.NAMES)
    compiled: bool
    attention: str = one_of(attention.VARIANTS)
    optimizer: str = one_of(adam.VARIANTS)
    mode: str = one_of(MODES)
    device: str

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
        """Return True if any part goes through torch.compile."""
        return self.compiled or self.attention in attention.COMPILING or self.optimizer in adam.COMPILING

    def unavailable(self) -> str | None:
        """Return why this machine cannot run the case, or None."""
        return attending.unavailable(self, self.attention, self.config.d_head) or super().unavailable()

    def predicted_bytes(self) -> int:
        """Predict the peak: the step's, beside what the check keeps, or the reference's if that is larger.

        The reference takes one sequence, of which it keeps the layers' inputs and a block of scores."""
        logits = min(exact.CHECKED, self.context_length) * self.shape.vocab_size
        gradient = min(exact.CHECKED, self.shape.d_model) * self.shape.d_model
        one, way = replace(self.shape, batch_size=1), ("fp32", "sdpa", "fused")
        mode = "forward_backward" if "backward" in MODES[self.mode] else "no_grad"
        reference = memory.peak_bytes(one, *way, mode, self.device, checkpoint=1)
        scores = attending.block_bytes(one.num_heads, self.context_length, width=4)
        return max(self.formula_bytes() + 3 * 4 * logits + 8 * 4 * gradient, reference + scores)

    def formula_bytes(self) -> int:
        """Return the peak memory of the step by `cost.memory.peak_bytes`."""
        ways = self.precision, self.attention, self.optimizer, self.mode
        return memory.peak_bytes(self.shape, *ways, self.device)

    def costs(self) -> flops.Costs:
        """Return the costs of an iteration."""
        return flops.step_costs(self.shape, self.precision, self.attention, self.optimizer, MODES[self.mode])

    def training(self) -> Training:
        """Build the model, its optimizer and a batch of random tokens."""
        return Training(self)

    def setup(self) -> Work:
        """Build the training step, ready to measure."""
        return self.work(self.training())

    def work(self, training: Training) -> Work:
        """Return the measurable work of a model in training, with its costs in theory."""
        traffic = flops.memory_bound_bytes(self.shape, self.precision, self.attention)
        facts = {
            "tokens": self.shape.tokens,
            "parameters": self.shape.parameters,
            "formula_mib": [self.formula_bytes() / peak_memory.MIB],
            "forward_flops": flops.forward_flops(self.shape),
            "backward_flops": flops.backward_flops(self.shape),
            "optimizer_flops": flops.optimizer_flops(self.shape.parameters, amsgrad=False),
            **{f"{phase}_bytes": sum(parts.values()) for phase, parts in traffic.items()},
        }
        return Work(
            self.device, training.iteration, training.expected, training.result, TOLERANCE[self.precision], facts,
            compiled=self.compiles, graphs=self.graphs, before=training.before,
        )  # fmt: skip
