"""The table is what plain pandas, numpy and scipy make of the records."""

import math

import numpy as np
import pandas as pd
import pytest
from scipy import stats

import by_hand
from lib import records
from lib.report import noise
from lib.report.table import fields, list_processes, table, unfold
from lib.stats import intervals, moderation

RANDOM = np.random.default_rng(1)


def times(middle, rounds=3, spread=0.05):
    levels = middle * RANDOM.lognormal(0, spread, rounds)
    return [(level * RANDOM.lognormal(0, 0.02, 9)).tolist() for level in levels]


def logs_of(rounds):
    return np.log(np.median(rounds, axis=1))


@pytest.mark.parametrize("count", [3, 5])
def test_a_time_is_the_geometric_mean_of_its_processes_medians_and_alone_has_the_t_interval_of_scipy(count):
    rounds = times(4.0, count)
    (row,) = table(by_hand.frame(*by_hand.of_rounds(rounds, variant="fused"))).itertuples()
    logs = logs_of(rounds)
    expected = stats.t.interval(0.95, count - 1, logs.mean(), stats.sem(logs))
    assert row.total_ms == pytest.approx(stats.gmean(np.median(rounds, axis=1)))
    assert (row.total_ms_low, row.total_ms_high) == pytest.approx(tuple(np.exp(expected)))
    assert (row.rounds, row.samples, row.interval) == (count, 9, "between processes")


def test_with_other_cases_every_round_counts_by_the_moderated_variance():
    rounds = [times(middle, count) for middle, count in ((1.0, 5), (2.0, 4), (3.0, 3), (4.0, 2), (5.0, 1))]
    rows = []
    for number, of_case in enumerate(rounds):
        rows += by_hand.of_rounds(of_case, variant="fused", num_params=number)
    made = table(by_hand.frame(*rows))
    counts = np.array([5, 4, 3, 2, 1])
    own = np.array([logs_of(of_case).var(ddof=1) for of_case in rounds[:4]] + [0.0])
    variances, freedoms = moderation.moderate(own, counts - 1)
    for row, of_case, variance, freedom in zip(made.itertuples(), rounds, variances, freedoms, strict=True):
        logs = logs_of(of_case)
        expected = stats.t.interval(0.95, freedom, logs.mean(), math.sqrt(variance / len(logs)))
        if freedom < 1:
            # it would span powers of ten
            expected = (math.nan, math.nan)
        assert (row.total_ms_low, row.total_ms_high) == pytest.approx(tuple(np.exp(expected)), nan_ok=True)


def test_a_single_process_among_cases_whose_variances_differ_widely_has_no_interval():
    spreads = [1e-3, 1.0, 1e-3, 1.0, 1e-3, 1.0]
    rows = by_hand.of_rounds([[1.0] * 9], variant="fused", num_params=99)
    for number, spread in enumerate(spreads):
        rows += by_hand.of_rounds([[1.0] * 9, [1.0 + spread] * 9], variant="fused", num_params=number)
    made = table(by_hand.frame(*rows)).set_index("num_params")
    assert made.loc[99, "total_ms"] == 1
    assert made.loc[99, ["total_ms_low", "total_ms_high"]].isna().all()


def test_rounds_with_pairs_count_apart_where_memory_ran_out_for_them():
    alone = by_hand.of_rounds(times(4.0, 3), variant="fused", num_params=8)
    for row in alone[:2]:
        row |= {"paired_ms": [4.0] * 9, "baseline_ms": [9.0] * 9}
    (row,) = table(by_hand.frame(*alone)).itertuples()
    assert (row.rounds, row.paired_rounds) == (3, 2)


def test_builds_of_pytorch_are_counted_among_the_records_of_a_case():
    rounds = by_hand.of_rounds(times(4.0, 3), variant="fused", num_params=8)
    for row, build in zip(rounds, ["2.13.0+cpu", "2.13.0+cu130", "2.13.0+cpu"], strict=True):
        row["environment"] = {"torch": build}
    (row,) = table(by_hand.frame(*rounds)).itertuples()
    assert row.builds == 2


