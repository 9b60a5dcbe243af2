"""Bounds are FLOPs and bytes at the best rates seen, and their errors are those of the rates."""

import math
from dataclasses import replace

import numpy as np
import pytest
from scipy import stats

import by_hand
from lib import records
from lib.records import NotMeasured
from lib.report import roofline, tidy
from lib.stats.intervals import Interval

SHAPE = {"rows": 512, "columns": 768, "precision": "fp32", "library": "torch", "device": "cpu"}
FLOPS = 4e9
STEP = {
    "size": "small", "context_length": 128, "batch_size": 4, "precision": "fp32", "tokens": 512,
    "forward_flops": 2e9, "backward_flops": 4e9, "forward_bytes": 1e6, "backward_bytes": 2e6, "optimizer_bytes": 4e9,
}  # fmt: skip


def measured(operation, ms, spread=0.01, **row):
    rounds = [[ms * (1 + spread * (number - 1))] * 5 for number in range(3)]
    return by_hand.of_rounds(rounds, **SHAPE | {"operation": operation} | row)


def ceilings(*more):
    return by_hand.frame(
        *measured("matmul", 40.0, flops=FLOPS),
        *measured("matmul", 32.0, flops=FLOPS, library="onednn"),
        *measured("matmul", 20.0, flops=FLOPS, precision="bf16"),
        *measured("products", 50.0, flops=FLOPS),
        *measured("copy", 10.0, rows=4096, columns=4096, moved_bytes=1e8),
        *measured("add", 8.0, rows=4096, columns=4096, moved_bytes=1e8),
        *measured("add", 0.01, rows=64, columns=64, moved_bytes=1e6),
        *measured("call", 2.0, rows=1, columns=1, calls=1000),
        *more,
        experiment="ceilings",
    )


def interval_of(amount, ms, spread=0.01):
    """The rate by scipy: the t interval over the logarithms of three medians."""
    logs = np.log([amount * 1e3 / (ms * (1 + spread * (number - 1))) for number in range(3)])
    return np.exp([logs.mean(), *stats.t.interval(0.95, 2, logs.mean(), stats.sem(logs))])


def ends(interval):
    return interval.value, interval.low, interval.high


def test_the_ceiling_of_products_is_the_best_of_any_library_by_precision():
    limits = roofline.of_records(ceilings())
    assert ends(limits.products["fp32"]) == pytest.approx(interval_of(FLOPS, 32.0))
    assert ends(limits.products["bf16"]) == pytest.approx(interval_of(FLOPS, 20.0))
    assert ends(limits.own["fp32", 768, 512]) == pytest.approx(interval_of(FLOPS, 50.0))
    assert limits.call_us.value == pytest.approx(2.0, rel=0.01)


def test_one_of_a_weights_three_products_can_be_the_best():
    phases = {"forward_ms": [2.0] * 5, "input_gradients_ms": [10.0] * 5, "weight_gradients_ms": [10.0] * 5}
    limits = roofline.of_records(ceilings(*measured("up", 24.0, flops=1.2e9, **phases)))
    assert limits.products["fp32"].value == pytest.approx(0.4e9 * 1e3 / 2.0)


def test_the_ceiling_of_memory_is_the_best_of_the_largest_matrices_and_not_that_of_a_cache():
    assert ends(roofline.of_records(ceilings()).memory) == pytest.approx(interval_of(1e8, 8.0))


def test_what_failed_is_no_ceiling():
    failed = measured("matmul", 1.0, flops=FLOPS, status="failed", precision="tf32")
    assert "tf32" not in roofline.of_records(ceilings(*failed)).products


@pytest.mark.parametrize("kept", [["matmul", "products"], ["copy", "add"]])
def test_without_products_or_memory_there_are_no_ceilings(kept):
    frame = ceilings()
    with pytest.raises(NotMeasured, match="ceilings"):
        roofline.of_records(frame[frame["operation"].isin(kept)])


