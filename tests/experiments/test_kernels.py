"""A profiled step says what ran in each phase and in each part of attention."""

import json

from lib import records
from lib.experiments.case import Recording
from lib.experiments.kernels import PROFILED, Kernels

TINY = Kernels(
    size="tiny", context_length=32, batch_size=2, precision="fp32", compiled=False, attention="naive",
    optimizer="single_tensor", mode="train_step", device="cpu",
)  # fmt: skip


def changed(**fields):
    return Kernels(**vars(TINY) | fields)


def measured(case, round=1):
    record = Recording(case, round)
    case.measure(record, seconds=0)
    return record.metrics


def test_all_phases_are_profiled_and_the_products_of_attention_are_found_in_its_parts():
    metrics = measured(TINY)
    assert list(dict.fromkeys(metrics["classes"]["phase"])) == ["forward", "backward", "optimizer"]
    assert len(metrics["profiled_forward_ms"]) == PROFILED
    assert len(metrics["total_ms"]) >= 3
    parts = metrics["parts"]
    rows = zip(parts["part"], parts["phase"], parts["class"], parts["calls"], strict=True)
    calls = {(part, phase): count for part, phase, kind, count in rows if kind == "matrix product"}
    layers = TINY.config.num_layers
    assert calls["scores", "forward"] >= layers
    assert calls["values", "backward"] >= 2 * layers  # the gradients of the weights and of the values
    assert set(metrics["part_costs"]["part"]) == {"scores", "softmax", "values"}


def test_a_fused_kernel_has_no_parts():
    metrics = measured(changed(attention="sdpa", mode="no_grad"))
    assert "parts" not in metrics
    assert "part_costs" not in metrics
    assert "matrix product" in metrics["classes"]["class"]


def test_a_trace_is_kept_of_what_is_measured_by_hand(tmp_path, monkeypatch):
    monkeypatch.setenv("RESULTS", str(tmp_path / "results"))
    case = changed(mode="no_grad")
    measured(case, round=1)
    assert not case.trace_file().exists()
    measured(case, records.BY_HAND)
    assert case.trace_file().stat().st_size > 0
    assert json.dumps(measured(case), allow_nan=False)
