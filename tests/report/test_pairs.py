"""A speedup is that of interleaved pairs, judged among all of an experiment on one machine."""

import numpy as np
import pandas as pd
import pytest

import by_hand
from lib.report.pairs import baseline
from lib.report.table import fields, table
from lib.stats import estimates


def in_pairs(gains, rounds=3, noise=0.01, first=0, **common):
    """Return records in pairs of variants that are so many times as fast as the baseline."""
    # the same draws whichever tests run
    random = np.random.default_rng(1 + first)
    rows = []
    for number, gain in enumerate(gains, start=first):
        levels = np.exp(0.01 * random.standard_normal(rounds))
        for round_number, level in enumerate(levels, start=1):
            baseline_ms = level * gain * random.lognormal(0, noise, 12)
            pairs = {"paired_ms": random.lognormal(0, noise, 12).tolist(), "baseline_ms": baseline_ms.tolist()}
            rows.append({"variant": "fused", "num_params": number, "round": round_number, **pairs, **common})
    return rows


def test_a_speedup_is_the_geometric_mean_of_the_processes_hodges_lehmann_estimates(reference, reference_table):
    frame = reference["attention"].dropna(subset="paired_ms")
    logs = frame.apply(lambda record: estimates.of_pairs(record["paired_ms"], record["baseline_ms"])[0], axis="columns")
    made = reference_table("attention").query("baseline != ''").set_index(fields(frame))["speedup"]
    expected = np.exp(frame.assign(log=logs).groupby(fields(frame))["log"].mean())
    pd.testing.assert_series_equal(made, expected.reindex(made.index), check_names=False)


def widths(made):
    return np.log(made["speedup_high"] / made["speedup_low"])


def test_a_stale_comparison_is_none_of_those_that_are_judged_and_alone_it_is():
    fresh = in_pairs([1.0, 1.1, 1.5, 0.8])
    alone = table(by_hand.frame(*fresh))
    assert alone["verdict"].tolist() == ["same", "faster", "faster", "slower"]
    both = by_hand.frame(*fresh, *in_pairs([1.0] * 60, first=4, stale=True))
    assert table(both)["verdict"].tolist()[:4] == alone["verdict"].tolist()
    # of 64 fresh comparisons the findings would have wider intervals
    assert (widths(table(both))[1:4] < 0.8 * widths(table(both.assign(stale=False)))[1:4]).all()
    only_stale = table(by_hand.frame(*fresh).assign(stale=True))
    pd.testing.assert_series_equal(widths(only_stale), widths(alone))


def test_a_single_process_is_as_uncertain_as_its_own_pairs_even_where_others_are_calm():
    calm = in_pairs([1.0] * 9)
    made = table(by_hand.frame(*calm, *in_pairs([1.5], rounds=1, first=9), *in_pairs([1.2], 1, noise=0.3, first=10)))
    assert made["verdict"].tolist()[9:] == ["faster", "unclear"]
    # an interval too wide to tell anything has no ends
    assert not widths(made)[10] < 2 * widths(made)[9]


def test_phases_in_pairs_have_verdicts_of_their_own():
    rows = in_pairs([1.5, 1.5, 1.5])
    for row in rows:
        row |= {"paired_optimizer_ms": row["baseline_ms"], "baseline_optimizer_ms": row["paired_ms"]}
    made = table(by_hand.frame(*rows))
    assert set(made["verdict"]) == {"faster"}
    assert set(made["optimizer_verdict"]) == {"slower"}
    assert made["optimizer_speedup"].tolist() == pytest.approx((1 / made["speedup"]).tolist())


@pytest.mark.parametrize(
    ("experiment", "case", "expected"),
    [
        ("attention", {"variant": "sdpa", "native": False, "precision": "fp32"}, "naive"),
        ("step", {"compiled": True}, "not compiled"),
        ("memory", {"checkpoint": 1}, "without checkpoint"),
        ("ladder", {"switches": "fused"}, "plain"),
    ],
)
def test_a_baseline_is_named_by_the_value_that_differs(experiment, case, expected):
    assert baseline(experiment, case) == expected


def test_single_pairs_are_counted_and_their_extremes_told(reference, reference_table):
    frame = reference["attention"].dropna(subset="paired_ms")
    pairs = frame.explode(["paired_ms", "baseline_ms"])
    ratios = (pairs["baseline_ms"].astype(float) / pairs["paired_ms"].astype(float)).groupby(
        [pairs[name] for name in fields(frame)]
    )
    made = reference_table("attention").query("pairs > 0").set_index(fields(frame))
    for name, expected in {"pairs": ratios.size(), "lowest_pair": ratios.min(), "highest_pair": ratios.max()}.items():
        pd.testing.assert_series_equal(
            made[name].astype(float), expected.reindex(made.index).astype(float), check_names=False
        )
