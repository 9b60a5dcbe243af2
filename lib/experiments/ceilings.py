"""Measure the machine's limits: matrix products, memory traffic, the cost of a call."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import ClassVar

import torch

from lib import precision
from lib.config import SIZES, Config
from lib.cost import flops
from lib.experiments import exact
from lib.experiments.case import Case, Work
from lib.timing import Mark
from lib.validate import one_of

OPERATIONS = ("matmul", "products", "copy", "triad", "add", "adamw", "call")
MODELS = {config.d_model: config for config in SIZES.values()}
HELD = {"copy": 2, "triad": 3, "add": 2, "adamw": 4, "call": 3}  # matrices in memory
PASSES = {"copy": 2, "triad": 3, "add": 3, "adamw": 7}  # times that a matrix is read or written
TOLERANCE = {"fp32": 1e-4, "tf32": 1e-2, "bf16": 5e-2, "fp16": 1e-2}
SCALE = 3.0  # of the triad, as in STREAM
CALLS = 1000
DRAWN_ROWS = 256  # of a matrix; the others repeat them, since drawing all takes longer than timing an operation
ROWS, COLUMNS = slice(8), slice(256)  # of a result that are compared with double precision
CHECKED = ROWS, COLUMNS


def weights(config: Config) -> list[tuple[int, int]]:
    """List the shapes (outputs, inputs) of a model's weights in the order of a forward pass."""
    square, wide, narrow = (config.d_model,) * 2, (config.d_ff, config.d_model), (config.d_model, config.d_ff)
    layer = [square] * 4 + [wide, wide, narrow]  # q, k, v and output projection; w1, w3, w2
    return [*layer * config.num_layers, (config.vocab_size, config.d_model)]


def checked_product(left: torch.Tensor, right: torch.Tensor) -> torch.Tensor:
    """Return the rows and columns of a product that are checked."""
    return exact.double(left[ROWS]) @ exact.double(right[:, COLUMNS])


