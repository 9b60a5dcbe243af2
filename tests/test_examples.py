"""The example trains each model on a text with the switches on."""

import ctypes
import functools
import re
import runpy
import sys
from types import SimpleNamespace

import nbformat
import pytest
import torch
from torch._dynamo.utils import counters

from lib.instruments import allocator
from lib.paths import ROOT

pytestmark = pytest.mark.usefixtures("one_thread", "former_precision")


@pytest.mark.parametrize(
    ("model", "precision", "masters"),
    [
        ("ours", "fp32", False), ("ours", "bf16", False), ("ours", "bf16", True), ("encoder", "bf16", True),
        ("llama", "bf16", True),
    ],
)  # fmt: skip
def test_the_loss_falls_with_masters_where_they_are_asked_for(monkeypatch, tmp_path, capsys, model, precision, masters):
    if model == "llama":
        pytest.importorskip("transformers")
    # compiling for real takes minutes
    monkeypatch.setattr(torch, "compile", functools.partial(torch.compile, backend="aot_eager"))
    (tmp_path / "text").write_text("the quick brown fox " * 20)
    values = {"model": model, "precision": precision, "text": tmp_path / "text", "steps": 4, "batch": 2, "context": 16}
    options = [f"--{name}={value}" for name, value in values.items()] + ["--masters"] * masters
    monkeypatch.setattr(sys, "argv", ["train", *options])
    torch.manual_seed(0)
    torch.compiler.reset()
    graphs = counters["stats"]["unique_graphs"]
    names = runpy.run_path(str(ROOT / "examples/train.py"))
    losses = [float(loss) for loss in re.findall(r"loss (\S+), [\d,]+ tokens/s", capsys.readouterr().out)]
    assert len(losses) == 4
    assert losses[-1] < losses[0] - 0.1
    assert any("master" in state for state in names["optimizer"].state.values()) == masters
    # the update of masters is one graph, and all layers together at least one
    assert counters["stats"]["unique_graphs"] - graphs > masters


def test_the_lines_to_copy_train_any_model_in_plain_pytorch(monkeypatch):
    cells = nbformat.read(ROOT / "notebooks/ladder.ipynb", 4).cells
    training, compiling = re.findall(r"```python\n(.*?)```", "\n".join(cell.source for cell in cells), re.DOTALL)
    torch.manual_seed(0)
    linear = [torch.nn.Linear(8, 8), torch.nn.Linear(8, 3)]
    network = torch.nn.Sequential(*linear)
    network.layers = []
    batch = torch.randn(16, 8), torch.randint(3, (16,))
    cross_entropy = torch.nn.functional.cross_entropy
    # compiling for real takes minutes, and the setting of the allocator would outlive the test
    monkeypatch.setattr(torch, "compile", lambda function, **_: function)
    set_to = {}
    monkeypatch.setattr(ctypes, "CDLL", lambda _: SimpleNamespace(mallopt=set_to.__setitem__))
    before = cross_entropy(network(batch[0]), batch[1])
    names = {"model": network, "loss_of": cross_entropy, "data": [batch] * 20, "torch": torch}
    exec(compiling, names)
    exec(training, names)
    assert cross_entropy(network(batch[0]), batch[1]) < before
    assert set_to == allocator.KEEP
