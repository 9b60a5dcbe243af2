"""A bound is the roofline of the best rates that the same machine reached."""

import numpy as np
import pandas as pd
import pytest
from scipy import stats

import by_hand
from lib.config import SIZES
from lib.report import bounds

MACHINE = "xeon-2c-0e51"  # of the records kept in git


def test_of_the_records_in_git_no_product_is_faster_than_its_bound_and_the_bound_is_the_roofline(reference_table):
    for experiment in ("step", "ladder", "kernels", "attention", "attention_module"):
        made = reference_table(experiment)
        assert made["bound_ms"].notna().all()
        assert (made["bound_percent_low"].fillna(made["bound_percent"]) <= 100).all()
    (plain,) = reference_table("step").query("size == 'small'").itertuples()
    products, memory = bounds.best_rates(bounds.load_ceilings(MACHINE))
    slowest_ms = 0.0
    for phase in ("forward", "backward"):
        flops_ms = 1e3 * getattr(plain, f"{phase}_flops") / products["cpu", "fp32"]
        slowest_ms += max(flops_ms, 1e3 * getattr(plain, f"{phase}_bytes") / memory["cpu"])
    assert plain.bound_ms == pytest.approx(slowest_ms + 1e3 * plain.optimizer_bytes / memory["cpu"])


def test_a_ceiling_is_the_best_rate_that_the_median_of_any_round_reached():
    shape = {"operation": "matmul", "rows": 8, "columns": 8, "precision": "fp32", "device": "cpu", "flops": 1e6}
    moving = shape | {"operation": "copy", "moved_bytes": 4e6}
    small = moving | {"rows": 4, "moved_bytes": 1e9}
    rows = [
        *by_hand.of_rounds([[1.0, 2.0, 9.0], [4.0] * 3], **shape),
        {**shape, "precision": "bf16", "total_ms": [0.1], "input_gradients_ms": [0.02], "forward_ms": [0.05]},
        {**shape, "round": 3, "status": "failed", "total_ms": [0.001]},
        *by_hand.of_rounds([[3.0], [2.0]], **moving),
        *by_hand.of_rounds([[1.0]], **small),
    ]
    frame = by_hand.frame(*rows, experiment="ceilings")
    products, memory = bounds.best_rates(frame)
    assert products.to_dict() == pytest.approx({("cpu", "bf16"): 1e6 / 3 / 0.02e-3, ("cpu", "fp32"): 5e8})
    assert memory.to_dict() == pytest.approx({"cpu": 2e9})
    products, memory = bounds.best_rates(frame[frame["operation"] == "matmul"].drop(columns="moved_bytes"))
    assert len(products) == 2
    assert memory.empty


@pytest.mark.parametrize(("error", "best"), [(4e-7, 2e9), (2e-3, 1e9)])
def test_products_that_round_nothing_count_for_fp32(error, best):
    shape = {"operation": "matmul", "rows": 8, "columns": 8, "device": "cpu", "flops": 1e6, "output_error": [error]}
    rows = [
        {**shape, "precision": "fp32", "total_ms": [1.0]},
        {**shape, "precision": "bf16_products", "total_ms": [0.5]},
    ]
    products, _ = bounds.best_rates(by_hand.frame(*rows, experiment="ceilings"))
    assert products.to_dict() == pytest.approx({("cpu", "fp32"): best, ("cpu", "bf16_products"): 2e9})


def test_rates_name_the_arithmetic_of_each_record():
    shape = {"operation": "matmul", "rows": 8, "columns": 8, "device": "cpu", "flops": 1e6, "total_ms": [0.5, 2.0, 9.0]}
    shape |= {"precision": "bf16_products", "output_error": [4e-7]}
    products, moving = bounds.list_rates(by_hand.frame(shape, experiment="ceilings"))
    assert products[["precision", "arithmetic", "rate"]].to_numpy().tolist() == [
        ["bf16_products", "bf16_products", 5e8], ["fp32", "bf16_products", 5e8],
    ]  # fmt: skip
    assert moving.empty


def test_a_roofline_has_the_flops_a_byte_that_theory_gives(reference_table):
    ceilings = reference_table("ceilings")
    points = bounds.list_points(ceilings, reference_table("attention"))
    by_operation = points[points["precision"] == "fp32"].groupby("operation")["flops_a_byte"].first()
    (side,) = ceilings.query("operation == 'matmul'")["rows"].unique()
    assert by_operation[["add", "adamw", "matmul"]].tolist() == pytest.approx([1 / 12, 1 / 2, side / 6])
    assert set(points["kind"]) == {"product", "memory", "attention"}
    alone = bounds.list_points(ceilings, reference_table("attention")[:0])
    assert len(alone) == len(points[points["kind"] != "attention"])


def test_fused_adamw_on_lists_longer_than_any_matrix_counts_for_memory_alone_and_in_steps(reference):
    lists = reference["adam"].query("variant == 'fused' and elements > 8192**2")
    rates = list(1e3 * lists["moved_bytes"] / lists["total_ms"].map(np.median))
    for experiment, metric in {"ladder": "paired_optimizer_ms", "peers": "optimizer_ms"}.items():
        steps = reference[experiment].query("status == 'ok' and parameters > 8192**2")
        steps = steps[["fused" in name and "masters" not in name for name in steps["switches"]]].dropna(subset=metric)
        rates += list(1e3 * steps["optimizer_bytes"] / steps[metric].map(np.median))
    _, by_matrices = bounds.best_rates(reference["ceilings"])
    ceilings = bounds.load_ceilings(MACHINE)
    _, memory = bounds.best_rates(ceilings)
    assert memory["cpu"] == pytest.approx(max([*rates, by_matrices["cpu"]]))
    assert bounds.usual_rates(ceilings)["cpu"] == pytest.approx(stats.gmean(rates))


def test_a_call_takes_the_geometric_mean_of_the_rounds_medians(reference):
    calls = reference["ceilings"].query("operation == 'call'")["total_ms"]
    assert bounds.call_us(MACHINE).to_dict() == pytest.approx({"cpu": stats.gmean(calls.map(np.median))})
    assert bounds.call_us("nobody-1c").empty


def test_other_sizes_are_estimated_as_near_to_their_bounds_as_the_step(monkeypatch):
    rates = pd.Series({("cpu", "fp32"): 2e11}), pd.Series({"cpu": 6e10})
    monkeypatch.setattr(bounds, "load_ceilings", lambda machine: machine)
    monkeypatch.setattr(bounds, "best_rates", lambda ceilings: rates)
    shape = {"machine": "here", "device": "cpu", "precision": "fp32", "context_length": 128, "batch_size": 4}
    timed = SIZES.keys() - {"small"}
    told = bounds.tell_untimed(pd.DataFrame([shape | {"bound_percent": 50.0}]), timed)
    # 378.7 GFLOP at the rate of products, and 28 bytes for each of 128.6 million parameters
    assert told == "Estimates, whether they fit or not: as near to their bounds, others take small 3.9 s."
    assert bounds.tell_untimed(pd.DataFrame([shape | {"bound_percent": float("nan")}]), timed) == ""