@dataclass(frozen=True)
class Ceilings(Case):
    """One operation on matrices of `rows` x `columns`, or the products of a training step.

    `matmul` multiplies one by a matrix of `columns` x `rows`, `copy` copies it, `triad` computes a = b + s c, and `add`
    computes a = a + b in place. `adamw` is a step of PyTorch's fused AdamW on one parameter: it reads parameter,
    gradient and two moments and writes all but the gradient, as `flops.adam_bytes` counts. `call` runs the triad a
    thousand times on one element and so shows the overhead of a call, on CUDA of a launch. Bytes count as in STREAM
    (McCalpin 1995): what is read plus what is written. A CPU may fetch lines before it overwrites them, but not in
    place: `add` and `adamw` often have the highest rates.

    `products` makes all products with weights of a step of the size whose d_model is `columns`, on `rows` tokens: a
    forward pass, x W^T, then backward through the layers the gradients of inputs, dy W, and of weights, dy^T x. Each
    weight has memory of its own, outputs and gradients of weights stay until the end, and what each shape multiplies
    is drawn once. Attention's own products are left out.
    Raises ValueError for an unknown or impossible value."""

    experiment: ClassVar[str] = "ceilings"
    operation: str = one_of(OPERATIONS)
    rows: int
    columns: int
    precision: str = one_of(precision.NAMES)
    device: str

    def __post_init__(self):
        super().__post_init__()
        for name in ("rows", "columns"):
            if self.operation == "call" and getattr(self, name) != 1:
                raise ValueError(f"{name}: got {getattr(self, name)}, expected 1 for operation call")
        if self.operation == "products" and self.columns not in MODELS:
            widths = ", ".join(map(str, MODELS))
            raise ValueError(f"columns: got {self.columns}, expected the d_model of a size for products: {widths}")

    @property
    def shapes(self) -> list[tuple[int, int]]:
        """List the shapes of the weights that `products` multiplies by; none for other operations."""
        return weights(MODELS[self.columns]) if self.operation == "products" else []

    @property
    def product_flops(self) -> int:
        """Count the FLOPs of matrix products."""
        if self.operation == "matmul":
            return 2 * self.rows**2 * self.columns
        return 3 * 2 * self.rows * sum(outputs * inputs for outputs, inputs in self.shapes)

    def predicted_bytes(self) -> int:
        """Predict the peak: operands and result, and a few rows and columns in double for the check."""
        each, width = self.rows * self.columns, flops.width(self.precision)
        results = 4 * 8 * ROWS.stop * COLUMNS.stop
        factors = 8 * (ROWS.stop + COLUMNS.stop) * max(self.rows, self.columns)
        if self.operation == "matmul":
            return width * (2 * each + self.rows**2) + factors + results
        if self.operation == "products":
            outputs, inputs = zip(*self.shapes, strict=True)
            features = sum(outputs) + sum(set(outputs)) + sum(set(inputs)) + 2 * max(inputs)
            held = self.product_flops // (3 * self.rows) + self.rows * features  # first weights and their gradients
            return width * held + factors + results
        return width * HELD[self.operation] * each + results

    def costs(self) -> flops.Costs:
        """Return the costs of an iteration."""
        each = self.rows * self.columns * flops.width(self.precision)
        calls = CALLS if self.operation == "call" else 3 * len(self.shapes) or 1
        return flops.Costs(self.product_flops, PASSES.get(self.operation, 0) * each, calls)

    def setup(self) -> Work:
        """Draw the operands from a standard normal, in the dtype of the precision."""
        precision.activate(self.precision, self.device)
        return self._products() if self.operation == "products" else self._single()

    def _drawn(self, rows: int, columns: int) -> torch.Tensor:
        few, dtype = min(rows, DRAWN_ROWS), precision.AUTOCAST[self.precision] or torch.float32
        return torch.randn(few, columns, device=self.device, dtype=dtype).repeat(-(-rows // few), 1)[:rows]

    def _work(self, operate: Callable, expected: Callable, result: Callable, facts: dict, **others) -> Work:
        def iteration(mark: Mark) -> None:
            operate()
            mark("run")

        return Work(
            self.device, iteration, lambda: {"out": expected()}, lambda: {"out": result()},
            TOLERANCE[self.precision], facts, **others,
        )  # fmt: skip

    def _products(self) -> Work:
        """Build the products of a step; checks one of each kind, all with the first weight."""
        drawn = {shape: self._drawn(*shape) for shape in dict.fromkeys(self.shapes)}
        layers = [drawn[shape].clone() for shape in self.shapes]
        gradients, inputs = (
            {n: self._drawn(self.rows, n) for n in dict.fromkeys(ns)} for ns in zip(*drawn, strict=True)
        )
        made: dict[str, list[torch.Tensor]] = {}

        def step() -> None:
            made["outputs"] = [torch.mm(inputs[weight.shape[1]], weight.t()) for weight in layers]
            made["weights"] = []
            for weight in reversed(layers):
                gradient = gradients[len(weight)]
                made["inputs"] = [torch.mm(gradient, weight)]  # the next layer's replaces it
                made["weights"].append(torch.mm(gradient.t(), inputs[weight.shape[1]]))

        def expected() -> torch.Tensor:
            weight, x, gradient = layers[0], inputs[self.columns], gradients[self.columns]
            pairs = (x, weight.t()), (gradient, weight), (gradient.t(), x)
            return torch.cat([checked_product(*pair) for pair in pairs])

        def result() -> torch.Tensor:
            first = made["outputs"][0], made["inputs"][0], made["weights"][-1]
            return torch.cat([each[CHECKED] for each in first])

        return self._work(step, expected, result, {"flops": self.product_flops}, before=made.clear)

    def _single(self) -> Work:
        """Build one operation; checks the first rows of its result."""
        shape, product = (self.rows, self.columns), self.operation == "matmul"
        left = self._drawn(*shape)
        right = left
        if self.operation in ("matmul", "triad", "call"):
            right = self._drawn(*shape[::-1] if product else shape)
        out = torch.zeros((self.rows, self.rows) if product else shape, device=left.device, dtype=left.dtype)
        parameter = torch.nn.Parameter(out)  # the same memory
        parameter.grad = left if self.operation == "adamw" else None
        optimizer = torch.optim.AdamW([parameter], fused=self.operation == "adamw")

        def triad() -> None:
            torch.add(left, right, alpha=SCALE, out=out)

        def call() -> None:
            for _ in range(CALLS):
                triad()

        def triad_expected() -> torch.Tensor:
            return exact.double(left[CHECKED]) + SCALE * exact.double(right[CHECKED])

        def first_adamw() -> torch.Tensor:
            """Return the parameter after the first step, when both moments are the gradient's own."""
            was, gradient, hyper = exact.double(out[CHECKED]), exact.double(left[CHECKED]), optimizer.defaults
            return was - hyper["lr"] * (hyper["weight_decay"] * was + gradient / (gradient.abs() + hyper["eps"]))

        moved = {"moved_bytes": PASSES.get(self.operation, 0) * out.nbytes}
        operate, expect, facts = {
            "matmul": (
                lambda: torch.mm(left, right, out=out),
                lambda: checked_product(left, right),
                {"flops": self.product_flops},
            ),
            "copy": (lambda: out.copy_(left), lambda: exact.double(left[CHECKED]), moved),
            "triad": (triad, triad_expected, moved),
            "add": (lambda: out.add_(left), lambda: exact.double(left[CHECKED]) + exact.double(out[CHECKED]), moved),
            "adamw": (optimizer.step, first_adamw, moved),
            "call": (call, triad_expected, {"calls": CALLS}),
        }[self.operation]
        return self._work(operate, expect, lambda: out[CHECKED], facts)
