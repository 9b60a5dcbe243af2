"""Every experiment measures on devices that are not here.

One is the GPU of an Apple processor, the other a GPU of NVIDIA's whose kernels the profiler does not see.
"""

import pytest
import torch

from lib import fast, model
from lib.experiments import attempt, cases
from lib.instruments import noise
from pretended import pretended

WIDTH = 16
STEP = {"size": "tiny", "context_length": 8, "batch_size": 1}
ATTENTION = {"d_head": 4, "seq_len": 8, "num_heads": 1, "batch_size": 2}
# not the experiments of several GPUs, nor that of the measurement itself
CASES = {
    "step": [STEP | {"precision": "bf16", "attention": "tiled", "optimizer": "fused"}, STEP | {"mode": "no_grad"}],
    "ladder": [STEP | {"switches": "fused+bf16+masters", "losses": False}],
    "warmup": [STEP | {"first_steps": 15}],
    "kernels": [STEP],
    "precision": [{"subject": ["accumulation", "toy", "layer_norm"]}],
    "memory": [STEP | {"mode": "train_step", "checkpoint": [0, 1]}],
    "attention": [
        ATTENTION | {"variant": ["naive", "tiled", "sdpa"], "cold": True},
        ATTENTION | {"variant": ["naive", "tiled", "sdpa"], "precision": "bf16", "native": True},
    ],
    "attention_module": [{"d_model": WIDTH, "num_heads": 2, "context_length": 8, "batch_size": 1, "precision": "bf16"}],
    "adam": [{"variant": ["single_tensor", "foreach", "fused"], "shapes": "equal", "num_params": 2, "param_size": 8}],
    "peers": [STEP | {"precision": "bf16", "program": "ours"}],
    "ceilings": [
        {"operation": ["matmul", "read", "copy", "add", "adamw"], "rows": 8, "columns": WIDTH},
        {"operation": "call", "rows": 1, "columns": 1},
    ],
}


@pytest.fixture
def small(monkeypatch):
    """The smallest model that has all parts, and programs that are not compiled."""
    config = model.Config(vocab_size=32, d_model=WIDTH, d_ff=32, num_layers=1, num_heads=2)
    monkeypatch.setitem(model.SIZES, "tiny", config)
    monkeypatch.setattr(torch, "compile", lambda function, **_: function)
    monkeypatch.setattr(torch.nn.Module, "compile", lambda module, **_: None)
    monkeypatch.setattr(fast, "_compiled", lambda: fast._update_and_round)
    monkeypatch.setattr(noise, "probe", lambda _: [1.0] * 10)  # sized for a GPU


@pytest.mark.usefixtures("small", "own_results", "former_precision", "one_thread", "little_garbage")
@pytest.mark.parametrize("kind", ["mps", "cuda"])
@pytest.mark.parametrize("experiment", CASES)
def test_an_experiment_measures_there(kind, experiment):
    if (experiment, kind) == ("kernels", "mps"):
        pytest.skip("no profiler knows that device")
    with pretended(kind):
        for axes in CASES[experiment]:
            for case in cases.grid(experiment, **axes, device=kind):
                record = attempt.measure(case, round=1, seconds=0.01, raises=True)
                assert record["status"] == "ok"
                assert record["case"]["device"] == kind
                if experiment not in ("precision", "warmup", "kernels"):
                    assert any(name.endswith("_error") for name in record["metrics"])
                if experiment in ("step", "ladder", "memory", "attention", "attention_module", "adam", "peers"):
                    assert any(name.endswith("_end_mib") for name in record["metrics"])
