"""The time of a step is accounted for: products, functions, bytes, faults and calls, and the rest by its size."""

import functools
import math

import pytest

from lib.chapters import accounts
from lib.records import results
from lib.report import plots

CASE = {"size": "tiny", "context_length": 64, "precision": "fp32", "attention": "naive", "device": "cpu"}
pytestmark = pytest.mark.usefixtures("closed_figures")


def metrics(round, forward_ms=10.0, spent_ms=7.0):
    """A forward pass of 4 ms in products, 1 in functions, 2 in bytes, 1 in faults and 0.5 in calls."""
    return {
        "operators": {
            "phase": ["forward"] * 4 + ["optimizer"], "operator": ["mm", "silu", "add", "view", "mul_"],
            "kind": ["product", "function", "memory", "view", "memory"], "calls": [2, 1, 100, 400, 1000],
            "moved_bytes": [7, 7, 1_500_000, 0, 4_000_000], "new_bytes": [7, 7, 500_000, 0, 0],
            "spent_ms": [4.5, 1.0, 2.1, 0.1, spent_ms],
        },
        "alone": {
            "phase": ["forward"] * 2, "operator": ["mm", "silu"], "kind": ["product", "function"],
            "shapes": ["4×8 · 8×4", "4×8"], "flops": [2_000_000, 0], "calls": [2, 1], "call_ms": [2.0, 1.0],
        },
        "phase_faults": {"phase": ["forward", "optimizer"], "faults": [1000, 0]}, "fault_us": [1.0, 0.5, 9.0],
        "forward_ms": [forward_ms] * 3, "optimizer_ms": [4.0] * 3, "total_ms": [forward_ms + 4.0] * 3,
    }  # fmt: skip


@pytest.fixture
def ceilings(save_record):
    plain = {"rows": 8, "columns": 8, "precision": "fp32", "device": "cpu"}
    save_record("ceilings", {"operation": "add", **plain}, 1, total_ms=[1.0] * 6, moved_bytes=1_000_000)
    save_record("ceilings", {"operation": "call", **plain}, 1, total_ms=[1.0] * 6, calls=1000)
    return results.load("ceilings", "test-1c")


@pytest.fixture
def stepped(save_rounds):
    return functools.partial(save_rounds, "kernels", CASE, metrics)


def test_the_parts_of_a_phase_add_up_to_the_time_measured(stepped, ceilings):
    table = accounts.accounts(stepped(), ceilings).set_index("phase")
    found = {part: table.loc["forward", f"{part}_ms"].value for part in (*accounts.PARTS, "unexplained")}
    assert found == pytest.approx(
        {"products": 4, "attention": 0, "functions": 1, "bytes": 2, "faults": 1, "calls": 0.5, "unexplained": 1.5}
    )
    assert table.loc["optimizer", "unexplained_ms"].value == pytest.approx(4 - 4 - 1)
    assert table.loc["step", "measured_ms"].value == pytest.approx(14)
    assert table.loc["step", "unexplained_ms"].value == pytest.approx(1.5 - 1)
    assert accounts.present(table) == ["products", "functions", "bytes", "faults", "calls"]


def test_only_a_cpu_fetches_what_it_overwrites():
    found = [accounts.pieces(metrics(1) | {"device": device}, 1e9, 0.0) for device in ("cpu", "cuda")]
    assert [one.loc[one["part"] == "bytes", "ms"].sum() for one in found] == [6.0, 5.5]


def test_without_ceilings_nothing_is_accounted_for(stepped, ceilings):
    records = stepped()
    assert accounts.accounts(records, ceilings.iloc[:0]).empty
    assert accounts.answer(records, CASE, ceilings.iloc[:0]).verdict == "no data"
    assert accounts.accounts(records.assign(operators=None), ceilings).empty
    unknown = accounts.operators(records, ceilings.iloc[:0], CASE).set_index("operator")
    assert math.isnan(unknown.loc["mul_", "accounted_ms"])
    assert "mul_" not in accounts.excess(records, CASE, ceilings.iloc[:0]).text


def test_the_sentence_has_the_products_and_the_size_of_what_stays_unexplained(stepped, ceilings):
    said = accounts.answer(stepped(forward_ms=16.0), CASE, ceilings)
    assert said.text.startswith(
        "Repeated alone, the matrix products of a step of tiny (context 64, fp32) take 20% of its time: 4.00 ms of "
        "20.00 ms."
    )
    assert "6.50 ms (32%) stay unexplained." in said.text
    assert said.quantities[0].value.value == pytest.approx(20)
    assert "from a cache" in accounts.answer(stepped(forward_ms=9.0), CASE, ceilings).text


def test_operators_are_ranked_beside_what_is_accounted_for(stepped, ceilings):
    table = accounts.operators(stepped(), ceilings, CASE).set_index("operator")
    assert list(table.index) == ["mul_", "mm", "add", "silu", "view"]
    assert table.loc["mm", "accounted_ms"] == pytest.approx(4)
    assert table.loc["add", "accounted_ms"] == pytest.approx(2.1)
    assert table.loc["mul_", "excess_ms"] == pytest.approx(2)
    said = accounts.excess(stepped(), CASE, ceilings).text
    assert said.startswith("Inside the step, these take longer than accounted for: mul_ 2.000 ms and mm 0.500 ms.")
    assert "view 0.300 ms" in said.partition("These take less")[2]
    alone = accounts.alone(stepped(), CASE)
    assert list(alone["operator"]) == ["mm", "silu"]
    assert alone["gflops"].iloc[0].value == pytest.approx(1)


def test_the_figure_has_a_bar_for_each_part_and_a_mark_for_the_time(stepped, ceilings):
    table = accounts.accounts(stepped(), ceilings)
    ax = accounts.draw(table)
    names = {text.get_text() for text in ax.figure.legends[0].get_texts()}
    assert names == {"products", "functions", "bytes", "faults", "calls", "unexplained", "measured"}
    assert plots.show(accounts.draw(table.iloc[:0]), "", "", table.iloc[:0])._repr_html_() == ""
    assert set(accounts.PARTS) | {"unexplained"} <= set(plots.COLOURS)
