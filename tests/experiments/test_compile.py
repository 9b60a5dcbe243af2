"""Compiling is followed from empty caches, and is timed in interleaved pairs with the same run eagerly."""

import os
from pathlib import Path

import torch

import plain
from lib.instruments import compilation


def one(**changed):
    return plain.one("compile", **{"compiled": True} | changed)


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
    with torch._inductor.config.patch(cpp_cache_precompile_headers=False):  # which would be compiled anew
        for round in (1, 2):
            metrics = plain.measured(one(), round)["metrics"]
            assert (metrics["compile_cache_hits"] == 0) == (round == 1)
            assert (metrics.get("graphs"), metrics.get("graph_breaks")) == ((1, 0) if round == 1 else (None, None))
            assert len(metrics["paired_forward_ms"]) == len(metrics["baseline_backward_ms"]) >= 5
            assert metrics["first_iteration_ms"][0] > max(metrics["total_ms"])
            assert "peak_mib" not in metrics


def test_what_runs_is_the_case_of_the_other_experiment():
    assert [one(compiled=compiled).inner.variant for compiled in (True, False)] == ["compiled", "naive"]
    step = one(model="tiny", d_head=32, compiled=False)
    assert step.inner == plain.one("step")
    assert step.predicted_bytes() == step.inner.predicted_bytes()
    assert "tokens" not in step.setup().facts
