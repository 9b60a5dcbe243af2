"""Measure what compiling attention or a training step costs and saves."""

from dataclasses import dataclass, replace
from typing import ClassVar

from lib import model, precision, validate
from lib.cost import flops
from lib.experiments.attention import Attention
from lib.experiments.measure import Work
from lib.experiments.step import Step
from lib.instruments import compilation, device

ATTENTION = "attention"


@dataclass(frozen=True)
class Compile:
    """Naive causal attention, or a training step of a model, eager or compiled.

    `model` is "attention" or a size of model; `d_head` must be that model's own head size. Raises ValueError for an
    unknown or impossible value."""

    experiment: ClassVar[str] = "compile"
    model: str
    seq_len: int
    d_head: int
    batch_size: int
    precision: str
    compiled: bool
    device: str

    def __post_init__(self):
        object.__setattr__(self, "device", device.named(self.device))
        validate.fields(self)
        validate.choice("model", self.model, (ATTENTION, *model.SIZES))
        validate.choice("precision", self.precision, precision.NAMES)
        if self.model != ATTENTION:
            validate.at_least("seq_len", self.seq_len, 2)  # the least context of a step
        if self.model != ATTENTION and self.d_head != self.underlying().config.d_head:
            own = self.underlying().config.d_head
            raise ValueError(f"d_head: got {self.d_head}, expected {own} for model {self.model}")

    def underlying(self) -> Attention | Step:
        """Return the case of `attention` or `step` that this one runs."""
        alike = {"batch_size": self.batch_size, "precision": self.precision, "device": self.device}
        if self.model == ATTENTION:
            variant = "compiled" if self.compiled else "naive"
            return Attention(
                variant=variant, seq_len=self.seq_len, d_head=self.d_head, causal=True, native=False, cold=False,
                **alike,
            )  # fmt: skip
        return Step(
            size=self.model, context_length=self.seq_len, compiled=self.compiled, attention="naive",
            optimizer="single_tensor", mode="train_step", **alike,
        )  # fmt: skip

    def unavailable(self) -> str | None:
        """Return why this machine cannot run the case, or None."""
        return self.underlying().unavailable()

    def predicted_bytes(self) -> int:
        """Predict the peak of the underlying case."""
        return self.underlying().predicted_bytes()

    def costs(self) -> flops.Costs:
        """Return the costs of the underlying case."""
        return self.underlying().costs()

    def setup(self) -> Work:
        """Build the underlying case, to be compiled from empty caches if `compiled`."""
        work = self.underlying().setup()
        work.facts.pop("tokens", None)  # of the whole batch, easily mistaken for seq_len
        return replace(work, around_first=compilation.cold) if self.compiled else work
