"""Observe the dtypes of a model's tensors, from its inputs to its gradients."""

from collections.abc import Iterable, Mapping

import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from lib import model
from lib.instruments.rounding import dtype_name

D_IN = 8  # of the toy model; these sizes change no dtype
D_OUT = 4


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
    """Return the dtypes of the toy model's tensors."""
    torch.manual_seed(0)
    with torch.device(device):
        network = ToyModel(D_IN, D_OUT)
        x = torch.randn(16, D_IN)
        targets = torch.randint(D_OUT, (16,))
    modules = {
        "output of the first layer": network.fc1,
        "output of ReLU": network.relu,
        "output of layer norm": network.ln,
    }
    return observe(network, modules, x, targets, autocast)


def transformer(config: model.Config, autocast: torch.autocast, device: str) -> dict[str, list[str]]:
    """Return the dtypes in a language model's first layer and outside the layers."""
    torch.manual_seed(0)
    with torch.device(device):
        network = model.TransformerLM(config)
        tokens = torch.randint(config.vocab_size, (1, config.context_length + 1))
    layer = network.layers[0]
    modules = {
        "token embeddings": network.token_embeddings,
        "output of the first norm": layer.ln1,
        "queries": layer.attn.q_proj,
        "queries, turned": layer.attn.rope,
        "output of attention": layer.attn.output_proj,
        "output of the first feed-forward layer": layer.ffn.w1,
        "output of the feed-forward part": layer.ffn,
        "residual stream after a layer": layer,
        "output of the last norm": network.ln_final,
    }
    return observe(network, modules, tokens[:, :-1], tokens[:, 1:], autocast)


def observe(
    network: nn.Module, modules: Mapping[str, nn.Module], inputs: Tensor, targets: Tensor, autocast: torch.autocast
) -> dict[str, list[str]]:
    """Return a table of `tensor` and `dtype`, in the order of computation.

    It has parameters, the outputs of `modules`, the first softmax's input and output, logits, loss and gradients."""
    dtypes = {"parameters": _dtypes(network.parameters())}

    def note(name: str, tensor: Tensor) -> None:
        dtypes.setdefault(name, dtype_name(tensor.dtype))

    class Softmax(TorchFunctionMode):
        def __torch_function__(self, function, types, args=(), kwargs=None):
            output = function(*args, **(kwargs or {}))
            if function is torch.softmax:
                note("attention scores", args[0])
                note("attention weights", output)
            return output

    for name, module in modules.items():
        module.register_forward_hook(lambda module, inputs, output, name=name: note(name, output))
    with autocast, Softmax():
        logits = network(inputs)
        loss = model.loss(logits, targets)
    # the backward pass runs outside autocast, in the dtypes of the forward pass
    logits.register_hook(lambda gradient: note("gradient of the logits", gradient))
    note("logits", logits)
    note("loss", loss)
    loss.backward()
    dtypes["gradients of the parameters"] = _dtypes(parameter.grad for parameter in network.parameters())
    return {"tensor": list(dtypes), "dtype": list(dtypes.values())}


def _dtypes(tensors: Iterable[Tensor]) -> str:
    return ", ".join(sorted({dtype_name(tensor.dtype) for tensor in tensors}))
