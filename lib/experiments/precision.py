"""What narrow types do to a sum, to a norm, and to the tensors of a model under autocast; no time is taken."""

from dataclasses import dataclass, replace
from typing import ClassVar

import torch

from lib import model, precision, validate
from lib.cost import flops, memory
from lib.instruments import dtypes, environment, rounding

SUBJECTS = ("accumulation", "toy", "transformer", *rounding.NORMS)
CONFIG = replace(model.SIZES["tiny"], context_length=16)  # what a dtype is does not depend on the size


@dataclass(frozen=True)
class Precision:
    """`accumulation` is the four loops of the assignment, `toy` and `transformer` are models whose tensors' dtypes are
    observed, `layer_norm` and `rms_norm` are computed step by step. Raises ValueError for a value that is unknown."""

    experiment: ClassVar[str] = "precision"
    subject: str
    precision: str
    device: str

    def __post_init__(self):
        object.__setattr__(self, "device", environment.device(self.device))
        validate.fields(self)
        validate.choice("subject", self.subject, SUBJECTS)
        validate.choice("precision", self.precision, precision.NAMES)

    def unavailable(self) -> str | None:
        """Why there is no such case, or None."""
        if self.precision == "tf32":
            return "tf32 is a mode of matrix products and no dtype of a tensor"
        if self.subject == "accumulation" and self.precision == "fp32":
            return "the loop in fp32 is the first of the four of each narrower dtype"
        return None

    def predicted_bytes(self) -> int:
        """Those of a forward and a backward pass for the transformer, twenty copies in double precision of a norm's
        inputs, and next to nothing for the rest."""
        shape = flops.shape_of(CONFIG, batch_size=1)
        step = memory.peak_bytes(shape, "fp32", "naive", "fused", "forward_backward", self.device)
        return step if self.subject == "transformer" else 20 * 8 * rounding.ROWS * rounding.WIDTH

    def observe(self) -> dict[str, dict[str, list]]:
        """The tables that `lib.instruments.rounding` and `lib.instruments.dtypes` describe."""
        narrow = precision.AUTOCAST[self.precision] or torch.float32
        if self.subject == "accumulation":
            return rounding.accumulation(narrow, self.device)
        if self.subject in rounding.NORMS:
            return rounding.sensitivity(self.subject, narrow, self.device)
        autocast = precision.activate(self.precision, self.device)
        if self.subject == "toy":
            return {"dtypes": dtypes.toy(autocast, self.device)}
        return {"dtypes": dtypes.transformer(CONFIG, autocast, self.device)}
