"""Show what narrow types do to sums, norms and a model's tensors; nothing is timed."""

from dataclasses import dataclass, replace
from typing import ClassVar

import torch

from lib import model, precision
from lib.cost import flops, memory
from lib.experiments.case import Case
from lib.instruments import dtypes, rounding
from lib.validate import one_of

SUBJECTS = ("accumulation", "toy", "transformer", *rounding.NORMS)
CONFIG = replace(model.SIZES["tiny"], context_length=16)  # dtypes do not depend on the size


@dataclass(frozen=True)
class Precision(Case):
    """One subject in one precision; raises ValueError for an unknown value.

    `accumulation` is the assignment's four loops. `toy` and `transformer` are models whose tensors' dtypes are
    observed. `layer_norm` and `rms_norm` are computed step by step."""

    experiment: ClassVar[str] = "precision"
    subject: str = one_of(SUBJECTS)
    precision: str = one_of(precision.NAMES)
    device: str

    def unavailable(self) -> str | None:
        """Return why there is no such case, or None."""
        if self.precision == "tf32":
            return "tf32 is a mode of matrix products, not a dtype"
        if self.subject == "accumulation" and self.precision == "fp32":
            return "fp16 and bf16 each include the loop in fp32"
        return None

    def predicted_bytes(self) -> int:
        """Predict the peak: two passes of the transformer, or 20 double copies of a norm's input."""
        shape = flops.shape_of(CONFIG, batch_size=1)
        step = memory.peak_bytes(shape, "fp32", "naive", "fused", "forward_backward", self.device)
        return step if self.subject == "transformer" else 20 * 8 * rounding.ROWS * rounding.WIDTH

    def costs(self) -> flops.Costs:
        """Return the costs of an observation, which takes a tenth of a second."""
        return flops.Costs(operations=10_000)

    def observe(self) -> dict[str, dict[str, list]]:
        """Return the tables of `lib.instruments.rounding` or `lib.instruments.dtypes`."""
        narrow = precision.AUTOCAST[self.precision] or torch.float32
        if self.subject == "accumulation":
            return rounding.accumulation(narrow, self.device)
        if self.subject in rounding.NORMS:
            return rounding.sensitivity(self.subject, narrow, self.device)
        autocast = precision.activate(self.precision, self.device)
        if self.subject == "toy":
            return {"dtypes": dtypes.toy(autocast, self.device)}
        return {"dtypes": dtypes.transformer(CONFIG, autocast, self.device)}
