"""Published figures and other machines' records stand beside the same case only, each beside its own limit."""

import math

import pandas as pd
import pytest

from lib import notebooks
from lib.records import results
from lib.report import published
from lib.stats.intervals import Interval


def test_published_figures_are_set_beside_the_same_case_only():
    own = pd.DataFrame(
        {
            "variant": ["naive", "naive"], "seq_len": [256, 300], "d_head": [64, 64], "batch_size": [8, 8],
            "precision": ["fp32", "fp32"], "hardware": ["mine", "mine"], "forward_ms": [1.0, 2.0],
        }
    )  # fmt: skip
    keys = ["variant", "seq_len", "d_head", "batch_size", "precision"]
    rows = published.same_cases(own, [published.published_attention()], keys)
    assert list(rows["hardware"]) == ["mine", "H100 80GB"]
    assert set(rows["seq_len"]) == {256}


def test_published_phases_that_were_subtracted_are_left_out():
    steps = published.published_step()
    assert "backward" not in steps.columns
    assert (steps["forward_ms"].dropna() > 0).all()
    assert set(steps["precision"]) <= {"fp32", "tf32", "bf16"}


def test_the_published_table_with_most_warm_up_is_taken():
    steps = published.published_step()
    row = steps[
        steps["hardware"].str.startswith("RTX") & (steps["size"] == "medium") & (steps["precision"] == "fp32")
        & ~steps["compiled"].astype(bool)
    ]  # fmt: skip
    assert list(row["forward_ms"]) == pytest.approx([20.2569], abs=1e-3)


def test_published_adam_has_the_variants_under_our_names():
    assert set(published.published_adam()["variant"]) == {"single_tensor", "fused", "compiled_single_tensor"}


def test_published_steps_know_their_model():
    row = published.published_step().query("size == 'xl' and context_length == 256").iloc[0]
    per_layer = 4 * 1600**2 + 3 * 1600 * 6400
    products = 2 * 4 * 256 * (48 * per_layer + 10_000 * 1600)
    assert (row["d_model"], row["forward_flops"]) == (1600, products + 4 * 48 * 4 * 256**2 * 1600)


def test_the_mfu_of_the_ceiling_and_of_the_datasheet_are_two_columns(save_record):
    case = {"operation": "matmul", "rows": 8, "precision": "fp32"}
    save_record(experiment="ceilings", case=case, flops=2e9, total_ms=[1.0, 1.0])  # 2 TFLOP/s
    gpu = "NVIDIA A100-PCIE-40GB, freed memory kept"
    known = Interval(7.0, 6.0, 8.0, 9, 3)
    rows = pd.DataFrame(
        {
            "machine": ["test-1c", "test-1c", "test-1c", "other", None, None, None],
            "precision": ["fp32", "fp32", "bf16", "fp32", "fp32", "tf32", "fp32"],
            "hardware": ["a test", gpu, gpu, "a test", "A100 40GB", "A100 40GB", "not stated"],
            "forward_flops": [1e9] * 7, "total_ms": [Interval(3.0, 2.0, 6.0, 9, 3), 3.0, 3.0, 3.0, 3.0, math.nan, 3.0],
        }
    )  # fmt: skip
    table = published.with_mfu(rows, lambda row: 3 * row["forward_flops"])
    measured, stated = (list(table[name]) for name in ("mfu_percent", "datasheet_mfu_percent"))
    own = measured[0]
    assert (own.value, own.low, own.high, own.rounds) == pytest.approx((50.0, 25.0, 75.0, 3))
    assert [found and found.value for found in measured[1:]] == [pytest.approx(50.0), None, None, None, None, None]
    of_fp32, of_bf16 = pytest.approx(100 * 1e12 / 19.5e12), pytest.approx(100 * 1e12 / 312e12)
    assert [found and found.value for found in stated] == [None, of_fp32, of_bf16, None, of_fp32, None, None]
    assert math.isnan(stated[4].low)
    again = published.with_mfu(rows.assign(mfu_percent=[known, *[None] * 6]), lambda row: 1e9)
    assert again["mfu_percent"][0] is known


def test_other_machines_are_those_of_the_records_kept_and_of_the_cases_asked_for(save_record, monkeypatch, tmp_path):
    for mode in ("train_step", "forward"):
        case = dict.fromkeys(notebooks.fields("step"), 1) | {"size": "tiny", "mode": mode}
        save_record(experiment="step", case=case, machine="other-2c", total_ms=[1.0] * 6)
    monkeypatch.setattr(results, "REFERENCE", results.folder())
    monkeypatch.setenv("RESULTS", str(tmp_path / "none"))
    rows = published.other_machines("step", "test-1c", "total_ms", mode="forward")
    assert list(rows["mode"]) == ["forward"]
    assert list(rows["source"]) == ["records of other-2c"]


def test_every_stated_peak_is_a_number_with_its_convention_and_source():
    peaks = published.datasheets()
    assert list(peaks) == ["hardware", "device", "precision", "tflops", "memory_gb_per_s", "convention", "source"]
    assert not peaks.duplicated(["hardware", "precision"]).any()
    assert set(peaks["precision"]) == {"fp32", "tf32", "bf16"}
    assert (peaks[["tflops", "memory_gb_per_s"]] > 0).all(axis=None)
    assert peaks["source"].str.contains("https://").all()
    assert peaks["convention"].str.startswith("dense").all()
