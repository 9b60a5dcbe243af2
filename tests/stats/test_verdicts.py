"""A verdict is what its interval shows, and few are false: on noise that is known, with fixed seeds."""

import math

import numpy as np
import pandas as pd
import pytest
from scipy import stats

import simulated_rounds
from lib.stats import estimates, verdicts


def estimated(random, rows):
    columns = {
        "log": 0.05 * random.standard_normal(rows),
        "error": random.lognormal(-4, 1, rows),
        "freedom": random.uniform(1, 30, rows),
    }
    return pd.DataFrame(columns)


@pytest.mark.parametrize("rows", [1, 2, 7, 60])
def test_a_verdict_is_what_benjamini_and_hochberg_find_and_what_the_interval_shows(rows):
    random = np.random.default_rng(rows)
    for _ in range(40):
        table = estimated(random, rows)
        judged = verdicts.judge(table, pd.Series(True, table.index))
        low, high = stats.t.interval(0.95, table["freedom"], table["log"], table["error"])
        is_same = judged["verdict"] == "same"
        assert is_same.tolist() == ((np.exp(low) >= 1 / 1.03) & (np.exp(high) <= 1.03)).tolist()
        p = 2 * stats.t.sf(table["log"].abs() / table["error"], table["freedom"])
        is_finding = stats.false_discovery_control(p) <= verdicts.LEVEL
        is_change = is_finding & ~is_same
        assert judged["verdict"].isin(["faster", "slower"]).tolist() == is_change.tolist()
        excludes_one = (judged["speedup_low"] > 1) | (judged["speedup_high"] < 1)
        assert (excludes_one & ~is_same).tolist() == is_change.tolist()
        assert ((judged["verdict"] == "faster") == ((judged["speedup_low"] > 1) & ~is_same)).all()
        assert ((judged["advice"] == "proven") == (judged["verdict"] == "faster")).all()
        level = np.where(is_same, 0.95, 1 - verdicts.LEVEL * max(is_finding.sum(), 1) / rows)
        low, high = stats.t.interval(level, table["freedom"], table["log"], table["error"])
        # an interval of an unclear ratio whose ends are a hundredfold apart is not shown
        is_vague = (judged["verdict"] == "unclear") & (high - low > math.log(100))
        expected = pd.DataFrame({"speedup_low": np.exp(low), "speedup_high": np.exp(high)}).mask(is_vague)
        pd.testing.assert_frame_equal(judged[["speedup_low", "speedup_high"]], expected)


@pytest.mark.parametrize(
    ("log", "error", "advice"),
    [(0.1, 0.06, "probable"), (0.1, 0.2, "none"), (0.02, 0.012, "none"), (0.1, 0.01, "proven")],
)
def test_a_gain_is_probable_if_three_quarters_of_its_interval_lie_above_one(log, error, advice):
    table = pd.DataFrame({"log": [log], "error": [error], "freedom": [30.0]})
    judged = verdicts.judge(table, pd.Series([True]))
    assert judged["advice"].tolist() == [advice]


def test_the_variance_is_at_least_that_of_the_samples_of_a_process():
    random = np.random.default_rng(5)
    logs = pd.Series(0.01 * random.standard_normal(30))
    cases = pd.Series(np.repeat(range(10), 3))
    calm = estimates.of_processes(logs, cases)
    noise = pd.Series(0.0, logs.index).mask(cases == 4, 0.5)
    made = estimates.of_processes(logs, cases, noise)
    assert made["error"][4] == pytest.approx(0.5 / np.sqrt(3))
    pd.testing.assert_frame_equal(made.drop(4), calm.drop(4))


@pytest.mark.parametrize("rows", simulated_rounds.ROWS)
def test_of_equal_programs_few_are_called_faster_or_slower_and_intervals_cover(rows):
    for rounds in simulated_rounds.ROUNDS:
        shares = simulated_rounds.figures(simulated_rounds.judgements(rows, rounds, tables=6 + 90 // rows))
        assert shares["false"] <= 0.02
        assert shares["tables_with_false"] <= 0.15
        assert shares["covered_95"] >= 0.86
        assert shares["covered"] >= 0.9


def test_findings_are_right_and_their_intervals_cover():
    table = simulated_rounds.judgements(24, 5, tables=20, gain=0.1)
    shares = simulated_rounds.figures(table)
    assert shares["power"] >= 0.8
    assert shares["false_of_findings"] <= 0.05
    assert shares["covered_of_findings"] >= 0.95
