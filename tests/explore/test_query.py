"""A query picks records, is refused in one line where it cannot, and is saved as figure and rows."""

import re
import shutil

import pandas as pd
import pytest

import executed
from lib import notebooks
from lib.chapters import precision
from lib.explore import beside, panel, query
from lib.records import results
from reference import MACHINE

CASE = {
    "variant": "naive", "seq_len": 64, "d_head": 64, "batch_size": 8, "causal": True, "precision": "fp32",
    "cold": False, "device": "cpu",
}  # fmt: skip
QUERY = {"experiment": "attention", "machines": ["test-1c"], "x": "seq_len", "y": "total_ms", "line": "variant"}


@pytest.fixture
def records(save_record):
    """Two variants over three lengths in three rounds, one of which did not fit; fp32 and, of one case, bf16."""
    for round in (1, 2, 3):
        for seq_len in (64, 128, 256):
            for slower, variant in enumerate(("naive", "sdpa"), start=1):
                times = [seq_len / slower + 0.01 * i for i in range(8)]
                save_record(case=CASE | {"variant": variant, "seq_len": seq_len}, round=round, total_ms=times)
        save_record(case=CASE | {"seq_len": 512}, round=round, status="oom")
    save_record(case=CASE | {"precision": "bf16"}, total_ms=[7.0] * 8, out_error=[0.0])
    return save_record


@pytest.mark.parametrize(
    ("wrong", "said"),
    [
        ({"experiment": "atention"}, "experiment: got 'atention', expected one of .*nearest: attention"),
        ({"machines": ["test-2c"]}, "machines: got 'test-2c', expected one of .*nearest: test-1c"),
        ({"machines": []}, "machines: got none, expected one"),
        ({"x": "seqlen"}, "x: got 'seqlen'.*nearest: seq_len"),
        ({"line": "varient"}, "line: got 'varient'.*nearest: variant"),
        ({"line": "seq_len"}, "line: got 'seq_len', expected another field"),
        ({"y": "total_m"}, "y: got 'total_m'.*nearest: total_ms"),
        ({"y": "status"}, "y: got 'status', expected one of"),
        ({"where": {"size": "tiny"}}, "where: got 'size', expected one of"),
        ({"where": {"variant": "spda"}}, "where.variant: got 'spda'.*nearest: sdpa"),
        ({"where": {"causal": 1}}, "where.causal: got 1, expected one of True"),
    ],
)
def test_a_query_that_picks_nothing_is_refused_in_one_line(records, wrong, said):
    with pytest.raises(ValueError, match=said) as refused:
        query.Query(**QUERY | wrong)
    assert "\n" not in str(refused.value)


def test_a_query_picks_the_cases_with_these_values_and_what_failed_says_why(records):
    rows = query.listing(query.Query(**QUERY, where={"precision": "fp32", "seq_len": [128, 512]}))
    assert list(zip(rows["variant"], rows["seq_len"], rows["n"], strict=True)) == [
        ("naive", 128, 24), ("naive", 512, 0), ("sdpa", 128, 24),
    ]  # fmt: skip
    assert rows["whole, ms"].iloc[0] == pytest.approx(128.035)
    assert list(rows["why"]) == ["", "ran out of memory", ""]


def test_lines_that_differ_in_more_than_the_line_are_told_apart(records):
    table = query.table(query.Query(**QUERY))
    assert set(table["label"]) == {"naive fp32", "naive bf16", "sdpa fp32"}
    assert table.groupby("variant")["colour"].nunique().to_dict() == {"naive": 1, "sdpa": 1}
    assert table["colour"].nunique() == 2


def test_numbers_are_drawn_as_lines_and_all_else_as_bars(records):
    lines = query.draw(query.Query(**QUERY, where={"precision": "fp32"}))
    assert (lines.get_xscale(), lines.get_yscale()) == ("log", "log")
    bars = query.draw(query.Query(**QUERY | {"x": "precision"}, where={"seq_len": 64}))
    assert len(bars.patches) == 3
    assert bars.get_xscale() == "linear"
    zero = query.draw(query.Query(**QUERY | {"y": "out_error"}))
    assert [bar.get_width() for bar in zero.patches] == [0.0]


def test_the_first_query_leaves_nothing_but_its_axes_open(records):
    chosen = query.first("attention")
    assert (chosen.machines, chosen.x, chosen.y, chosen.line) == (("test-1c",), "seq_len", "total_ms", "variant")
    assert chosen.where == {"precision": ("fp32",)}
    assert query.first("attention", line="precision").where == {"variant": ("naive",)}
    with pytest.raises(ValueError, match="nearest: attention"):
        query.first("attentoin")


def test_lines_are_of_the_field_in_which_most_variants_differ(own_results):
    records = results.load("attention", MACHINE)
    assert records["native"].nunique() == 2 < records["variant"].nunique()
    assert query.first("attention", (MACHINE,)).line == "variant"