def test_phases_follow_one_another_and_each_takes_the_longer_of_its_two_times():
    limits = roofline.of_records(ceilings())
    product = 1e3 / limits.products["fp32"].value
    byte = 1e3 / limits.memory.value
    bound = limits.bound_ms("fp32", [(FLOPS, 1.0), (1.0, 1e9), (0.0, 2e9)])
    assert bound.value == pytest.approx(FLOPS * product + 3e9 * byte)
    flops_error = FLOPS * product * limits.products["fp32"].log_error
    # both phases that memory bounds are off by the same
    bytes_error = 3e9 * byte * limits.memory.log_error
    assert bound.log_error == pytest.approx(math.hypot(flops_error, bytes_error) / bound.value)


def test_a_bound_by_a_ceiling_without_an_interval_has_none():
    limits = roofline.of_records(ceilings())
    unknown = replace(limits, memory=replace(limits.memory, low=math.nan, high=math.nan))
    assert not unknown.bound_ms("fp32", [(FLOPS, 1.0), (1.0, 1e9)]).known
    assert unknown.bound_ms("fp32", [(FLOPS, 1.0)]).known


@pytest.fixture
def known(monkeypatch):
    monkeypatch.setattr(records, "machines", lambda: ["test-1c"])
    monkeypatch.setattr(records, "load", lambda experiment, machine: ceilings())


def table(**row):
    steps = by_hand.frame(*by_hand.of_rounds([[90.0] * 5, [91.0] * 5, [92.0] * 5], **STEP | row), experiment="step")
    return tidy.medians(steps, ["total_ms"], keep=[*roofline.STEP_FACTS])


def test_a_step_has_its_bound_its_share_and_the_time_of_its_own_products(known):
    (row,) = roofline.bounds(table(mode="train_step"), "test-1c").to_dict("records")
    limits = roofline.of_records(ceilings())
    least_ms = 6e9 * 1e3 / limits.products["fp32"].value + 4e9 * 1e3 / limits.memory.value
    assert row["bound_ms"].value == pytest.approx(least_ms)
    assert row["bound_percent"].value == pytest.approx(100 * least_ms / row["total_ms"].value)
    error = math.hypot(row["bound_ms"].log_error, row["total_ms"].log_error)
    assert row["bound_percent"].log_error == pytest.approx(error, rel=0.02)
    assert row["own_ms"].value == pytest.approx(6e9 * 1e3 / limits.own["fp32", 768, 512].value)


@pytest.mark.parametrize(("mode", "flops"), [("no_grad", 2e9), ("forward", 2e9), ("forward_backward", 6e9)])
def test_a_part_of_a_step_counts_only_what_it_runs(known, mode, flops):
    (row,) = roofline.bounds(table(mode=mode), "test-1c").to_dict("records")
    limits = roofline.of_records(ceilings())
    assert row["bound_ms"].value == pytest.approx(flops * 1e3 / limits.products["fp32"].value)
    assert row["own_ms"] is None


def test_other_tables_say_what_counts_and_rows_without_a_time_or_a_ceiling_have_no_bound(known):
    measured_rows = by_hand.of_rounds([[5.0] * 5] * 3, variant="fused", num_params=8, moved_bytes=2e7)
    frame = by_hand.frame(*measured_rows, {"variant": "fused", "num_params": 512, "status": "oom"})
    rows = tidy.medians(frame, ["total_ms"], keep=["moved_bytes"])
    bounded = roofline.bounds(rows, "test-1c", lambda row: [(0.0, row["moved_bytes"])])
    memory = roofline.of_records(ceilings()).memory
    assert bounded["bound_ms"].iloc[0].value == pytest.approx(2e7 * 1e3 / memory.value)
    assert bounded[["bound_ms", "bound_percent", "own_ms"]].iloc[1].isna().all()
    assert roofline.bounds(table(precision="tf32"), "test-1c")["bound_ms"].isna().all()


def test_a_machine_without_ceilings_has_no_bounds(own_results):
    unbounded = roofline.bounds(table(), "test-1c")
    assert unbounded["total_ms"].map(lambda cell: isinstance(cell, Interval)).all()
    assert unbounded[["bound_ms", "bound_percent", "own_ms"]].isna().all(axis=None)
