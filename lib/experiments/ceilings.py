"""Measure the machine's best: matrix products, memory traffic, cost of a call.

Everything else is held against these rates.
"""

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from lib import adam, model, precision
from lib.experiments.case import Case, Work
from lib.experiments.reference import double
from lib.timing import Mark
from lib.validate import one_of

# one layer of the model for each kind of weight
LINEAR = {"projection": "layers.0.attn.q_proj", "up": "layers.0.ffn.w1", "down": "layers.0.ffn.w2", "head": "lm_head"}
PASSES = {"read": 1, "copy": 2, "add": 3, "adamw": 7}  # times that a matrix is read or written
OPERATIONS = ("matmul", *LINEAR, "products", *PASSES, "call")
MODELS = {config.d_model: config for config in model.SIZES.values()}
CALLS = 1000
# random rows of a matrix; the others repeat them, since drawing all takes longer than timing an operation
DRAWN_ROWS = 256
ROWS, COLUMNS = slice(8), slice(256)  # the part of a result that is compared with double precision
CHECKED = (ROWS, COLUMNS)


@dataclass(frozen=True)
class Ceilings(Case):
    """Run one operation on matrices of `rows` x `columns`.

    - `matmul` makes the three products with a weight W of that size, on `rows` tokens: the output, x W^T, and the
      gradients of inputs, dy W, and of the weight, dy^T x.
    - `projection`, `up`, `down` and `head` do so with one weight of the model whose d_model is `columns`.
    - `products` makes those with all weights of that model, as one step does. Each weight has memory of its own;
      outputs and gradients of weights stay until the end. Attention's own products are left out.
    - `read` sums rows, `copy` copies, and `add` computes a = a + b. `adamw` is a step of PyTorch's fused AdamW. Bytes
      count as in STREAM (McCalpin 1995): what is read plus what is written. To overwrite memory a CPU may fetch it
      first, which counts for nothing in `copy`; `add` and `adamw` read it anyway, and often have the highest rates.
    - `call` adds one element a thousand times: the overhead of a call, on CUDA of a launch.

    Raises ValueError for an unknown or impossible value."""

    experiment: ClassVar[str] = "ceilings"
    operation: str = one_of(OPERATIONS, "projection")
    rows: int = 512
    columns: int = 1280
    precision: str = one_of(precision.NAMES, "fp32")
    device: str = "auto"

    def __post_init__(self):
        super().__post_init__()
        if self.operation == "call" and (self.rows, self.columns) != (1, 1):
            raise ValueError(f"rows, columns: got {self.rows}, {self.columns}, expected 1, 1 for operation call")
        if (self.operation in LINEAR or self.operation == "products") and self.columns not in MODELS:
            widths = ", ".join(str(width) for width in MODELS)
            raise ValueError(f"columns: got {self.columns}, expected the d_model of a size: {widths}")

    @property
    def weight_shapes(self) -> list[tuple[int, int]]:
        """Return the shape (outputs, inputs) of each weight."""
        if self.operation == "matmul":
            return [(self.rows, self.columns)]
        with torch.device("meta"):
            network = model.TransformerLM(MODELS[self.columns])
        if self.operation in LINEAR:
            return [tuple(network.get_submodule(LINEAR[self.operation]).weight.shape)]
        return [tuple(module.weight.shape) for module in network.modules() if isinstance(module, torch.nn.Linear)]

    def setup(self) -> Work:
        """Draw the operands from a standard normal, in the dtype of the precision."""
        precision.activate(self.precision, self.device)
        if self.operation in PASSES or self.operation == "call":
            return self._elementwise()
        return self._products()

    def _drawn(self, rows: int, columns: int) -> Tensor:
        dtype = precision.AUTOCAST[self.precision] or torch.float32
        drawn = torch.randn(min(rows, DRAWN_ROWS), columns, device=self.device, dtype=dtype)
        copies = -(-rows // len(drawn))
        return drawn.repeat(copies, 1)[:rows]

    def _products(self) -> Work:
        """Build a forward pass through weights and both products of its backward."""
        shapes = self.weight_shapes
        # each has memory of its own: one that all shared could stay in the caches, where those of a step do not
        weights = [self._drawn(*shape) for shape in shapes]
        # equal widths share what is multiplied
        inputs = {width: self._drawn(self.rows, width) for _, width in set(shapes)}
        gradients = {width: self._drawn(self.rows, width) for width, _ in set(shapes)}
        outputs, input_gradients, weight_gradients = [], [], []

        def iteration(mark: Mark) -> None:
            for tensors in (outputs, input_gradients, weight_gradients):
                tensors.clear()
            for weight in weights:
                outputs.append(torch.mm(inputs[weight.shape[1]], weight.t()))
            mark("forward")
            for weight in reversed(weights):
                # only the latest is kept, as in a backward pass: the last one is that of weights[0]
                input_gradients[:] = [torch.mm(gradients[len(weight)], weight)]
            mark("input_gradients")
            for weight in weights:
                weight_gradients.append(torch.mm(gradients[len(weight)].t(), inputs[weight.shape[1]]))
            mark("weight_gradients")

        def expected() -> dict[str, Tensor]:
            weight = weights[0]
            x = inputs[weight.shape[1]]
            gradient = gradients[len(weight)]
            return {
                "output": checked_product(x, weight.t()),
                "input_gradient": checked_product(gradient, weight),
                "weight_gradient": checked_product(gradient.t(), x),
            }

        def result() -> dict[str, Tensor]:
            return {
                "output": outputs[0][CHECKED],
                "input_gradient": input_gradients[0][CHECKED],
                "weight_gradient": weight_gradients[0][CHECKED],
            }

        facts = {"flops": 3 * 2 * self.rows * sum(weight.numel() for weight in weights)}
        return Work(self.device, iteration, expected, result, precision.TOLERANCE[self.precision], facts)

    def _elementwise(self) -> Work:
        """Build an operation that moves memory, or many calls; checks its first rows."""
        left = self._drawn(self.rows, self.columns)
        out = torch.zeros_like(left)
        sums = left.new_empty(self.rows)
        # a parameter in the memory of `out`, so that every operation but `read` is checked there
        parameter = torch.nn.Parameter(out)
        parameter.grad = left
        # only `adamw` steps it; for the other operations either value would do
        optimizer = torch.optim.AdamW([parameter], fused=self.operation == "adamw")

        def call() -> None:
            for _ in range(CALLS):
                torch.add(left, left, out=out)

        operate = {
            "read": lambda: torch.sum(left, 1, out=sums),
            "copy": lambda: out.copy_(left),
            "add": lambda: out.add_(left),
            "adamw": optimizer.step,
            "call": call,
        }[self.operation]

        def iteration(mark: Mark) -> None:
            operate()
            mark("run")

        def expected() -> dict[str, Tensor]:
            if self.operation == "read":
                return {"out": double(left[ROWS]).sum(1)}
            rows = double(left[CHECKED])
            if self.operation == "call":
                return {"out": 2 * rows}
            if self.operation == "adamw":
                new = torch.zeros_like(rows)
                state = adam.state(new, "single_tensor", amsgrad=False)
                # Hyper's defaults are those of torch.optim.AdamW
                adam.step("single_tensor", [new], [rows], [state], adam.Hyper())
                return {"out": new}
            # copied, or added to zeros
            return {"out": rows}

        def result() -> dict[str, Tensor]:
            return {"out": sums[ROWS] if self.operation == "read" else out[CHECKED]}

        facts = {"calls": CALLS}
        if self.operation != "call":
            facts = {"moved_bytes": PASSES[self.operation] * out.nbytes}
        return Work(self.device, iteration, expected, result, precision.TOLERANCE[self.precision], facts)


def checked_product(left: Tensor, right: Tensor) -> Tensor:
    """Return the rows and columns of a product that are checked, in double precision."""
    return double(left[ROWS]) @ double(right[:, COLUMNS])