def test_several_machines_are_lines_of_their_own(records):
    for seq_len in (64, 128):
        records(case=CASE | {"seq_len": seq_len}, machine="test-gpu", total_ms=[1.0] * 8)
    chosen = query.first("attention", ("test-1c", "test-gpu"))
    assert (chosen.line, chosen.where["variant"]) == ("machine", ("naive",))
    table = query.table(chosen)
    assert table.groupby("label")["machine"].unique().map(list).to_dict() == {
        "test-1c": ["test-1c"], "test-gpu": ["test-gpu"],
    }  # fmt: skip
    assert table["colour"].nunique() == 2


KEPT = {folder.name for folder in results.REFERENCE.glob("*/*")} & set(notebooks.experiments())


@pytest.mark.parametrize("experiment", sorted(KEPT))
def test_every_experiment_of_a_reference_machine_has_something_to_draw(own_results, experiment):
    chosen = query.first(experiment)
    assert "<svg" in query.figure(chosen)._repr_html_()


def test_a_figure_is_saved_with_its_rows(records):
    chosen = query.Query(**QUERY, where={"precision": "fp32", "causal": True})
    file = query.save(chosen)
    assert file.parent == results.folder().parent / "figures"
    assert "<svg" in file.read_text()
    rows = pd.read_csv(file.with_suffix(".csv"), keep_default_na=False, na_values={"whole, ms": ""})
    assert list(rows["variant"]) == list(query.listing(chosen)["variant"])
    assert rows["whole, ms"].iloc[0] == pytest.approx(query.listing(chosen)["whole, ms"].iloc[0])
    assert query.save(chosen) == file
    assert query.save(query.Query(**QUERY)) != file


def test_the_controls_lead_to_queries_and_say_what_cannot_be(records):
    controls = panel.Panel(query.first("attention"))
    assert controls.query.where == {"precision": ("fp32",)}
    controls.filters["seq_len"].value = (64, 128)
    assert controls.query.where == {"precision": ("fp32",), "seq_len": (64, 128)}
    controls.line.value = "precision"
    assert (controls.query.line, controls.query.where) == ("precision", {"variant": ("naive",)})
    figure, table = (output["data"]["text/html"] for output in controls.shown.outputs)
    assert "<svg" in figure
    assert "bf16" in table
    controls.x.value = "precision"
    assert "expected another field than the x axis" in controls.message.value
    assert controls.query.x == "seq_len"
    controls.button.click()
    assert query.folder() / f"explore-{controls.query.slug}.svg" in query.folder().iterdir()


def test_the_notebook_shows_and_saves_its_default_query_and_another_choice(own_results):
    notebook = notebooks.NOTEBOOKS / "explore.ipynb"
    for choice, said in (
        ({}, "x='seq_len', y='total_ms'"),
        ({"experiment": "adam", "axes": {"x": "variant", "y": "peak_mib"}}, "x='variant', y='peak_mib'"),
    ):
        objects = executed.shown(notebook, **choice)
        assert any(said in repr(one) for one in objects)
        assert any("<svg" in one._repr_html_() for one in objects if hasattr(one, "_repr_html_"))
    assert len(list(query.folder().glob("*.svg"))) == len(list(query.folder().glob("*.csv"))) == 2


def text(shown):
    return re.sub(r"<[^>]+>", " ", getattr(shown, "data", None) or shown._repr_html_())


@pytest.fixture
def kept(records, monkeypatch, tmp_path):
    """The records, kept in git as it were."""
    shutil.copytree(results.folder(), tmp_path / "kept")
    monkeypatch.setattr(results, "REFERENCE", tmp_path / "kept")
    return records


def test_what_was_measured_by_hand_stands_beside_the_references(kept):
    kept(case=CASE | {"device": "cuda"}, round=0, machine="test-gpu", total_ms=[9.0] * 8)
    shown = text(beside.beside(results.load("attention", "test-gpu", round=0), "total_ms"))
    assert re.search(r"here, by hand\s+9\b.*records of test-1c\s+64\.03", shown)


def test_where_no_reference_has_the_case_a_sentence_says_so(kept, monkeypatch):
    kept(case=CASE | {"seq_len": 17}, round=0, machine="test-gpu", total_ms=[9.0] * 8)
    own = results.load("attention", "test-gpu", round=0)
    assert "Git keeps this experiment from test-1c" in text(beside.beside(own, "total_ms"))
    monkeypatch.setattr(results, "REFERENCE", results.folder() / "none")
    assert "from no machine" in text(beside.beside(own, "total_ms"))


def test_a_case_that_has_no_such_rows_is_not_set_beside_any(own_results):
    kept = results.load("precision", results.machines()[0])
    for subject, shown in (("accumulation", "fp16 += fp16"), ("toy", "No reference machine")):
        own = kept[kept["subject"] == subject].assign(round=0)
        assert shown in text(beside.beside(own, "sum", precision.loops, keys="loop"))


def test_a_sweep_does_not_read_the_references(records, monkeypatch):
    monkeypatch.setattr(results, "reference", None)
    assert "The report shows" in text(beside.beside(results.load("attention", "test-1c"), "total_ms"))
