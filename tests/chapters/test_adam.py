"""Which variant wins is said of those alone that the data tell apart, in the table, on the map and in the sentences."""

import pandas as pd
import pytest

from lib.chapters import adam
from lib.report import plots, tables, tidy
from lib.stats.intervals import Interval

CASE = {"variant": "fused", "shapes": "equal", "num_params": 1, "param_size": 16, "amsgrad": True, "cold": False}


@pytest.fixture
def save_step(save_timed):
    def save(ms, **changed):
        case = CASE | changed
        elements = case["param_size"] * case["num_params"] or 40
        return save_timed("adam", case, ms, elements=elements, moved_bytes=36 * elements)

    return save


@pytest.fixture
def steps(save_step):
    """Two points: at one fused is faster, at the other it and foreach take equally long."""
    for size, times in ((16, (4.0, 2.0, 1.0)), (64, (8.0, 2.0, 2.0))):
        for variant, ms in zip(("single_tensor", "foreach", "fused"), times, strict=True):
            records = save_step(ms, variant=variant, param_size=size)
    return records


def test_the_best_of_a_point_is_one_or_those_that_cannot_be_told_apart(steps):
    wins = adam.wins(steps)
    assert [set(best) for best in wins["best"]] == [{"fused"}, {"foreach", "fused"}]
    assert list(wins["relative"]) == [pytest.approx(0.25, rel=0.01)] * 2
    rows = adam.wins_table(wins, "x")._repr_html_().split("<tr>")[2:]
    assert [row.count("<b>") for row in rows] == [1, 2]
    assert "<b>1.00" in rows[0]
    assert "<b>8" not in rows[1]
    first, second = (text.get_text() for text in adam.wins_map(plots.axes()[0], wins).texts)
    assert first.splitlines() == ["fused", "0.250"]
    assert "and 1 more" in second


def test_the_tally_counts_the_only_best_and_says_what_is_not_shown(steps, save_step):
    records = save_step(5.0, num_params=16)  # alone, which wins nothing
    text = adam.tally(adam.wins(records)).text
    assert text == "Over 2 lists of equally large parameters, fused is fastest on 1 and on 1 several tie."


def test_the_answer_and_the_line_are_about_a_models_own_parameters(steps, save_step):
    for variant, ms in (("single_tensor", 12.0), ("foreach", 10.0), ("fused", 4.0)):
        records = save_step(ms, variant=variant, shapes="small", num_params=0, param_size=0)
    case = adam.headline_case(records)
    assert case["shapes"] == "small"
    said, line = adam.answer(records, case), adam.first_line(records)
    assert said.text.startswith("Fused AdamW takes 4.01")
    assert "for small's parameters, single_tensor 12.0" in said.text
    assert said.verdict == "faster"
    assert line.text.startswith("small's parameters: single_tensor 12.0")
    assert [one._repr_html_().count("data-q=") for one in (said, line)] == [3, 3]
    assert adam.headline_case(steps)["param_size"] == 64


def test_bars_stand_beside_the_time_of_the_bytes(steps):
    table = tidy.medians(tidy.select(steps, param_size=64), "total_ms")
    ax = adam.bars(plots.axes()[0], table, 1.5)
    assert [text.get_text() for text in ax.texts][-1] == "1.50 ms"
    assert len(ax.patches) == 4
    assert len(adam.bars(plots.axes()[0], table, float("nan")).patches) == 3


def test_a_models_parameters_stand_beside_the_list_that_is_nearest_in_elements(steps, save_step):
    records = save_step(3.0, shapes="tiny", num_params=0, param_size=0)  # of 40 elements: nearer to 64 than to 16
    table = adam.beside_nearest(records, "total_ms")
    assert set(table["param_size"].dropna()) == {64}
    own = table[table["shapes"] == "tiny"].iloc[0]
    assert own["elements"] == 40
    assert pd.isna(own["num_params"])


def test_what_was_published_has_no_part_in_the_note_on_samples():
    own = {"value": Interval(1, 0.9, 1.1, 12, 3), "hardware": "a test", "codes": frozenset("a")}
    other = {"value": Interval(2, float("nan"), float("nan"), 0, 0), "hardware": "another", "codes": float("nan")}
    note = tables.provenance(pd.DataFrame([own, other]))
    assert note.startswith("a test. Median")
    assert "another" not in note
