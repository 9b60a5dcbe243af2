"""Records of profiled steps become shares, rankings and sentences that say what they show and nothing else."""

import functools

import pytest

from executed import shown, sources
from lib import notebooks
from lib.chapters import kernels
from lib.records import results
from lib.report import plots, tables, tidy
from lib.report.sentences import NO_DATA

CASE = {"size": "tiny", "context_length": 64, "precision": "fp32", "compiled": False}
PHASES = ["forward", "forward", "backward", "optimizer"]


def metrics(round, product=800.0, optimizer=2000.0, profiled=1.0, leader="aten::mm"):
    """A step of which the forward pass takes a millisecond and the backward pass two, all of it products."""
    drift = 1 + round / 1000
    totals = [drift * us for us in (product, 1000 - product, 2000.0, optimizer)]
    names, kinds = [leader, "aten::_softmax", "aten::bmm", "aten::mul_"], [
        "matrix product", "reduction", "matrix product", "optimizer",
    ]  # fmt: skip
    table = {
        "phase": PHASES, "kernel": names, "class": kinds, "calls": [2, 1, 4, 9], "total_us": totals,
        **{name: [1.0] * 4 for name in ("mean_us", "median_us", "min_us", "max_us", "deviation_us")},
        "share_percent": [product / 10, 100 - product / 10, 100.0, 100.0],
    }  # fmt: skip
    parts = {
        "part": ["scores", "softmax", "values"], "phase": ["forward"] * 3, "calls": [1, 1, 1],
        "class": ["matrix product", "reduction", "matrix product"], "total_us": [200.0, 100.0 * drift, 300.0],
    }  # fmt: skip
    costs = {"part": parts["part"], "phase": parts["phase"], "flops": [500, 40, 500], "bytes": [100, 150, 100]}
    times = {"forward": 1.0, "backward": 2.0, "optimizer": optimizer / 1000}
    return {
        "kernels": table, "classes": {name: table[name] for name in ("phase", "class", "calls", "total_us")},
        "parts": parts, "part_costs": costs, "nsys_missing": "nsys is not installed", "forward_flops": 7,
        **{f"{phase}_ms": [drift * ms] * 6 for phase, ms in times.items()},
        **{f"profiled_{phase}_ms": [drift * profiled * ms] * 2 for phase, ms in times.items()},
    }  # fmt: skip


@pytest.fixture
def profiled(save_rounds):
    return functools.partial(save_rounds, "kernels", CASE, metrics)


def test_shares_are_of_the_scope_and_add_up(profiled):
    table = kernels.shares(profiled()).set_index("scope")
    assert table["matrix_product_percent"].map(lambda i: round(i.value, 6)).to_dict() == {
        "forward": 80, "forward and backward": round(100 * 2.8 / 3, 6), "whole step": 56,
    }  # fmt: skip
    assert table.loc["forward", "optimizer_percent"].value == 0
    assert table.loc["whole step", "optimizer_percent"].value == pytest.approx(40)
    for _, row in table.iterrows():
        assert row["matrix_product_percent"].value + row["else_percent"].value == pytest.approx(100)
    assert kernels.present(table) == ["matrix_product", "reduction", "optimizer"]


def test_all_classes_of_kernels_have_a_colour():
    assert {name.removesuffix("_percent") for name in kernels.COLUMNS.values()} <= set(plots.COLOURS)


def test_the_change_of_the_share_is_said_as_the_data_has_it(profiled):
    records = profiled()
    assert "80.00% of the operators' time in the forward pass" in kernels.fall(records, CASE).text
    assert "56.00% in the whole step: AdamW has no products." in kernels.fall(records, CASE).text
    assert kernels.kept_share(records).value == pytest.approx(0.7)


def test_the_interval_of_a_share_ends_at_100_percent(save_record):
    for round, product in enumerate((600.0, 999.0, 990.0), 1):
        save_record("kernels", CASE, round, **metrics(round, product=product))
    found = kernels.share(results.load("kernels", "test-1c"), "forward", kernels.PRODUCT)
    assert found.low < found.value < found.high == 100


@pytest.mark.parametrize(("profiled_to_timed", "verdict"), [(1.0, "same"), (1.5, "slower"), (0.5, "faster")])
def test_the_profiler_agrees_with_the_timer_or_does_not(profiled, profiled_to_timed, verdict):
    assert kernels.agreement(profiled(profiled=profiled_to_timed), CASE).verdict == verdict


def test_what_runs_is_no_more_than_the_phase_took(profiled):
    table = kernels.against_timer(profiled(profiled=2.0))
    assert list(table["phase"]) == ["forward", "backward", "optimizer"]
    assert [i.value for i in table["busy_percent"]] == pytest.approx([50, 50, 50])
    assert [i.value for i in table["profiled_ratio"]] == pytest.approx([2, 2, 2])


