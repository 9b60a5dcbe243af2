"""Compiling is followed from empty caches, and is timed in interleaved pairs with the same run eagerly."""

import os
from pathlib import Path

import torch

from lib.experiments import cases, measure
from lib.instruments import compilation
from lib.records import results
from lib.timing import Plan

ATTENTION = {
    "model": "attention", "seq_len": 8, "d_head": 4, "batch_size": 1, "precision": "fp32", "compiled": True,
    "device": "cpu",
}  # fmt: skip


def one(**changed):
    (case,) = cases.grid("compile", **ATTENTION | changed)
    return case


def broken(x):
    y = x.sin()
    torch._dynamo.graph_break()
    return y.cos()


def run(function):
    torch.compiler.reset()
    with compilation.cold() as found:
        torch.compile(function, backend="eager")(torch.ones(2))
    return found


def test_a_graph_that_breaks_is_counted_with_its_reason_and_one_that_does_not_is_one():
    whole, parts = run(torch.sin), run(broken)
    assert (whole["graphs"], whole["graph_breaks"]) == (1, 0)
    assert whole["graph_break_reasons"] == {"reason": [], "count": []}
    assert (parts["graphs"], parts["graph_breaks"]) == (2, 1)
    assert parts["graph_break_reasons"]["count"] == [1]
    assert "graph_break" in parts["graph_break_reasons"]["reason"][0]
    assert run(broken)["graph_breaks"] == 1  # again, what was counted before is not counted


def test_what_is_compiled_from_empty_caches_goes_to_the_folder_of_the_sweep(monkeypatch, tmp_path):
    monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", str(tmp_path))
    with compilation.cold():
        inside = Path(os.environ["TORCHINDUCTOR_CACHE_DIR"])
        assert inside.is_dir()
        assert not list(inside.iterdir())
        (inside / "graph").write_text("compiled")
    assert os.environ["TORCHINDUCTOR_CACHE_DIR"] == str(tmp_path) != str(inside)
    assert not inside.exists()
    assert (tmp_path / "graph").read_text() == "compiled"


def test_a_case_is_compiled_in_the_first_round_and_loaded_in_the_next(own_results, one_thread, monkeypatch, tmp_path):
    monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", str(tmp_path / "compiled"))
    headers = torch._inductor.config.patch(cpp_cache_precompile_headers=False)  # which would be compiled anew
    for round in (1, 2):
        with headers, measure.recording(one(), round) as record:
            work = record.setup()
            record.metrics |= measure.errors(work)
            record.metrics |= measure.times(work, Plan(1, 6))
            record.metrics |= measure.peaks(work)
            record.metrics |= measure.pairs(record, 7, 1)
        metrics = results.read(measure.record_path(one(), round))["metrics"]
        assert (metrics["compile_cache_hits"] == 0) == (round == 1)
        assert (metrics.get("graphs"), metrics.get("graph_breaks")) == ((1, 0) if round == 1 else (None, None))
        assert len(metrics["paired_forward_ms"]) == len(metrics["baseline_backward_ms"]) >= 5
        assert metrics["first_iteration_ms"][0] > max(metrics["total_ms"])
        assert "peak_mib" not in metrics


def test_what_runs_is_the_case_of_the_other_experiment():
    assert one().inner.variant == "compiled"
    assert one(compiled=False).inner.variant == "naive"
    step = one(model="tiny", d_head=32).inner
    assert (step.size, step.context_length, step.compiled, step.mode) == ("tiny", 8, True, "train_step")
    assert one(model="tiny", d_head=32).predicted_bytes() == step.predicted_bytes()
    facts = one(model="tiny", d_head=32, compiled=False).setup().facts
    assert "tokens" not in facts
    assert not set(facts) & set(ATTENTION)
