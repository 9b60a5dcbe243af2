"""Records of profiled steps become shares, rankings and sentences that say what they show and nothing else."""

import pytest

from executed import shown, sources
from lib import notebooks
from lib.chapters import kernels, profiles
from lib.records import results
from lib.report import plots, tables, tidy
from lib.report.sentences import NO_DATA
from profiled import CASE, metrics


def test_the_change_of_the_share_is_said_as_the_data_has_it(profiled):
    records = profiled()
    said = kernels.fall(records, CASE).text
    assert "80.00% of the operators' time in the forward pass" in said
    assert "56.00% in the whole step: AdamW has no products." in said
    assert profiles.kept_share(records).value == pytest.approx(0.7)


@pytest.mark.parametrize(("profiled_to_timed", "verdict"), [(1.0, "same"), (1.5, "slower")])
def test_the_profiler_agrees_with_the_timer_or_does_not(profiled, profiled_to_timed, verdict):
    assert kernels.agreement(profiled(profiled=profiled_to_timed), CASE).verdict == verdict


def test_the_leader_of_the_forward_pass_may_be_that_of_both(profiled):
    said = kernels.leader(profiled(), CASE).text
    assert "In the forward pass aten::mm takes the most time, 80.00% of it in 2 calls" in said
    assert "but of forward and backward together it is aten::bmm, with 66.67% in 4 calls" in said
    said = kernels.leader(profiled(leader="aten::bmm"), CASE).text
    assert "and also of forward and backward together, 93.33% in 6 calls" in said


def test_what_is_no_product_is_named_from_two_percent_on(profiled):
    said = kernels.besides(profiled(), CASE).text
    assert said.startswith("20.00% of the forward pass is not matrix products")
    assert "aten::_softmax with 20.00%" in said
    assert "none of it takes 2%" in kernels.besides(profiled(product=990.0), CASE).text


def test_softmax_stands_against_the_products_in_time_flops_and_bytes(profiled):
    said = kernels.softmax(profiled(), CASE).text
    assert "Softmax takes 20.04 (19.99 to 20.09)% as long as attention's two products" in said
    assert "4.00% of their FLOPs and 75.0% of their bytes" in said
    assert "backward" not in said
    table = profiles.parts(results.load("kernels", "test-1c")).set_index("part")
    assert table.loc["softmax", "product_ms"].value == 0
    assert table.loc["scores", "flops_percent"] == pytest.approx(100 * 500 / 1040)
    assert table.loc["scores", "gflops"].value == pytest.approx(500 / 200e-6 / 1e9)


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
    names = {"records": records, "fields": fields, "plots": plots, "tables": tables, "tidy": tidy, "profiles": profiles}
    for cell in sources(notebooks.NOTEBOOKS / "kernels.ipynb"):
        if "profiles." in cell:  # what it shows of the profiler
            exec(cell, names)


def test_the_published_tables_are_summed_by_class():
    table = kernels.published_shares().set_index("scope")
    assert table.loc["forward", "matrix_product_percent"] == pytest.approx(84.8)
    assert table.loc["forward", "else_percent"] == pytest.approx(4.5)
