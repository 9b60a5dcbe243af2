"""Numbers of a row have the digits that their intervals warrant, and sentences say what they mean."""

import math

import pandas as pd
import pytest

from lib.report.sentences import against, apart, extremes, ms, number, sides, times

ROW = {"total_ms": 69.123, "total_ms_low": 67.2, "total_ms_high": 71.9, "forward_ms": 20.44, "gone_ms": math.nan}


@pytest.mark.parametrize("row", [ROW, pd.Series(ROW), next(pd.DataFrame([ROW]).itertuples())])
def test_a_time_has_its_ends_and_its_unit(row):
    assert ms(row, "total") == "69.1 (67.2 to 71.9) ms"
    # without ends, as of a value known to 2%
    assert ms(row, "forward") == "20.4 ms"
    assert ms(row, "gone") == ms(row, "backward") == "–"
    assert ms({"total_ms": 1643.4, "total_ms_low": 1571.0, "total_ms_high": 1718.0}, "total") == "1.64 (1.57 to 1.72) s"


def test_times_that_were_no_pairs_stand_against_each_other_by_their_own_intervals():
    slower = {"total_ms": 82.0, "total_ms_low": 71.0, "total_ms_high": 95.0}
    assert against(ROW, slower, "total") == "69.1 (67.2 to 71.9) ms against 82 (71 to 95) ms, intervals overlap"
    # rounded alike, 71.9 and 72.0 would meet
    close = slower | {"total_ms_low": 72.0}
    assert against(close, ROW, "total") == "82 (72 to 95) ms against 69.1 (67.2 to 71.9) ms, intervals apart"
    # a time of one process has none
    assert against(ROW, {"total_ms": 82.0}, "total").endswith("82.0 ms, no intervals")


def test_extremes_that_read_alike_are_told_once():
    assert extremes([2.9, 2.4], ".2g") == "2.4 to 2.9"
    assert extremes(pd.Series([5.9, 6.1]), ".0f") == "6"


def test_two_ways_stand_against_each_other_in_each_model_that_has_both():
    rows = pd.DataFrame([
        ROW | {"size": "tiny", "way": "flat"}, ROW | {"size": "tiny", "way": "naive", "total_ms_low": 71.0},
        ROW | {"size": "small", "way": "flat"},
    ])  # fmt: skip
    stand = "in tiny 69.1 (67.2 to 71.9) ms against 69.1 (71.0 to 71.9) ms, intervals overlap"
    assert sides(rows, "flat", "naive", "total") == stand
    assert sides(rows, "flat", "overlap", "total") == ""


def test_rows_are_apart_whose_interval_does_not_reach_what_is_expected():
    rows = pd.DataFrame({"ms": 2.0, "ms_low": [1.0, 3.0, math.nan, 0.0], "ms_high": [3.0, 4.0, math.nan, 1.0]})
    assert apart(rows.assign(expected=2.0), "ms", "expected") == ([1], [3])
    wide = rows.assign(expected=2.0, expected_low=0.5, expected_high=2.5)
    assert apart(wide, "ms", "expected") == ([1], [])


def test_a_number_is_what_a_cell_of_a_table_shows():
    row = {"rate": 311.5, "rate_low": 301.8, "rate_high": 321.6, "bound_ms": 998.9, "calls": 815_991.4}
    assert number(row, "rate") == "312 (302 to 322)"
    assert number(row, "bound_ms") == "999"
    assert number(row, "calls") == "816,000"
    assert number(row, "gone") == "–"


def ratio(value, low, high, verdict, interval="between processes"):
    return {
        "speedup": value, "speedup_low": low, "speedup_high": high, "verdict": verdict, "baseline": "naive",
        "interval": interval,
    }  # fmt: skip


@pytest.mark.parametrize(
    ("row", "expected"),
    [
        (ratio(3.3, 3.1, 3.5, "faster"), "3.30× (3.10 to 3.50) faster than naive"),
        (ratio(1 / 1.3, 1 / 1.4, 1 / 1.2, "slower"), "1.30× (1.20 to 1.40) slower than naive"),
        (ratio(1.006, 0.99, 1.021, "same"), "as fast as naive: 1.01× (0.99 to 1.02)"),
        (ratio(1.1, 0.9, 1.3, "unclear"), "neither clearly faster nor slower than naive: 1.1× (0.9 to 1.3)"),
        (
            ratio(1.1, math.nan, math.nan, "unclear"),
            "1.10× as fast as naive, without an interval: its rounds are too few or too far apart",
        ),
        # no end that is not one reads 1.0
        (ratio(1.14, 1.01, 1.30, "faster"), "1.14× (1.01 to 1.30) faster than naive"),
        (ratio(1.14, 1.003, 1.29, "faster"), "1.14× (1.003 to 1.29) faster than naive"),
        (ratio(1.22, 0.998, 1.48, "unclear"), "neither clearly faster nor slower than naive: 1.22× (0.998 to 1.48)"),
        (
            ratio(3.3, 3.1, 3.5, "faster", "within one process"),
            "3.30× (3.10 to 3.50) faster than naive in this process",
        ),
        (
            ratio(3.3, 3.1, 3.5, "faster") | {"paired_rounds": 1},
            "3.30× (3.10 to 3.50) faster than naive, in one process",
        ),
        (ratio(math.nan, math.nan, math.nan, ""), "not compared"),
        ({}, "not compared"),
    ],
)
def test_a_ratio_says_itself(row, expected):
    assert times(row) == expected


def test_a_phase_has_a_ratio_of_its_own():
    row = {f"forward_{name}": value for name, value in ratio(3.3, 3.1, 3.5, "faster").items()}
    assert times(row | {"baseline": "naive"}, "forward") == "3.30× (3.10 to 3.50) faster than naive"