def test_the_leader_of_the_forward_pass_need_not_be_that_of_both(profiled):
    said = kernels.leader(profiled(), CASE).text
    assert "In the forward pass aten::mm takes the most time, 80.00% of it in 2 calls" in said
    assert "but of forward and backward together it is aten::bmm, with 66.67% in 4 calls" in said


def test_the_leader_of_both_may_be_the_same(profiled):
    said = kernels.leader(profiled(leader="aten::bmm"), CASE).text
    assert "it is the same that takes the most of forward and backward together, 93.33% in 6 calls" in said


def test_what_is_no_product_is_named_from_two_percent_on(profiled):
    said = kernels.besides(profiled(), CASE).text
    assert said.startswith("20.00% of the forward pass is no matrix product")
    assert "aten::_softmax with 20.00%" in said


def test_all_others_together_are_no_kernel_and_nsys_has_its_table(profiled, save_record):
    table = {"range": ["forward", "optimizer"], "kernel": ["ampere_sgemm_128x64_tn"] * 2, "calls": [3, 1]}
    columns = ("total_us", "mean_us", "median_us", "min_us", "max_us", "deviation_us")
    table |= {name: [2.0, 1.0] for name in columns}
    found = metrics(1) | {"nsys": table}
    found["kernels"] = found["kernels"] | {"class": ["", "reduction", "matrix product", "optimizer"]}
    save_record("kernels", CASE, 1, **found)
    records = results.load("kernels", "test-1c")
    assert list(kernels.top(records, CASE)["kernel"]) == ["aten::_softmax", "aten::bmm", "aten::mul_"]
    watched = kernels.top(records, CASE, "nsys", "range")
    assert list(watched["class"]) == ["matrix product", "optimizer"]


def test_less_than_two_percent_is_not_named(profiled):
    assert "none of it takes 2%" in kernels.besides(profiled(product=990.0), CASE).text


def test_softmax_stands_against_the_products_in_time_flops_and_bytes(profiled):
    said = kernels.softmax(profiled(), CASE).text
    assert "0.2004 (0.1999 to 0.2009) times as long as the two products" in said
    assert "4.00% of their FLOPs and 75.0% of their bytes" in said
    assert "backward" not in said
    table = kernels.parts(results.load("kernels", "test-1c")).set_index("part")
    assert table.loc["softmax", "product_ms"].value == 0
    assert table.loc["scores", "flops_percent"] == pytest.approx(100 * 500 / 1040)
    assert table.loc["scores", "gflops"].value == pytest.approx(500 / 200e-6 / 1e9)


def test_the_case_of_the_chapter_is_measured_in_the_most_processes(profiled, save_record):
    profiled()
    save_record("kernels", CASE | {"size": "small"}, 1, **metrics(1) | {"forward_flops": 99})
    assert kernels.head(results.load("kernels", "test-1c")) == CASE


def test_where_the_profiler_saw_no_kernels_the_chapter_says_why_and_is_whole(save_record):
    seen = ("kernels", "classes", "parts", "profiled_forward_ms", "profiled_backward_ms", "profiled_optimizer_ms")
    plain = {name: value for name, value in metrics(1).items() if name not in seen} | {"total_ms": [3.0] * 6}
    reason = "the trace has no kernels; CUPTI is missing"
    chosen = notebooks.parameters("kernels") | CASE | {"device": "cuda"}
    case = {name: chosen[name] for name in notebooks.fields("kernels")}
    for round in (1, 2, 3):
        save_record("kernels", case, round, **plain, profiler_missing=reason)
    records = results.load("kernels", "test-1c")
    chapter = notebooks.CHAPTERS / "03_kernels.ipynb"
    said = "\n".join(one._repr_html_() for one in shown(chapter, machine="test-1c"))
    assert f"<p>The profiler saw no kernels in 3 of 3 records: {reason}.</p>" in said
    answer = kernels.agreement(records, CASE)
    assert answer.text == f"The forward pass under the profiler was not measured here: {reason}."
    assert answer.verdict == kernels.fall(records, CASE).verdict == NO_DATA
    assert kernels.theory(records, results.load("ceilings", "test-1c"))
    fields = " ".join(records.fields) + " "
    names = {"records": records, "fields": fields, "plots": plots, "tables": tables, "tidy": tidy, "chapter": kernels}
    for cell in sources(notebooks.NOTEBOOKS / "kernels.ipynb"):
        if "chapter." in cell:  # what it shows of the profiler
            exec(cell, names)


def test_the_published_tables_are_summed_by_class():
    table = kernels.published_shares().set_index("scope")
    assert table.loc["forward", "matrix_product_percent"] == pytest.approx(84.8)
    assert table.loc["forward", "else_percent"] == pytest.approx(4.5)
