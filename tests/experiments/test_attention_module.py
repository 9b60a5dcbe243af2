"""The module with projections is right, and its memory is counted to the byte."""

import pytest

import plain
from lib import model
from lib.experiments import measure
from lib.instruments import peak_memory

SHAPE = {"d_model": 32, "num_heads": 2, "batch_size": 2}


def one(**changed):
    return plain.one("attention_module", **SHAPE | changed)


@pytest.mark.parametrize("precision", ["fp32", "bf16"])
def test_a_module_gives_a_record_of_both_passes_and_of_its_memory(own_results, precision):
    metrics = plain.measured(one(precision=precision))["metrics"]
    assert all(len(metrics[name]) == 6 for name in ("forward_ms", "backward_ms", "total_ms"))
    assert {"out_error", "gradient_error", "weight_gradient_error"} <= set(metrics)
    tables = 2 * 8 * 16 // 2 * 4  # cosine and sine for each position and pair of features
    assert metrics["model_mib"] == [(4 * 4 * 32**2 + tables) / peak_memory.MIB]
    weights, inputs = 4 * 4 * 32**2, 4 * 2 * 8 * 32
    assert metrics["backward_end_mib"][0] * peak_memory.MIB >= 2 * weights + 2 * inputs
    assert ("paired_ms" in metrics) == (precision == "bf16")


def test_a_module_that_computes_something_else_is_found(monkeypatch):
    work, right = one().setup(), model.SelfAttention.forward
    expected = work.expected()
    work.expected = lambda: expected
    monkeypatch.setattr(model.SelfAttention, "forward", lambda module, x: 1.001 * right(module, x))
    with pytest.raises(measure.WrongResult, match="out"):
        measure.errors(work)


@pytest.mark.parametrize(
    "changed",
    [
        {"d_model": 256, "context_length": 16, "batch_size": 8},
        {"d_model": 128, "context_length": 64, "precision": "bf16"},
        {"d_model": 32, "context_length": 512, "num_heads": 8, "batch_size": 1},
    ],
    ids=str,
)
def test_predicted_bytes_bound_the_check_and_the_passes_from_near_above(changed):
    case = one(**changed)
    work = case.setup()

    def check(mark):
        work.before()
        expected = work.expected()
        work.iteration(lambda phase: None)
        for name, tensor in work.result().items():
            measure._relative_error(tensor, expected[name])
        mark("run")

    most = peak_memory.peaks(check, "cpu")["peak_mib"][0] * peak_memory.MIB
    assert most <= case.predicted_bytes() <= 1.5 * most


def test_facts_follow_the_formulas():
    facts = one().setup().facts
    assert facts["projection_flops"] == 8 * 16 * 32**2
    assert facts["attention_flops"] == 4 * 16 * 8 * 32
    assert facts["forward_flops"] == facts["projection_flops"] + facts["attention_flops"]
    assert facts["forward_bytes"] + facts["backward_bytes"] == 48 * 32**2 + 5 * 4 * 16 * 32
