"""The limits of the machine: a large matrix product in each precision, and what moves data too large for caches."""

from dataclasses import dataclass
from typing import ClassVar

import torch

from lib import check, environment, precision
from lib.measure import Work
from lib.timing import Mark

OPERATIONS = ("matmul", "copy", "add")
TOLERANCE = {"fp32": 1e-4, "tf32": 1e-2, "bf16": 5e-2, "fp16": 1e-2}


@dataclass(frozen=True)
class Ceilings:
    """`matmul` multiplies two square matrices of that many `rows`, `copy` writes one over another, `add` adds one to
    another in place; raises ValueError for a value that is unknown or impossible."""

    experiment: ClassVar[str] = "ceilings"
    operation: str
    rows: int
    precision: str
    device: str

    def __post_init__(self):
        object.__setattr__(self, "device", environment.device(self.device))
        check.fields(self)
        check.choice("operation", self.operation, OPERATIONS)
        check.choice("precision", self.precision, precision.NAMES)

    def unavailable(self) -> str | None:
        """Why this machine cannot run the case, or None."""
        return precision.unavailable(self.precision, self.device)

    def predicted_bytes(self) -> int:
        """Three matrices, and the right operand and two rows blocks of the check in double precision."""
        return self.rows**2 * (3 * 4 + 8 + 8)

    def setup(self) -> Work:
        """Draw the matrices from a standard normal, in the dtype that the precision computes in."""
        precision.activate(self.precision, self.device)
        dtype = precision.AUTOCAST[self.precision] or torch.float32
        a, b = (torch.randn(self.rows, self.rows, device=self.device, dtype=dtype) for _ in range(2))
        out, checked = torch.zeros_like(a), slice(0, 8)

        def iteration(mark: Mark) -> None:
            operate()
            mark("run")

        def expected() -> dict[str, torch.Tensor]:
            left = a[checked].double()
            right = {"matmul": lambda: left @ b.double(), "copy": lambda: left, "add": lambda: left + out[checked]}
            return {"out": right[self.operation]()}

        operate = {"matmul": lambda: torch.mm(a, b, out=out), "copy": lambda: out.copy_(a), "add": lambda: out.add_(a)}
        operate = operate[self.operation]
        theory = {
            "matmul": {"flops": 2 * self.rows**3},
            "copy": {"moved_bytes": 2 * out.nbytes},
            "add": {"moved_bytes": 3 * out.nbytes},
        }
        return Work(
            self.device, iteration, expected, lambda: {"out": out[checked]}, TOLERANCE[self.precision],
            theory[self.operation],
        )  # fmt: skip