def test_processes_are_the_records_that_the_table_counts_with_their_medians_and_the_ratios_of_their_pairs():
    rounds = by_hand.of_rounds([[1.0, 2.0, 9.0], [4.0, 5.0], [6.0, 8.0]], variant="fused", num_params=8)
    rounds[0] |= {"paired_ms": [1.0, 2.0], "baseline_ms": [3.0, 6.0], "environment": {"torch": "2.13.0+cpu"}}
    rounds[1] |= {"stale": True}
    rounds[2] |= {"status": "oom"}
    (row,) = list_processes(by_hand.frame(*rounds)).itertuples()
    assert (row.total_ms, row.paired_ms, row.torch, row.noisy) == (2, 1.5, "2.13.0+cpu", 0)
    assert row.speedup == pytest.approx(3)
    assert list_processes(by_hand.frame(*rounds)[:0]).empty


def test_two_rounds_alone_have_no_interval_and_no_verdict():
    rows = by_hand.of_rounds(times(4.0, 2), "paired_ms", variant="fused", num_params=8)
    for row, baseline_ms in zip(rows, times(9.0, 2), strict=True):
        row["baseline_ms"] = baseline_ms
    (row,) = table(by_hand.frame(*rows)).itertuples()
    assert math.isnan(row.paired_ms_low)
    assert math.isnan(row.speedup_high)
    assert row.speedup == pytest.approx(9 / 4, rel=0.3)
    assert (row.verdict, row.advice, row.interval) == ("unclear", "none", "")


def test_by_hand_the_ends_are_those_within_the_process():
    samples = times(4.0, 1)[0]
    frame = by_hand.frame({"variant": "fused", "round": 0, "total_ms": samples})
    (row,) = table(frame).itertuples()
    assert row.total_ms == pytest.approx(np.median(samples))
    assert (row.total_ms_low, row.total_ms_high) == intervals.order_statistics(samples)
    assert row.interval == "within one process"
    # the same process in a sweep says nothing of others
    (in_sweep,) = table(frame.assign(round=1)).itertuples()
    assert math.isnan(in_sweep.total_ms_low)
    assert in_sweep.interval == ""


def test_counts_bytes_and_errors_have_the_median_between_the_extremes_and_facts_are_numbers():
    frame = by_hand.frame(
        {"variant": "fused", "minor_faults": [0, 4, 9], "peak_mib": [5.0], "elements": 64, "switches": "a+b"},
        {"variant": "fused", "minor_faults": [7, 7, 7], "round": 2, "elements": 64, "switches": "a+b"},
        # a zero among times makes them such a median, too
        *by_hand.of_rounds([[0.0], [2.0], [4.0]], "optimizer_ms", variant="single_tensor"),
        {"variant": "foreach", "minor_faults": [0, 0], "loops": {"loop": [1]}, "elements": 64},
    )
    made = table(frame)
    assert made.loc[0, ["minor_faults", "minor_faults_low", "minor_faults_high"]].tolist() == [5.5, 4, 7]
    assert made.loc[0, "peak_mib"] == 5
    assert made.loc[1, ["optimizer_ms", "optimizer_ms_low", "optimizer_ms_high"]].tolist() == [2, 0, 4]
    assert made.loc[2, "minor_faults"] == 0
    assert made.loc[2, ["minor_faults_low", "peak_mib"]].isna().all()
    assert made["elements"].dropna().tolist() == [64, 64]
    assert made.loc[0, "switches"] == "a+b"
    assert not {"elements_low", "switches_low", "loops"} & set(made)


