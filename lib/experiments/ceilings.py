"""Measure the machine's limits: matrix products, memory traffic, the cost of a call."""

from dataclasses import dataclass
from typing import ClassVar

import torch

from lib import precision, validate
from lib.cost import flops
from lib.experiments.measure import Work
from lib.instruments import environment
from lib.timing import Mark

OPERATIONS = ("matmul", "copy", "triad", "add", "call")
TOLERANCE = {"fp32": 1e-4, "tf32": 1e-2, "bf16": 5e-2, "fp16": 1e-2}
SCALE = 3.0  # of the triad, as in STREAM
CALLS = 1000


@dataclass(frozen=True)
class Ceilings:
    """One operation on matrices of `rows` x `columns`.

    `matmul` multiplies one by a matrix of `columns` x `rows`, `copy` copies it, `triad` computes a = b + s c, and `add`
    computes a = a + b in place. `call` runs the triad a thousand times on one element and so shows the overhead of a
    call, on CUDA of a launch. Bytes count as in STREAM (McCalpin 1995): what is read plus what is written. A CPU may
    fetch lines before it overwrites them, but not in place: `add` often has the highest rate, as an optimizer would.
    Raises ValueError for an unknown or impossible value."""

    experiment: ClassVar[str] = "ceilings"
    operation: str
    rows: int
    columns: int
    precision: str
    device: str

    def __post_init__(self):
        object.__setattr__(self, "device", environment.device(self.device))
        validate.fields(self)
        validate.choice("operation", self.operation, OPERATIONS)
        validate.choice("precision", self.precision, precision.NAMES)
        for name in ("rows", "columns"):
            if self.operation == "call" and getattr(self, name) != 1:
                raise ValueError(f"{name}: got {getattr(self, name)}, expected 1 for operation call")

    def unavailable(self) -> str | None:
        """Return why this machine cannot run the case, or None."""
        return precision.unavailable(self.precision, self.device)

    def predicted_bytes(self) -> int:
        """Predict the peak: operands and result, and a few rows in double for the check."""
        right, out = self.rows * self.columns, self.rows * (self.rows if self.operation == "matmul" else self.columns)
        return 4 * (2 * right + out) + 8 * right + 16 * 8 * (self.rows + self.columns)

    def costs(self) -> flops.Costs:
        """Return the costs of an iteration."""
        each = self.rows * self.columns * flops.width(self.precision)
        arrays = {"matmul": 0, "copy": 2, "call": 0}.get(self.operation, 3)
        product = 2 * self.rows**2 * self.columns if self.operation == "matmul" else 0
        return flops.Costs(product, arrays * each, CALLS if self.operation == "call" else 1)

    def setup(self) -> Work:
        """Draw the operands from a standard normal, in the dtype of the precision."""
        precision.activate(self.precision, self.device)
        made = {"device": self.device, "dtype": precision.AUTOCAST[self.precision] or torch.float32}
        shape, product = (self.rows, self.columns), self.operation == "matmul"
        left = torch.randn(shape, **made)
        right = torch.randn(shape[::-1] if product else shape, **made)
        out, checked = torch.zeros((self.rows, self.rows) if product else shape, **made), slice(0, 8)

        def triad() -> None:
            torch.add(left, right, alpha=SCALE, out=out)

        def call() -> None:
            for _ in range(CALLS):
                triad()

        def triad_expected() -> torch.Tensor:
            return left[checked].double() + SCALE * right[checked].double()

        operate, expect, facts = {
            "matmul": (
                lambda: torch.mm(left, right, out=out),
                lambda: left[checked].double() @ right.double(),
                {"flops": 2 * self.rows**2 * self.columns},
            ),
            "copy": (lambda: out.copy_(left), lambda: left[checked].double(), {"moved_bytes": 2 * out.nbytes}),
            "triad": (triad, triad_expected, {"moved_bytes": 3 * out.nbytes}),
            "add": (
                lambda: out.add_(left),
                lambda: left[checked].double() + out[checked],
                {"moved_bytes": 3 * out.nbytes},
            ),
            "call": (call, triad_expected, {"calls": CALLS}),
        }[self.operation]

        def iteration(mark: Mark) -> None:
            operate()
            mark("run")

        return Work(
            self.device, iteration, lambda: {"out": expect()}, lambda: {"out": out[checked]},
            TOLERANCE[self.precision], facts,
        )  # fmt: skip
