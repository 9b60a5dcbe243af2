"""Attention or a training step, compiled from empty caches, to be set against the same run eagerly."""

from dataclasses import dataclass, replace
from typing import ClassVar

from lib import model, precision, validate
from lib.experiments.attention import Attention
from lib.experiments.measure import Work
from lib.experiments.step import Step
from lib.instruments import compilation, environment

ATTENTION = "attention"


@dataclass(frozen=True)
class Compile:
    """Naive causal `attention`, or a training step of a model of that size, on sequences of `seq_len` tokens; raises
    ValueError for a value that is unknown or impossible. The head size of a model is its own."""

    experiment: ClassVar[str] = "compile"
    model: str
    seq_len: int
    d_head: int
    batch_size: int
    precision: str
    compiled: bool
    device: str

    def __post_init__(self):
        object.__setattr__(self, "device", environment.device(self.device))
        validate.fields(self)
        validate.choice("model", self.model, (ATTENTION, *model.SIZES))
        validate.choice("precision", self.precision, precision.NAMES)
        if self.model != ATTENTION:
            validate.at_least("seq_len", self.seq_len, 2)  # as the context of a step
        if self.model != ATTENTION and self.d_head != self.underlying().config.d_head:
            own = self.underlying().config.d_head
            raise ValueError(f"d_head: {self.d_head} must be {own} for {self.model}, whose head size that is")

    def underlying(self) -> Attention | Step:
        """The case of the experiment `attention` or `step` that this one runs."""
        alike = {"batch_size": self.batch_size, "precision": self.precision, "device": self.device}
        if self.model == ATTENTION:
            variant = "compiled" if self.compiled else "naive"
            return Attention(
                variant=variant, seq_len=self.seq_len, d_head=self.d_head, causal=True, cold=False, **alike
            )  # fmt: skip
        return Step(
            size=self.model, context_length=self.seq_len, compiled=self.compiled, attention="naive",
            optimizer="single_tensor", mode="train_step", **alike,
        )  # fmt: skip

    def unavailable(self) -> str | None:
        """Why this machine cannot run the case, or None."""
        return self.underlying().unavailable()

    def predicted_bytes(self) -> int:
        """Peak memory of what runs."""
        return self.underlying().predicted_bytes()

    def setup(self) -> Work:
        """Build what runs; where it is compiled, its first iteration finds no graph of it compiled before."""
        work = self.underlying().setup()
        work.facts.pop("tokens", None)  # of the whole batch, and near to a field of this case
        return replace(work, around_first=compilation.cold) if self.compiled else work
