"""Profiles become shares, parts and points, of each process first."""

import pytest

from lib.chapters import profiles
from lib.records import results
from lib.report import plots
from profiled import CASE, metrics


def test_shares_are_of_the_scope_and_add_up(profiled):
    table = profiles.shares(profiled()).set_index("scope")
    assert table["matrix_product_percent"].map(lambda i: round(i.value, 6)).to_dict() == {
        "forward": 80, "forward and backward": round(100 * 2.8 / 3, 6), "whole step": 56,
    }  # fmt: skip
    assert table.loc["forward", "optimizer_percent"].value == 0
    assert table.loc["whole step", "optimizer_percent"].value == pytest.approx(40)
    for _, row in table.iterrows():
        assert row["matrix_product_percent"].value + row["else_percent"].value == pytest.approx(100)
    assert profiles.present(table) == ["matrix_product", "reduction", "optimizer"]
    assert {name.removesuffix("_percent") for name in profiles.COLUMNS.values()} <= set(plots.COLOURS)


def test_the_interval_of_a_share_ends_at_100_percent(save_record):
    for round, product in enumerate((600.0, 999.0, 990.0), 1):
        save_record("kernels", CASE, round, **metrics(round, product=product))
    found = profiles.share(results.load("kernels", "test-1c"), "forward", profiles.PRODUCT)
    assert found.low < found.value < found.high == 100


def test_what_runs_is_no_more_than_the_phase_took(profiled):
    table = profiles.against_timer(profiled(profiled=2.0))
    assert list(table["phase"]) == ["forward", "backward", "optimizer"]
    assert [i.value for i in table["busy_percent"]] == pytest.approx([50, 50, 50])
    assert [i.value for i in table["profiled_ratio"]] == pytest.approx([2, 2, 2])


def test_all_others_together_are_no_kernel_and_nsys_has_its_table(profiled, save_record):
    table = {"range": ["forward", "optimizer"], "kernel": ["ampere_sgemm_128x64_tn"] * 2, "calls": [3, 1]}
    columns = ("total_us", "mean_us", "median_us", "min_us", "max_us", "deviation_us")
    table |= {name: [2.0, 1.0] for name in columns}
    found = metrics(1) | {"nsys": table}
    found["kernels"] = found["kernels"] | {"class": ["", "reduction", "matrix product", "optimizer"]}
    save_record("kernels", CASE, 1, **found)
    records = results.load("kernels", "test-1c")
    assert list(profiles.top(records, CASE)["kernel"]) == ["aten::_softmax", "aten::bmm", "aten::mul_"]
    watched = profiles.top(records, CASE, "nsys", "range")
    assert list(watched["class"]) == ["matrix product", "optimizer"]
