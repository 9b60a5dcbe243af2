"""Tidy tables are what plain pandas and numpy make of the records."""

import numpy as np
import pandas as pd
import pytest

import by_hand
from lib.records import NotMeasured
from lib.report import tidy
from lib.stats import intervals

RANDOM = np.random.default_rng(1)


def times(middle):
    return (middle * RANDOM.lognormal(0, 0.02, (3, 9))).tolist()


@pytest.fixture
def frame():
    """Two variants in three rounds here, one of them also elsewhere, and a case that could not be measured."""
    return by_hand.frame(
        *by_hand.of_rounds(times(4.0), variant="foreach", num_params=8, elements=64),
        *by_hand.of_rounds(times(2.0), variant="fused", num_params=8, elements=64),
        {"variant": "fused", "num_params": 512, "status": "crashed"},
        {"variant": "fused", "num_params": 512, "status": "oom", "round": 2},
        *by_hand.of_rounds(times(9.0), variant="fused", num_params=8, elements=64, machine="other", hardware="else"),
    )


def test_without_records_of_the_first_machine_nothing_is_told(frame):
    frame.attrs["machine"] = "other"
    assert set(tidy.told(frame)["machine"]) == {"other"}
    frame.attrs["machine"] = "without-records"
    with pytest.raises(NotMeasured):
        tidy.told(frame)


def test_the_first_machine_is_told_and_its_fields_are_the_axes_of_the_notebook(frame):
    assert tidy.fields(frame) == ["variant", "num_params"]
    pd.testing.assert_frame_equal(tidy.told(frame), frame.query("machine == 'test-1c'"))
    for look_up in (tidy.fields, tidy.told):
        with pytest.raises(NotMeasured):
            look_up(frame[:0])


def test_only_keeps_rows_by_a_value_or_by_one_of_several(frame):
    pd.testing.assert_frame_equal(tidy.only(frame, variant="foreach"), frame.query("variant == 'foreach'"))
    both = tidy.only(frame, variant=["foreach", "fused"], num_params=8)
    pd.testing.assert_frame_equal(both, frame.query("num_params == 8"))


def test_what_is_missing_is_named(frame):
    with pytest.raises(NotMeasured, match="a case with variant compiled"):
        tidy.only(frame, variant="compiled")
    with pytest.raises(NotMeasured, match="unheard of"):
        tidy.only(frame, unheard_of=1)


def test_a_value_is_preferred_where_there_is_one(frame):
    assert set(tidy.prefer(frame, variant="fused")["variant"]) == {"fused"}
    assert set(tidy.prefer(frame, variant="unheard of")["variant"]) == {"foreach"}


def test_the_largest_is_among_those_that_were_measured(frame):
    assert set(tidy.largest(frame, "num_params")["num_params"]) == {8}
    with pytest.raises(NotMeasured):
        tidy.largest(frame, "peak_mib")
    with pytest.raises(NotMeasured):
        tidy.largest(frame.query("status != 'ok'"), "num_params")


def test_fresh_records_of_a_case_take_the_place_of_its_stale_ones():
    frame = by_hand.frame(
        {"variant": "fused", "round": 1, "stale": True},
        {"variant": "fused", "round": 2},
        {"variant": "foreach", "round": 1, "stale": True},
        {"variant": "fused", "round": 1, "stale": True, "machine": "other"},
        {"variant": "compiled", "status": "crashed"},
    )
    assert tidy.ok(frame).index.tolist() == [1, 2, 3]


def test_the_median_of_a_case_has_the_interval_over_its_rounds(frame):
    rows = tidy.told(frame).query("variant == 'fused' and status == 'ok'")
    found = tidy.median(tidy.told(frame), "total_ms", variant="fused", num_params=8)
    assert found == intervals.median(rows["total_ms"].tolist())
    assert found.rounds == 3
    number = tidy.median(tidy.told(frame), "elements", variant="fused", num_params=8)
    assert (number.value, number.reach, number.rounds) == (64, 0, 3)


def test_a_median_is_of_one_case_that_was_measured(frame):
    with pytest.raises(ValueError, match="total_ms: got records of 2 cases, expected one of one machine"):
        tidy.median(tidy.told(frame), "total_ms", num_params=8)
    with pytest.raises(NotMeasured):
        tidy.median(frame, "total_ms", num_params=512)
    with pytest.raises(NotMeasured, match="peak mib"):
        tidy.median(tidy.told(frame), "peak_mib", variant="fused", num_params=8)


