"""Every experiment goes from its notebook to the page on devices that are not here.

One is the GPU of an Apple processor, the other a GPU of NVIDIA's whose kernels the profiler does not see.
"""

import pytest
import torch

import executed
from lib import fast, model, notebooks
from lib.catalog import CATALOG
from lib.experiments import ceilings
from lib.instruments import environment, noise
from lib.records import results
from pretended import pretended

WIDTH, FEW = 16, {"warmup": 1, "samples": 2, "target_percent": 0, "seconds": 0.01, "pairs": 1, "round": 1}
STEP = {"size": "tiny", "context_length": 8, "batch_size": 1}
ATTENTION = {"d_head": 4, "seq_len": 8}
CASES = {
    "step": [STEP | {"precision": "bf16", "attention": "tiled", "optimizer": "fused"}, STEP | {"mode": "no_grad"}],
    "ladder": [STEP | {"precision": "bf16", "optimizer": "fused", "projections": True, "cast_once": True, "steps": 2}],
    "warmup": [STEP],
    "kernels": [STEP],
    "precision": [{"subject": "accumulation", "precision": "bf16"}, {"subject": ["toy", "transformer", "layer_norm"]}],
    "memory": [STEP | {"mode": "train_step", "checkpoint": [0, 1]}],
    "attention": [
        ATTENTION | {"variant": ["naive", "tiled", "sdpa"], "batch_size": 2, "cold": True},
        ATTENTION | {"variant": ["naive", "tiled", "sdpa"], "batch_size": 1, "precision": "bf16", "native": True},
    ],
    "flash": [ATTENTION | {"variant": ["naive", "tiled", "sdpa"], "precision": ["fp32", "bf16"]}],
    "attention_module": [{"d_model": WIDTH, "num_heads": 2, "context_length": 8, "batch_size": 1, "precision": "bf16"}],
    "compile": [ATTENTION | {"model": "attention", "batch_size": 1, "compiled": False}],
    "adam": [{"variant": ["single_tensor", "foreach", "fused"], "num_params": 2, "param_size": 8}],
    "peers": [STEP | {"precision": "bf16"}],
    "ceilings": [
        {"operation": ["matmul", "copy", "triad", "add", "adamw", "products"], "rows": 8, "columns": WIDTH},
        {"operation": "call", "rows": 1, "columns": 1},
    ],
}
UNMEASURED = {"allocator", "collectives", "ddp", "sharded", "fsdp"}  # of the C library, and of several GPUs


@pytest.fixture
def small(monkeypatch):
    """The smallest model that has all parts, and programs that are not compiled."""
    config = model.Config(vocab_size=32, d_model=WIDTH, d_ff=32, num_layers=1, num_heads=2)
    monkeypatch.setitem(model.SIZES, "tiny", config)
    monkeypatch.setitem(ceilings.MODELS, WIDTH, config)
    monkeypatch.setattr(ceilings, "CALLS", 3)
    monkeypatch.setattr(torch, "compile", lambda function, **_: function)
    monkeypatch.setattr(fast, "_compiled", lambda: fast._update_and_copy)
    monkeypatch.setattr(noise, "probe", lambda _: [1.0] * 10)  # sized for a GPU


@pytest.mark.usefixtures("small", "own_results", "former_precision", "one_thread", "little_garbage", "closed_figures")
@pytest.mark.parametrize("kind", ["mps", "cuda"])
def test_every_experiment_goes_from_its_notebook_to_the_page(kind):
    assert CASES.keys() | UNMEASURED == CATALOG.keys()
    measured = [experiment for experiment in CASES if (experiment, kind) != ("kernels", "mps")]
    with pretended(kind):
        machine = environment.machine(kind)
        for experiment in measured:
            for parameters in CASES[experiment]:
                given = {name: FEW[name] for name in FEW if name in notebooks.parameters(experiment)}
                executed.shown(notebooks.NOTEBOOKS / f"{experiment}.ipynb", **given, **parameters, device=kind)
    found = [results.read(file) for file in results.folder().glob("*/*/*.json")]
    assert {one["status"] for one in found} == {"ok"}
    assert {one["experiment"] for one in found} == set(measured)
    checked = [one["metrics"] for one in found if one["experiment"] not in ("precision", "warmup", "kernels")]
    for ending in ("_error", "_end_mib"):
        assert all(any(name.endswith(ending) for name in metrics) for metrics in checked)
    if kind == "cuda":
        assert "the trace has no kernels" in executed.told(machine)
    else:  # what it does not know of a device is missing from the chapters of one process
        for chapter in sorted(notebooks.CHAPTERS.glob("0*.ipynb")):
            assert executed.shown(chapter, machine=machine)
