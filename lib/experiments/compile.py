"""Measure what compiling attention or a training step costs and saves."""

from dataclasses import dataclass, replace
from typing import ClassVar

from lib import model, precision, validate
from lib.experiments.attention import Attention
from lib.experiments.case import OfAnother, Work
from lib.experiments.step import Step
from lib.instruments import compilation
from lib.validate import one_of

ATTENTION = "attention"


@dataclass(frozen=True)
class Compile(OfAnother):
    """Naive causal attention, or a training step of a model, eager or compiled.

    `model` is "attention" or a size of model; `d_head` must be that model's own head size. Raises ValueError for an
    unknown or impossible value."""

    experiment: ClassVar[str] = "compile"
    model: str = one_of((ATTENTION, *model.SIZES))
    seq_len: int
    d_head: int
    batch_size: int
    precision: str = one_of(precision.NAMES)
    compiled: bool
    device: str

    def __post_init__(self):
        super().__post_init__()
        if self.model != ATTENTION:
            validate.at_least("seq_len", self.seq_len, 2)  # the least context of a step
        if self.model != ATTENTION and self.d_head != (own := self.inner.config.d_head):
            raise ValueError(f"d_head: got {self.d_head}, expected {own} for model {self.model}")

    @property
    def inner(self) -> Attention | Step:
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

    def setup(self) -> Work:
        """Build the inner case, to be compiled from empty caches if `compiled`."""
        work = super().setup()
        work.facts.pop("tokens", None)  # of the whole batch, easily mistaken for seq_len
        return replace(work, around_first=compilation.cold) if self.compiled else work