def test_medians_have_a_row_a_case_and_machine(frame):
    table = tidy.medians(frame, ["total_ms", "peak_mib"], keep=["hardware"])
    assert table["variant"].tolist() == ["foreach", "fused", "fused", "fused"]
    assert table["num_params"].tolist() == [8, 8, 512, 8]
    assert table["machine"].tolist() == ["test-1c"] * 3 + ["other"]
    grouped = frame[frame["status"] == "ok"].groupby(["machine", "variant", "num_params"])["total_ms"].agg(list)
    for row in table[table["status"] == ""].itertuples():
        assert row.total_ms == intervals.median(grouped[row.machine, row.variant, row.num_params])
    assert table["rounds"].tolist() == [3, 3, 0, 3]
    assert table["status"].tolist() == ["", "", "crashed", ""]
    assert table["peak_mib"].isna().all()
    assert table["total_ms"].isna().tolist() == [False, False, True, False]
    assert table["hardware"].tolist() == ["a test"] * 3 + ["else"]


def test_the_worst_error_is_the_largest_of_any_record():
    frame = by_hand.frame(
        {"variant": "foreach", "num_params": 1, "update_error": 1e-7},
        {"variant": "foreach", "num_params": 8, "update_error": 3e-7},
        {"variant": "foreach", "num_params": 8, "round": 2, "update_error": 1e-8},
        {"variant": "foreach", "num_params": 8, "round": 3, "update_error": 1e-8},
        {"variant": "fused", "num_params": 1, "update_error": 2e-7},
        {"variant": "fused", "num_params": 8, "status": "oom", "update_error": 1.0},
    )
    worst = tidy.worst(frame.assign(last_error=None), ["update_error", "last_error"], ["variant"])
    expected = pd.DataFrame({"variant": ["foreach", "fused"], "update error": ["3.0e-07", "2.0e-07"]})
    pd.testing.assert_frame_equal(worst, expected)


def test_a_fact_that_no_record_has_is_not_measured(frame):
    with pytest.raises(NotMeasured, match="moved bytes"):
        tidy.medians(frame, ["total_ms"], keep=["elements", "moved_bytes"])


def test_intervals_sort_by_their_values(frame):
    table = tidy.medians(tidy.only(frame, num_params=8), ["total_ms"])
    ordered = table.sort_values("total_ms", key=tidy.values)
    assert ordered.index.tolist() == np.argsort([cell.value for cell in table["total_ms"]]).tolist()


def probed(middles, **row):
    steady = 1 + 0.001 * np.arange(10)
    return [{"variant": "fused", "noise_probe_ms": (middle * steady).tolist(), **row} for middle in middles]


def test_a_record_is_noisy_if_the_probe_was_slow_for_its_machine_or_unsteady():
    unsteady = {"variant": "fused", "noise_probe_ms": [1.0, 1.5] * 5}
    unknown = {"variant": "fused"}
    frame = by_hand.frame(
        *probed([1.0, 1.0, 1.0, 1.05, 1.3]), unsteady, unknown, *probed([3.0, 3.1, 3.9], machine="slower")
    )
    assert tidy.noisy(frame).tolist() == [False] * 4 + [True, True, False] + [False, False, True]


def test_times_of_pairs_replace_those_taken_alone(frame):
    frame["paired_ms"] = [[5.0] * 9 if variant == "foreach" else None for variant in frame["variant"]]
    both = tidy.in_pairs(frame)
    assert both.loc[both["variant"] == "foreach", "total_ms"].tolist() == [[5.0] * 9] * 3
    pd.testing.assert_series_equal(both["total_ms"].iloc[3:], frame["total_ms"].iloc[3:])


def test_cases_that_several_machines_have_stand_side_by_side(frame):
    both = tidy.by_machine(tidy.medians(frame, ["total_ms"]), "total_ms")
    assert both.columns.tolist() == ["variant, num params", "test-1c", "other"]
    assert both.iloc[:, 0].tolist() == ["fused, 8"]
    assert [cell.value for cell in both.iloc[0, 1:]] == pytest.approx([2.0, 9.0], rel=0.05)
    assert tidy.by_machine(tidy.medians(tidy.told(frame), ["total_ms"]), "total_ms").empty


def test_one_quick_probe_does_not_make_the_others_noisy(frame):
    assert not tidy.noisy(by_hand.frame(*probed([0.8] + [1.0] * 19))).any()
    assert not tidy.noisy(frame).any()


def test_a_note_tells_rounds_hardware_and_what_to_doubt(frame):
    assert tidy.note(tidy.told(frame)) == "3 rounds a case. a test."
    doubtful = by_hand.frame(*probed([1.0, 1.0]), *probed([1.5], num_params=8), num_params=4)
    doubtful["stale"] = [False, False, True]
    assert tidy.note(doubtful) == "1 to 2 rounds a case. a test. 1 of 3 records noisy. Some records are stale."
    assert tidy.note(frame.query("status != 'ok'")) == ""
    # a stale record beside fresh ones of its case is not in the table
    partly_stale = by_hand.frame(*probed([1.0, 1.0, 1.5]))
    partly_stale["stale"] = [False, False, True]
    assert tidy.note(partly_stale) == "2 rounds a case. a test."
