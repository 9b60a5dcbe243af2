"""What compiling costs is set against what it saves."""

import pytest

from lib.chapters import compile
from lib.records import results

ATTENTION = {
    "model": "attention", "seq_len": 8, "d_head": 4, "batch_size": 1, "precision": "fp32", "compiled": True,
    "device": "cpu",
}  # fmt: skip


@pytest.fixture
def turns(save_record):
    """Records of three processes in which compiling took 2 s and compiled took so many times as long as eager."""

    def save(*ratios):
        for round, ratio in enumerate(ratios, 1):
            eager = [20.0 + 0.01 * round + 0.001 * i for i in range(12)]
            compiled = [ms * ratio for ms in eager]
            halves = {f"{side}_{part}_ms": [ms / 2 for ms in times] for part in ("forward", "backward")
                      for side, times in (("paired", compiled), ("baseline", eager))}  # fmt: skip
            save_record(
                "compile", ATTENTION, round, paired_ms=compiled, baseline_ms=eager, total_ms=compiled,
                wall_ms=[10.0] * 6, first_iteration_ms=[2010.0], compile_cache_hits=0, graphs=1, graph_breaks=0,
                graph_break_reasons={"reason": [], "count": []}, out_error=[1e-7], **halves,
            )  # fmt: skip
        return compile.with_compile_time(results.load("compile", "test-1c"))

    return save


def test_compiling_has_paid_for_itself_when_what_it_saved_adds_up_to_its_time(turns):
    (row,) = compile.paid(turns(0.5, 0.5, 0.5)).to_dict("records")
    assert (row["verdict"], row["compile_s"].value) == ("faster", 2.0)
    assert row["payback_steps"].value == pytest.approx(2000 / 10, rel=0.01)
    assert row["payback_steps"].rounds == 3
    assert row["payback_steps"].low < row["payback_steps"].value < row["payback_steps"].high


@pytest.mark.parametrize(
    ("ratios", "words"), [([1.5] * 3, compile.NEVER), ([1.0] * 3, compile.NEVER), ([0.5, 1.6, 1.1], compile.UNKNOWN)]
)
def test_what_is_not_shown_to_be_faster_is_not_said_to_pay_back(turns, ratios, words):
    records = turns(*ratios)
    (row,) = compile.paid(records).to_dict("records")
    assert row["payback_steps"] == words
    text = compile.payback(records, ATTENTION, "attention").text
    assert "iterations" not in text
    assert text.startswith("Compiling attention took 2.000 s and ")


def test_each_phase_is_compared_by_pairs_alone_and_a_case_is_a_row(turns):
    records = turns(0.5, 0.5, 0.5)
    phases = compile.by_phase(records, "forward", "backward", "forward_backward", "total")
    assert list(phases["phase"]) == ["forward", "backward", "forward_backward", "total"]
    assert set(phases["baseline"]) == {"not compiled"}
    assert [ratio.value for ratio in phases["ratio"]] == pytest.approx([0.5] * 4)
    (row,) = compile.wide(records, "forward", "total").to_dict("records")
    assert (row["forward_verdict"], row["total_ratio"].value) == ("faster", pytest.approx(0.5))
    assert compile.breaks(records)[["graphs", "graph_breaks", "reasons"]].values.tolist() == [[1, 0, "none"]]
    assert "at most 1e-07" in compile.equal_results(records).text


def test_published_ratios_are_of_one_source_and_hardware_and_name_what_eager_ran_in():
    table = compile.published().set_index(["model", "seq_len", "d_head", "precision", "hardware"])
    assert table.loc[("attention", 256, 16, "fp32", "H100 80GB"), "forward_ratio"].item() == pytest.approx(0.36 / 0.312)
    mixed = table.xs(("2.7B", 512, "tf32, eager in fp32", "H100 80GB"), level=[0, 1, 3, 4])
    assert mixed["total_ratio"].item() == pytest.approx(393.3 / 1246.3)
