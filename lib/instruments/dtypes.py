"""Observes in which dtype each tensor of a model is, through hooks, while it computes one loss and its gradients."""

from collections.abc import Callable, Iterable, Mapping

import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from lib import model
from lib.instruments.rounding import named

FEATURES = {"d_in": 8, "d_out": 4}  # of the toy model; what they are changes no dtype


class ToyModel(nn.Module):
    """The toy model of the assignment: two layers without bias, with ReLU and layer norm between them."""

    def __init__(self, d_in: int, d_out: int):
        super().__init__()
        self.fc1 = nn.Linear(d_in, 10, bias=False)
        self.ln = nn.LayerNorm(10)
        self.fc2 = nn.Linear(10, d_out, bias=False)
        self.relu = nn.ReLU()

    def forward(self, x: Tensor) -> Tensor:
        return self.fc2(self.ln(self.relu(self.fc1(x))))


def toy(autocast: torch.autocast, device: str) -> dict[str, list[str]]:
    """The dtypes of the toy model's tensors."""
    torch.manual_seed(0)
    with torch.device(device):
        network = ToyModel(**FEATURES)
        x, targets = torch.randn(16, FEATURES["d_in"]), torch.randint(FEATURES["d_out"], (16,))
    modules = {
        "output of the first layer": network.fc1,
        "output of ReLU": network.relu,
        "output of layer norm": network.ln,
    }
    return observed(network, modules, lambda: network(x), nn.functional.cross_entropy, targets, autocast)


def transformer(config: model.Config, autocast: torch.autocast, device: str) -> dict[str, list[str]]:
    """The dtypes of the tensors of the first layer of a language model, and of what comes before and after it."""
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
    return observed(network, modules, lambda: network(tokens[:, :-1]), model.loss, tokens[:, 1:], autocast)


def observed(
    network: nn.Module, modules: Mapping[str, nn.Module], forward: Callable[[], Tensor], loss: Callable,
    targets: Tensor, autocast: torch.autocast,
) -> dict[str, list[str]]:  # fmt: skip
    """A table of `tensor` and `dtype`, in the order in which they came: parameters, the outputs of the modules named,
    what goes into a softmax and comes out, logits, loss, and the gradients of the logits and of the parameters."""
    seen = {"parameters": _dtypes(network.parameters())}
    for name, module in modules.items():
        # a hook must return None, as update does, or what it returns takes the tensor's place
        module.register_forward_hook(lambda _, inputs, output, name=name: seen.update({name: named(output.dtype)}))
    with autocast, _Softmax(seen):
        logits = forward()
        found = loss(logits, targets)
    logits.register_hook(lambda gradient: seen.update({"gradient of the logits": named(gradient.dtype)}))
    seen |= {"logits": named(logits.dtype), "loss": named(found.dtype)}
    found.backward()
    seen["gradients of the parameters"] = _dtypes(p.grad for p in network.parameters())
    return {"tensor": list(seen), "dtype": list(seen.values())}


def _dtypes(tensors: Iterable[Tensor]) -> str:
    return ", ".join(sorted({named(tensor.dtype) for tensor in tensors}))


class _Softmax(TorchFunctionMode):
    """Notes the dtypes of what goes into the first softmax and comes out of it."""

    def __init__(self, seen: dict[str, str]):
        super().__init__()
        self.seen = seen

    def __torch_function__(self, func, types, args=(), kwargs=None):
        output = func(*args, **(kwargs or {}))
        if func is torch.softmax:
            self.seen.setdefault("attention scores", named(args[0].dtype))
            self.seen.setdefault("attention weights", named(output.dtype))
        return output
