"""Whatever a sweep file may hold, what is accepted runs: configurations drawn at random, on tiny sizes."""

import json
import random

import nbformat
import pytest

from lib import notebooks
from lib.experiments import cases, measure
from lib.instruments import environment
from lib.records import results
from lib.sweep import sweep_file

pytestmark = [pytest.mark.torture, pytest.mark.usefixtures("own_results", "one_thread", "former_precision")]

ACCEPTED = 15  # configurations of each experiment
WRONG = (None, -1, 0, "12", "1e3", 1.5, float("nan"), "naiv", [], {}, True, 10**12, [[1]], "", "../x")
POOLS = {
    "size": ["tiny"], "context_length": [1, 2, 5, 8, 17], "batch_size": [1, 2, 3], "compiled": [False, True],
    "precision": ["fp32", "tf32", "bf16", "fp16"], "mode": ["train_step", "forward_backward", "forward", "no_grad"],
    "attention": ["naive", "tiled", "sdpa", "sdpa_flash", "sdpa_cudnn", "flex", "compiled"],
    "checkpoint": [0, 1, 2, 3, 4, 9], "native": [False, True],
    "optimizer": ["single_tensor", "foreach", "fused", "compiled_single_tensor", "compiled_foreach"],
    "seq_len": [1, 2, 7, 16, 130], "d_head": [1, 2, 3, 8, 32], "causal": [False, True], "cold": [False, True],
    "d_model": [2, 4, 6, 8, 24], "num_heads": [1, 2, 3], "model": ["attention", "tiny"], "amsgrad": [False, True],
    "shapes": ["equal"] * 5 + ["tiny"], "num_params": [1, 2, 5, 0], "param_size": [1, 7, 64, 0],
    "subject": ["accumulation", "toy", "transformer", "layer_norm", "rms_norm"],
    "operation": ["matmul", "copy", "triad", "add", "call"], "rows": [1, 2, 9, 64], "columns": [1, 3, 32],
    "device": ["cpu"], "warmup": [0, 1, 3], "samples": [1, 2, 7], "target_percent": [0, 0.5, 50],
    "seconds": [0, 0.01], "pairs": [0, 1, 3], "recorded": [1, 2], "trace": [False, True],
    "rounds": [1, 1, 2], "timeout": [1, 60],
}  # fmt: skip
ENDS = {"ok", "too_large", "oom"}
OWN = {
    "adam": {"variant": POOLS["optimizer"]}, "attention": {"variant": POOLS["attention"]},
    "collectives": {"operation": notebooks.parameters("collectives")["operation"], "megabytes": [0.001, 0.01]},
    "allocator": {"allocator": ["keeps"]},  # as this process does; the default needs another one
}  # fmt: skip


def drawn(experiment: str, chance: random.Random) -> dict:
    """A block of a sweep that says everything, each axis as a value or as two, and now and then something wrong."""
    # a field that no pool has keeps to the values of its notebook
    defaults = {name: x if isinstance(x, list) else [x] for name, x in notebooks.parameters(experiment).items()}
    pools, fields = defaults | POOLS | OWN.get(experiment, {}), notebooks.fields(experiment)
    block = {}
    for name in [*fields, *notebooks.settings(experiment), "rounds", "timeout"]:
        if name == "round":
            continue
        several = name in fields and chance.random() < 0.1
        block[name] = chance.sample(pools[name], min(2, len(pools[name]))) if several else chance.choice(pools[name])
        if chance.random() < 0.02:
            block[name] = chance.choice(WRONG)
    if chance.random() < 0.2:
        block["fresh"] = chance.choice([*fields, "samples"])
    return block


def ran(kernel: sweep_file.Kernel, cells: list[str]) -> None:
    """The cells of the kernel's notebook, in this process, with its parameters in place of its own."""
    names = dict(kernel.parameters)
    for cell in cells:
        exec(cell, names)


def code(experiment: str) -> list[str]:
    """The cells with code, without that of the parameters."""
    found = nbformat.read(notebooks.NOTEBOOKS / f"{experiment}.ipynb", as_version=4).cells
    return [c.source for c in found if c.cell_type == "code" and "parameters" not in c.metadata.get("tags", [])]


@pytest.mark.faults(12, "what is accepted of an experiment runs")
@pytest.mark.parametrize("experiment", [name for name in cases.EXPERIMENTS if name != "peers"])  # always compiled
def test_every_configuration_that_is_accepted_runs(tmp_path, monkeypatch, experiment):
    chance, file, accepted, draws = random.Random(experiment), tmp_path / "drawn.yaml", 0, 0
    # a compiled case takes tens of seconds; that each kind of them runs is for the tests of compiling
    monkeypatch.setattr(environment, "compiler_missing", lambda device: "left out")
    while accepted < ACCEPTED:
        draws += 1
        block = drawn(experiment, chance)
        file.write_text(json.dumps({experiment: block}))
        try:
            kernels = sweep_file.read(file)
        except ValueError:
            assert draws < 20 * ACCEPTED
            continue
        accepted += any(measure.available(kernel.cases) for kernel in kernels)
        for kernel in kernels:
            if not measure.remaining(kernel.cases, kernel.round):
                continue
            ran(kernel, code(experiment))
            able = measure.available(kernel.cases)
            assert {results.status(measure.record_path(case, kernel.round)) for case in able} <= ENDS, block
