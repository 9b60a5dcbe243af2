"""One training step of the language model, or its first phases: all in the same iteration."""

from dataclasses import dataclass, field, replace
from typing import ClassVar

from lib import adam, attention, model, precision, validate
from lib.cost import flops, memory
from lib.experiments.measure import Work
from lib.experiments.training import MODES, Training
from lib.instruments import environment, peak_memory

TOLERANCE = {"fp32": 1e-4, "tf32": 5e-2, "bf16": 1e-1, "fp16": 1e-1}  # in fp16 gradients underflow without scaling


@dataclass(frozen=True)
class Step:
    """A training step, or as much of it as `mode` says (`training.MODES`); raises ValueError for a value that is
    unknown or impossible."""

    experiment: ClassVar[str] = "step"
    size: str
    context_length: int = field(metadata={"least": 2})  # of a single token the queries have no gradient to be checked
    batch_size: int
    precision: str
    compiled: bool
    attention: str
    optimizer: str
    mode: str
    device: str

    def __post_init__(self):
        object.__setattr__(self, "device", environment.device(self.device))
        validate.fields(self)
        validate.choice("size", self.size, model.SIZES)
        validate.choice("precision", self.precision, precision.NAMES)
        validate.choice("attention", self.attention, attention.VARIANTS)
        validate.choice("optimizer", self.optimizer, adam.VARIANTS)
        validate.choice("mode", self.mode, MODES)

    @property
    def config(self) -> model.Config:
        """The model's shape."""
        return replace(model.SIZES[self.size], context_length=self.context_length)

    @property
    def shape(self) -> flops.Shape:
        """The dimensions that the costs depend on."""
        return flops.shape_of(self.config, self.batch_size)

    @property
    def compiles(self) -> bool:
        """Whether any part of it goes through torch.compile."""
        return self.compiled or self.attention in attention.COMPILING or self.optimizer in adam.COMPILING

    def unavailable(self) -> str | None:
        """Why this machine cannot run the case, or None."""
        missing = environment.compiler_missing(self.device) if self.compiles else None
        missing = missing or attention.unavailable(self.attention, self.device, self.config.d_head)
        return missing or precision.unavailable(self.precision, self.device)

    def predicted_bytes(self) -> int:
        """Peak memory of the step, or of the reference's, beside the logits that the two are compared by. The reference
        runs before the optimizer has moments, and goes backward where the step does."""
        logits, reference = 4 * self.shape.tokens * self.shape.vocab_size, ("fp32", "naive", "fused")
        mode = "forward_backward" if "backward" in MODES[self.mode] else "no_grad"
        return logits + max(self.formula_bytes(), memory.peak_bytes(self.shape, *reference, mode, self.device))

    def formula_bytes(self) -> int:
        """Peak memory of the step by the closed formula of `cost.memory.peak_bytes`."""
        ways = self.precision, self.attention, self.optimizer, self.mode
        return memory.peak_bytes(self.shape, *ways, self.device)

    def training(self) -> Training:
        """The model, its optimizer and a batch of random tokens."""
        return Training(self)

    def setup(self) -> Work:
        """Build the model, its optimizer and a batch of random tokens."""
        return self.work(self.training())

    def work(self, training: Training) -> Work:
        """What is measured of a model in training, with what it costs in theory."""
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
            compiled=self.compiles, before=training.before,
        )  # fmt: skip
