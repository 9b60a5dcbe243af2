"""The example trains each model on a text with the switches on."""

import functools
import re
import runpy
import sys

import pytest
import torch

from lib.paths import ROOT

pytestmark = pytest.mark.usefixtures("forget_graphs", "one_thread", "former_precision")


@pytest.mark.parametrize("precision", ["fp32", "bf16"])
@pytest.mark.parametrize("model", ["ours", "encoder", "llama"])
def test_the_loss_falls_and_in_bf16_there_are_masters(monkeypatch, tmp_path, capsys, model, precision):
    if model == "llama":
        pytest.importorskip("transformers")
    # compiling for real takes minutes
    monkeypatch.setattr(torch, "compile", functools.partial(torch.compile, backend="aot_eager"))
    (tmp_path / "text").write_text("the quick brown fox " * 20)
    values = {"model": model, "precision": precision, "text": tmp_path / "text", "steps": 4, "batch": 2, "context": 16}
    monkeypatch.setattr(sys, "argv", ["train", *(f"--{name}={value}" for name, value in values.items())])
    torch.manual_seed(0)
    names = runpy.run_path(str(ROOT / "examples/train.py"))
    losses = [float(loss) for loss in re.findall(r"loss (\S+) [\d,]+ tokens/s", capsys.readouterr().out)]
    assert len(losses) == 4
    assert losses[-1] < losses[0] - 0.1
    assert any("master" in state for state in names["optimizer"].state.values()) == (precision == "bf16")
    lists = [module for module in names["network"].modules() if isinstance(module, torch.nn.ModuleList)]
    assert all(layer._compiled_call_impl for layer in lists[0])
