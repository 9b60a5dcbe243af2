"""Observe the dtypes of a model's tensors, from its parameters to its gradients."""

import torch
from torch import Tensor, nn

from lib import model
from lib.instruments.rounding import dtype_name

D_IN = 8  # of the toy model; these sizes change no dtype
D_OUT = 4
BATCH = 16


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


def toy(autocast: torch.autocast, device: str) -> dict[str, list[str]]:
    """Return a table of `tensor` and `dtype` of the toy model, as they are computed."""
    with torch.device(device):
        network = ToyModel(D_IN, D_OUT)
        x = torch.randn(BATCH, D_IN)
        targets = torch.randint(D_OUT, (BATCH,))
    dtypes = {}

    def note(name: str, tensor: Tensor) -> None:
        dtypes[name] = dtype_name(tensor.dtype)

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
