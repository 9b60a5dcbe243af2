"""Show, untimed, what narrow types do to sums, norms and a model's tensors."""

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor, nn

from lib import model, precision
from lib.experiments.case import Case, Recording
from lib.instruments import rounding
from lib.validate import one_of


@dataclass(frozen=True)
class Precision(Case):
    """Examine one subject in one precision; raises ValueError for a bad value.

    `accumulation` is the assignment's four loops, and `toy` its model, whose tensors' dtypes are observed. `layer_norm`
    and `rms_norm` are computed step by step."""

    experiment: ClassVar[str] = "precision"
    subject: str = one_of(("accumulation", "toy", *rounding.NORMS), "accumulation")
    precision: str = one_of(precision.NAMES, "fp32")
    device: str = "auto"

    def unavailable(self) -> str | None:
        if self.precision in precision.PRODUCTS:
            return f"{self.precision} is a mode of matrix products, not a dtype"
        if self.subject == "accumulation" and self.precision == "fp32":
            return "fp16 and bf16 each include the loop in fp32"
        # not what `Case` asks for: nothing is timed, so emulated types will do
        return None

    def measure(self, record: Recording, seconds: float) -> None:
        """Add the subject's tables to the record."""
        narrow = precision.AUTOCAST[self.precision] or torch.float32
        if self.subject == "accumulation":
            record.metrics |= rounding.accumulation(narrow, self.device)
        elif self.subject == "toy":
            record.metrics["dtypes"] = toy_dtypes(precision.activate(self.precision, self.device), self.device)
        else:
            record.metrics |= rounding.sensitivity(self.subject, narrow, self.device)


class ToyModel(nn.Module):
    """Build the assignment's toy model: two layers with ReLU and layer norm between."""

    def __init__(self, d_in: int, d_out: int):
        super().__init__()
        self.fc1 = nn.Linear(d_in, 10, bias=False)
        self.ln = nn.LayerNorm(10)
        self.fc2 = nn.Linear(10, d_out, bias=False)
        self.relu = nn.ReLU()

    def forward(self, x: Tensor) -> Tensor:
        return self.fc2(self.ln(self.relu(self.fc1(x))))


def toy_dtypes(autocast: torch.autocast, device: str) -> dict[str, list[str]]:
    """Tabulate `tensor` and `dtype` of the toy model in order of computation."""
    # no dtype depends on these sizes
    with torch.device(device):
        network = ToyModel(d_in=8, d_out=4)
        x = torch.randn(16, 8)
        targets = torch.randint(4, (16,))
    dtypes = {}

    def note(name: str, tensor: Tensor) -> None:
        dtypes[name] = rounding.dtype_name(tensor.dtype)

    layers = {
        "output of the first layer": network.fc1,
        "output of ReLU": network.relu,
        "output of layer norm": network.ln,
    }
    for name, layer in layers.items():
        layer.register_forward_hook(lambda layer, inputs, output, name=name: note(name, output))
    note("parameters", network.fc1.weight)
    with autocast:
        logits = network(x)
        loss = model.loss(logits, targets)
    note("logits", logits)
    note("loss", loss)
    # the backward pass runs outside autocast, in the dtypes of the forward pass
    logits.register_hook(lambda gradient: note("gradient of the logits", gradient))
    loss.backward()
    note("gradients of the parameters", network.fc1.weight.grad)
    return {"tensor": list(dtypes), "dtype": list(dtypes.values())}
