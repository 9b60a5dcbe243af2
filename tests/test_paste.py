"""The lines to paste work as they are, on a module of PyTorch's and on ours, and train as plain lines do."""

import copy
import functools

import pytest
import torch
from torch import nn

from lib import fast, products
from lib.config import Config
from lib.instruments import environment
from lib.model import TransformerLM

VOCABULARY = 64
TOKENS = torch.randint(VOCABULARY, (2, 9), generator=torch.Generator().manual_seed(0))
pytestmark = [
    pytest.mark.usefixtures("forget_graphs", "one_thread"),
    pytest.mark.skipif(environment.compiler_missing("cpu") is not None, reason="no C++ compiler"),
]


class Foreign(nn.Module):
    def __init__(self):
        super().__init__()
        self.embedding = nn.Embedding(VOCABULARY, 32)
        layer = nn.TransformerEncoderLayer(32, 2, 48, dropout=0.0, batch_first=True, norm_first=True)
        self.encoder = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)
        self.head = nn.Linear(32, VOCABULARY)

    def forward(self, tokens):
        return self.head(self.encoder(self.embedding(tokens)))


def ours():
    config = Config(vocab_size=VOCABULARY, context_length=8, d_model=32, num_layers=2, num_heads=2, d_ff=48)
    return TransformerLM(config, "sdpa")


def loss_of(outputs, targets):
    return nn.functional.cross_entropy(outputs.flatten(0, 1), targets.flatten())


def plain_losses(network):
    optimizer = torch.optim.AdamW(network.parameters(), weight_decay=0.01)
    losses = []
    for _ in range(5):
        loss = loss_of(network(TOKENS[:, :-1]), TOKENS[:, 1:])
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        losses.append(loss.item())
    return losses


def pasted_losses(network, steps, lines):
    """Execute the lines where `network` and `loss_of` are known, and train with what they define."""
    names = {"network": network, "loss_of": loss_of}
    exec(lines, names)
    return [names["train"](TOKENS[:, :-1], TOKENS[:, 1:]).item() for _ in range(steps)]


@pytest.mark.parametrize("dtype", ["bf16", "fp32"])
@pytest.mark.parametrize(("make", "lines"), [(Foreign, "any"), (Foreign, "lib"), (ours, "lib")])
def test_the_lines_train_as_the_plain_step_does(monkeypatch, make, lines, dtype):
    monkeypatch.setattr(products, "SECONDS", 0.01)
    if (make, lines, dtype) not in [(Foreign, "any", "bf16"), (ours, "lib", "bf16")]:  # these compile for real
        monkeypatch.setattr(torch, "compile", functools.partial(torch.compile, backend="aot_eager"))
    torch.manual_seed(0)
    network = make()
    expected = plain_losses(copy.deepcopy(network))
    text = fast.PASTE_ANY
    if lines == "lib":
        replaced = text[text.index("# Compile layer by layer") : text.index("\n\ndef train")]
        text = text.replace(replaced, fast.PASTE_LIB)
    if dtype == "fp32":
        assert "dtype = torch.bfloat16" in text
        text = text.replace("dtype = torch.bfloat16", "dtype = torch.float32")
    losses = pasted_losses(network, 5, text)
    assert losses == pytest.approx(expected, rel=1e-4 if dtype == "fp32" else 2e-2)
    assert losses[-1] < losses[0]
    layers = network.encoder.layers if make is Foreign else network.layers
    assert all(layer._compiled_call_impl for layer in layers)
    by_the_faster_library = any(isinstance(module, products.Linear) for module in network.modules())
    assert by_the_faster_library == (lines == "lib" and dtype == "fp32")


def test_the_lines_of_pytorch_alone_choose_attention_where_they_can_and_need_nothing_of_this_project():
    network = ours()
    chosen = []
    network.set_attn_implementation = chosen.append
    pasted_losses(network, 0, fast.PASTE_ANY)
    assert chosen == ["sdpa"]
    assert "lib" not in fast.PASTE_ANY.replace("libc", "")
