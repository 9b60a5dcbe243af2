"""Times the softmax of the rows of a matrix: step by step, or in one call."""

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from lib.cost import flops
from lib.experiments import exact
from lib.experiments.case import Case, Work
from lib.timing import Mark
from lib.validate import one_of

ROWS = 64
TOLERANCE = 1e-5


def stepwise(rows_RW: Tensor) -> Tensor:
    """Return exp(x - max) over its sum, the reference."""
    exponentials_RW = (rows_RW - rows_RW.amax(-1, keepdim=True)).exp()
    return exponentials_RW / exponentials_RW.sum(-1, keepdim=True)


VARIANTS = {"stepwise": stepwise, "one_call": lambda rows_RW: rows_RW.softmax(-1)}


@dataclass(frozen=True)
class Softmax(Case):
    """Softmax of 64 rows of `width` numbers each. Raises ValueError for an unknown or impossible value."""

    experiment: ClassVar[str] = "softmax"
    variant: str = one_of(VARIANTS)
    width: int
    device: str

    def predicted_bytes(self) -> int:
        """Return the bytes of the input, the result and two steps between them, in fp32, and of one in fp64."""
        return (4 * 4 + 8) * ROWS * self.width

    def costs(self) -> flops.Costs:
        """Return the costs of an iteration: three passes that read and write."""
        return flops.Costs(bytes=3 * 2 * 4 * ROWS * self.width, operations=4)

    def setup(self) -> Work:
        """Draw the rows from a standard normal."""
        rows_RW, compute, last = torch.randn(ROWS, self.width, device=self.device), VARIANTS[self.variant], {}

        def iteration(mark: Mark) -> None:
            last["out"] = compute(rows_RW)
            mark("run")

        return Work(
            self.device, iteration, lambda: {"out": stepwise(exact.double(rows_RW))}, lambda: last, TOLERANCE,
            {"moved_bytes": 2 * rows_RW.nbytes},
        )  # fmt: skip
