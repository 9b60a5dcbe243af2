"""Time the softmax of the rows of a matrix: step by step, or in one call."""

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from lib.experiments.case import Case, Work
from lib.experiments.reference import double
from lib.timing import Mark
from lib.validate import one_of

ROWS = 64
TOLERANCE = 1e-5


def stepwise(rows_RW: Tensor) -> Tensor:
    """Return exp(x - max) over its sum, the reference."""
    exponentials_RW = (rows_RW - rows_RW.amax(-1, keepdim=True)).exp()
    return exponentials_RW / exponentials_RW.sum(-1, keepdim=True)


def one_call(rows_RW: Tensor) -> Tensor:
    """Return the softmax of each row by PyTorch's own function."""
    return rows_RW.softmax(-1)


VARIANTS = {"stepwise": stepwise, "one_call": one_call}


@dataclass(frozen=True)
class Softmax(Case):
    """Softmax of 64 rows of `width` numbers each. Raises ValueError for an unknown or impossible value."""

    experiment: ClassVar[str] = "softmax"
    variant: str = one_of(VARIANTS, "stepwise")
    width: int = 256
    device: str = "auto"

    def setup(self) -> Work:
        """Draw the rows from a standard normal."""
        rows_RW = torch.randn(ROWS, self.width, device=self.device)
        compute = VARIANTS[self.variant]
        last = {}

        def iteration(mark: Mark) -> None:
            last["out"] = compute(rows_RW)
            mark("run")

        def expected() -> dict[str, Tensor]:
            return {"out": stepwise(double(rows_RW))}

        def result() -> dict[str, Tensor]:
            return last

        facts = {"moved_bytes": 2 * rows_RW.nbytes}
        return Work(self.device, iteration, expected, result, TOLERANCE, facts)
