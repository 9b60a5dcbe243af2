"""Measure the machine's limits: matrix products, memory traffic, the cost of a call."""

from dataclasses import dataclass
from typing import ClassVar

import torch

from lib import precision, validate
from lib.cost import flops
from lib.experiments.measure import Work
from lib.instruments import environment
from lib.timing import Mark

OPERATIONS = ("matmul", "copy", "triad", "add", "adamw", "call")
HELD = {"copy": 2, "triad": 3, "add": 2, "adamw": 4, "call": 3}  # matrices in memory
PASSES = {"copy": 2, "triad": 3, "add": 3, "adamw": 7}  # times that a matrix is read or written
TOLERANCE = {"fp32": 1e-4, "tf32": 1e-2, "bf16": 5e-2, "fp16": 1e-2}
SCALE = 3.0  # of the triad, as in STREAM
CALLS = 1000
DRAWN_ROWS = 256  # of a matrix; the others repeat them, since drawing all takes longer than timing an operation


@dataclass(frozen=True)
class Ceilings:
    """One operation on matrices of `rows` x `columns`.

    `matmul` multiplies one by a matrix of `columns` x `rows`, `copy` copies it, `triad` computes a = b + s c, and `add`
    computes a = a + b in place. `adamw` is a step of PyTorch's fused AdamW on one parameter: it reads parameter,
    gradient and two moments and writes all but the gradient, as `flops.adam_bytes` counts. `call` runs the triad a
    thousand times on one element and so shows the overhead of a call, on CUDA of a launch. Bytes count as in STREAM
    (McCalpin 1995): what is read plus what is written. A CPU may fetch lines before it overwrites them, but not in
    place: `add` and `adamw` often have the highest rates.
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
        each, width = self.rows * self.columns, flops.width(self.precision)
        checked = 16 * 8 * (self.rows + self.columns)
        if self.operation == "matmul":
            return width * (2 * each + self.rows**2) + 8 * each + checked
        return width * HELD[self.operation] * each + 2 * checked

    def costs(self) -> flops.Costs:
        """Return the costs of an iteration."""
        each = self.rows * self.columns * flops.width(self.precision)
        product = 2 * self.rows**2 * self.columns if self.operation == "matmul" else 0
        return flops.Costs(product, PASSES.get(self.operation, 0) * each, CALLS if self.operation == "call" else 1)

    def setup(self) -> Work:
        """Draw the operands from a standard normal, in the dtype of the precision."""
        precision.activate(self.precision, self.device)
        made = {"device": self.device, "dtype": precision.AUTOCAST[self.precision] or torch.float32}
        shape, product = (self.rows, self.columns), self.operation == "matmul"

        def drawn(rows: int, columns: int) -> torch.Tensor:
            few = min(rows, DRAWN_ROWS)
            return torch.randn(few, columns, **made).repeat(-(-rows // few), 1)[:rows]

        left = drawn(*shape)
        right = drawn(*shape[::-1] if product else shape) if self.operation in ("matmul", "triad", "call") else left
        out, checked = torch.zeros((self.rows, self.rows) if product else shape, **made), slice(0, 8)
        parameter = torch.nn.Parameter(out)  # the same memory
        parameter.grad = left if self.operation == "adamw" else None
        optimizer = torch.optim.AdamW([parameter], fused=self.operation == "adamw")

        def triad() -> None:
            torch.add(left, right, alpha=SCALE, out=out)

        def call() -> None:
            for _ in range(CALLS):
                triad()

        def triad_expected() -> torch.Tensor:
            return left[checked].double() + SCALE * right[checked].double()

        def first_adamw() -> torch.Tensor:
            """Return the parameter after the first step, when both moments are the gradient's own."""
            was, gradient, hyper = out[checked].double(), left[checked].double(), optimizer.defaults
            return was - hyper["lr"] * (hyper["weight_decay"] * was + gradient / (gradient.abs() + hyper["eps"]))

        moved = {"moved_bytes": PASSES.get(self.operation, 0) * out.nbytes}
        operate, expect, facts = {
            "matmul": (
                lambda: torch.mm(left, right, out=out),
                lambda: left[checked].double() @ right.double(),
                {"flops": 2 * self.rows**2 * self.columns},
            ),
            "copy": (lambda: out.copy_(left), lambda: left[checked].double(), moved),
            "triad": (triad, triad_expected, moved),
            "add": (lambda: out.add_(left), lambda: left[checked].double() + out[checked], moved),
            "adamw": (optimizer.step, first_adamw, moved),
            "call": (call, triad_expected, {"calls": CALLS}),
        }[self.operation]

        def iteration(mark: Mark) -> None:
            operate()
            mark("run")

        return Work(
            self.device, iteration, lambda: {"out": expect()}, lambda: {"out": out[checked]},
            TOLERANCE[self.precision], facts,
        )  # fmt: skip
