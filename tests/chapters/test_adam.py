"""Which variant wins is said of those alone that the data tell apart, in the table, on the map and in the sentences."""

import pandas as pd
import pytest

from lib.chapters import adam
from lib.records import results
from lib.report import compare, plots, tables, tidy
from lib.stats.intervals import Interval

CASE = {"variant": "fused", "shapes": "equal", "num_params": 1, "param_size": 16, "amsgrad": True, "cold": False}
NOISE = [0.99, 1.0, 1.01, 1.0, 0.995, 1.005, 1.002, 0.998]


@pytest.fixture
def save_step(save_record):
    """Save three rounds of a case with that median time."""

    def save(ms, **changed):
        case = CASE | changed
        own = case["param_size"] * case["num_params"] or 40
        for round, shift in ((1, 0.999), (2, 1.0), (3, 1.001)):
            samples = [ms * shift * noise for noise in NOISE]
            save_record("adam", case, round, total_ms=samples, elements=own, moved_bytes=36 * own)

    return save


@pytest.fixture
def steps(save_step):
    """Two points: at one fused is faster, at the other it and foreach take equally long."""
    for size, times in ((16, (4.0, 2.0, 1.0)), (64, (8.0, 2.0, 2.0))):
        for variant, ms in zip(("single_tensor", "foreach", "fused"), times, strict=True):
            save_step(ms, variant=variant, param_size=size)
    return results.load("adam", "test-1c")


def test_the_best_of_a_point_is_one_or_those_that_cannot_be_told_apart(steps):
    wins = adam.wins(steps)
    assert [set(best) for best in wins["best"]] == [{"fused"}, {"foreach", "fused"}]
    assert list(wins["relative"]) == [pytest.approx(0.25, rel=0.01)] * 2
    assert wins["single_tensor"][1].value == pytest.approx(8, rel=0.01)


def test_the_table_sets_the_best_of_each_row_in_bold_and_nothing_else(steps):
    html = adam.wins_table(adam.wins(steps), "x")
    rows = html._repr_html_().split("<tr>")[2:]
    assert [row.count("<b>") for row in rows] == [1, 2]
    assert "<b>1.00" in rows[0]
    assert "<b>8" not in rows[1]


def test_the_map_names_the_best_and_how_many_share_its_place(steps):
    wins = adam.wins(steps)
    ax = adam.wins_map(plots.axes()[0], wins)
    first, second = (text.get_text() for text in ax.texts)
    assert first.splitlines() == ["fused", "0.250"]
    assert "and 1 more" in second


def test_the_tally_counts_the_only_best_and_says_what_is_not_shown(steps, save_step):
    save_step(5.0, num_params=16)  # alone, which wins nothing
    steps = results.load("adam", "test-1c")
    text = adam.tally(adam.wins(steps)).text
    assert text == "Over 2 lists of equally large parameters, fused is fastest on 1 and on 1 several tie."


def test_the_answer_and_the_line_are_about_a_models_own_parameters(steps, save_step):
    for variant, ms in (("single_tensor", 12.0), ("foreach", 10.0), ("fused", 4.0)):
        save_step(ms, variant=variant, shapes="small", num_params=0, param_size=0)
    records = results.load("adam", "test-1c")
    case = adam.headline_case(records)
    assert case["shapes"] == "small"
    said = adam.answer(records, case)
    assert said.text.startswith("Fused AdamW takes 4.00")
    assert "for small's parameters, single_tensor 12.0" in said.text
    assert said.verdict == "faster"
    line = adam.first_line(records)
    assert line.text.startswith("small's parameters: single_tensor 12.0")
    assert [one.shown in line.text for one in line.quantities] == [True] * 3
    assert adam.headline_case(steps)["param_size"] == 64


def test_bars_stand_beside_the_time_of_the_bytes(steps):
    table = tidy.medians(tidy.select(steps, param_size=64), "total_ms")
    ax = adam.bars(plots.axes()[0], table, 1.5)
    assert [text.get_text() for text in ax.texts][-1] == "1.50 ms"
    assert len(ax.patches) == 4
    assert len(adam.bars(plots.axes()[0], table, float("nan")).patches) == 3


def test_a_contrast_is_the_ratio_to_the_case_that_differs_in_one_field(steps, save_step):
    save_step(0.8, amsgrad=False)
    (row,) = compare.contrasts(results.load("adam", "test-1c"), "amsgrad", False).to_dict("records")
    assert (row["variant"], row["param_size"], row["amsgrad"]) == ("fused", 16, True)
    assert row["ratio"].value == pytest.approx(1.25, rel=0.01)
    assert row["verdict"] == "slower"


def test_a_models_parameters_stand_beside_the_list_that_is_nearest_in_elements(steps, save_step):
    save_step(3.0, shapes="tiny", num_params=0, param_size=0)  # of 40 elements: nearer to 64 than to 16
    records = adam.with_bytes(results.load("adam", "test-1c"))
    table = adam.beside_nearest(records, "total_ms", "per_element_ns", "moved_mib")
    assert set(table["param_size"].dropna()) == {64}
    own = table[table["shapes"] == "tiny"].iloc[0]
    assert own["elements"] == 40
    assert pd.isna(own["num_params"])
    assert own["per_element_ns"].value == pytest.approx(3e6 / 40, rel=0.01)
    assert own["moved_mib"].value == pytest.approx(36 * 40 / 2**20)


def test_what_was_published_has_no_part_in_the_note_on_samples():
    own = {"value": Interval(1, 0.9, 1.1, 12, 3), "hardware": "a test", "codes": frozenset("a")}
    other = {"value": Interval(2, float("nan"), float("nan"), 0, 0), "hardware": "another", "codes": float("nan")}
    note = tables.provenance(pd.DataFrame([own, other]))
    assert note.startswith("a test. Median")
    assert "another" not in note
