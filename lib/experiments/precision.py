"""Show, untimed, what narrow types do to sums, norms and a model's tensors."""

from dataclasses import dataclass
from typing import ClassVar

import torch

from lib import precision
from lib.experiments.case import Case, Recording
from lib.instruments import dtypes, rounding
from lib.validate import one_of

SUBJECTS = ("accumulation", "toy", *rounding.NORMS)


@dataclass(frozen=True)
class Precision(Case):
    """Examine one subject in one precision; raises ValueError for a bad value.

    `accumulation` is the assignment's four loops, and `toy` its model, whose tensors' dtypes are observed. `layer_norm`
    and `rms_norm` are computed step by step."""

    experiment: ClassVar[str] = "precision"
    subject: str = one_of(SUBJECTS)
    precision: str = one_of(precision.NAMES)
    device: str

    def unavailable(self) -> str | None:
        if self.precision == "tf32":
            return "tf32 is a mode of matrix products, not a dtype"
        if self.subject == "accumulation" and self.precision == "fp32":
            return "fp16 and bf16 each include the loop in fp32"
        # not what `Case` asks for: nothing is timed, so emulated types will do
        return None

    def measure(self, record: Recording, seconds: float) -> None:
        """Add the tables of `rounding` or `dtypes` to the record."""
        narrow = precision.AUTOCAST[self.precision] or torch.float32
        if self.subject == "accumulation":
            record.metrics |= rounding.accumulation(narrow, self.device)
        elif self.subject == "toy":
            record.metrics["dtypes"] = dtypes.toy(precision.activate(self.precision, self.device), self.device)
        else:
            record.metrics |= rounding.sensitivity(self.subject, narrow, self.device)