def test_a_case_tells_its_worst_status_only_if_it_was_never_ok():
    frame = by_hand.frame(
        {"variant": "fused", "status": "oom"},
        {"variant": "fused", "status": "crashed", "round": 2},
        {"variant": "foreach", "status": "timeout"},
        {"variant": "single_tensor", "status": "oom"},
        {"variant": "single_tensor", "total_ms": [1.0], "round": 2},
    )
    made = table(frame)
    assert made["status"].tolist() == ["crashed", "took too long", ""]
    assert made["rounds"].tolist() == [0, 0, 1]
    assert made["total_ms"].isna().tolist() == [True, True, False]


def test_fresh_records_of_a_case_take_the_place_of_its_stale_ones():
    frame = by_hand.frame(
        {"variant": "fused", "total_ms": [9.0], "stale": True},
        {"variant": "fused", "total_ms": [1.0], "round": 2},
        {"variant": "foreach", "total_ms": [2.0], "stale": True},
    )
    made = table(frame)
    assert made["total_ms"].tolist() == pytest.approx([1.0, 2.0])
    assert made["stale"].tolist() == [False, True]


def test_noisy_records_are_counted_by_case(reference, reference_table):
    frame = reference["adam"]
    names = fields(frame)
    expected = frame.assign(noisy=noise.find_noisy(frame)).groupby(names)["noisy"].sum()
    made = reference_table("adam").set_index(names)["noisy"]
    pd.testing.assert_series_equal(made, expected.reindex(made.index), check_names=False, check_dtype=False)
    assert made.sum() > 0


def test_each_machine_is_judged_by_itself():
    here = by_hand.frame(*by_hand.of_rounds(times(2.0), variant="fused"))
    there = by_hand.frame(*by_hand.of_rounds(times(9.0), variant="fused"), machine="other")
    both = table(pd.concat([here, there], ignore_index=True))
    pd.testing.assert_frame_equal(both, pd.concat([table(here), table(there)], ignore_index=True))


def test_without_records_the_table_has_its_columns_and_no_rows():
    empty = table(records.frame("adam", []))
    assert empty.empty
    assert [best.variant for best in empty.nsmallest(1, "total_ms").itertuples()] == []
    filled = table(by_hand.frame({"variant": "fused", "status": "oom"}))
    wanted = ["variant", "total_ms", "backward_ms_low", "peak_mib", "elements", "speedup", "verdict", "bound_ms"]
    assert filled[wanted].columns.equals(empty[wanted].columns)
    assert empty.columns.difference(filled.columns).isin(fields(records.frame("adam", []))).all()


def test_of_the_records_in_git_each_case_is_a_row_of_numbers_and_texts(reference, reference_table):
    for experiment, frame in reference.items():
        made = reference_table(experiment)
        names = fields(frame)
        assert len(made) == len(frame[names].drop_duplicates())
        about = ["machine", "hardware", "rounds", "status", "noisy", "new_memory", "builds", "stale"]
        assert list(made)[: len(names) + 8] == [*names, *about]
        assert list(made.select_dtypes(["number", "bool", "str"])) == list(made)


def test_tables_within_records_unfold_to_their_rows_beside_the_case(reference):
    frame = reference["precision"]
    columns = ["scale", "step", "failure"]
    parts = []
    for record in frame.dropna(subset="norm_limits").itertuples():
        inner = pd.DataFrame(record.norm_limits)
        parts.append(inner.assign(subject=record.subject, precision=record.precision))
    expected = pd.concat([part for part in parts if len(part)], ignore_index=True)
    made = unfold(frame, "norm_limits", columns)
    assert list(made) == [*fields(frame), "machine", *columns]
    pd.testing.assert_frame_equal(made[list(expected)], expected, check_dtype=False)


def test_of_stale_and_fresh_records_only_the_fresh_ones_unfold(reference):
    first = reference["precision"].dropna(subset="loops").head(1)
    fresh = first.assign(stale=False, loops=[{"loop": ["a", "b"], "sum": [1.0, 2.0]}])
    made = unfold(pd.concat([first.assign(stale=True), fresh]), "loops", ["loop", "sum"])
    assert made[["loop", "sum"]].to_dict("list") == {"loop": ["a", "b"], "sum": [1.0, 2.0]}
