"""Intervals cover what they say, and verdicts follow from them."""

import math

import numpy as np
import pytest

from lib import stats
from lib.stats import Interval


@pytest.mark.parametrize(("n", "low", "high"), [(6, 0, 5), (8, 0, 7), (9, 1, 7), (10, 1, 8), (20, 5, 14)])
def test_order_statistics_are_those_of_the_binomial_table(n, low, high):
    # Conover 1999, table A3: the narrowest symmetric pair with at least 95%
    assert stats.order_statistics(range(n)) == (low, high)


def test_too_few_samples_have_no_interval():
    assert all(math.isnan(end) for end in stats.order_statistics(range(5)))
    assert not stats.median([[1.0, 2.0, 3.0]]).known


@pytest.mark.parametrize("n", [8, 10, 25])
def test_the_interval_of_the_median_covers_at_least_95_percent(n):
    draws = np.random.default_rng(1).lognormal(sigma=0.5, size=(3000, n))
    covered = [low <= 1 <= high for low, high in map(stats.order_statistics, draws)]
    assert np.mean(covered) > 0.945


def test_the_interval_across_rounds_covers_95_percent_where_processes_differ():
    random = np.random.default_rng(2)
    covered = 0
    for _ in range(2000):
        levels = random.lognormal(sigma=0.05, size=4)
        found = stats.median([level * random.lognormal(sigma=0.01, size=10) for level in levels])
        covered += found.low <= 1 <= found.high
    assert 0.93 < covered / 2000 < 0.97


def test_one_interval_speaks_for_one_process_and_three_for_processes():
    samples = [1.0, 1.1, 1.2, 1.3, 1.4, 1.5]
    assert stats.median([samples, samples]).scope == "within one process"
    assert stats.median([samples] * 3).scope == "across 3 processes"


def test_the_median_is_not_moved_by_one_outlier():
    assert stats.median([[1, 1, 1, 1, 1, 1, 1000]]).value == 1


def test_a_ratio_pairs_the_rounds_so_that_what_slows_a_whole_round_cancels():
    above = {r: [2.0 * level] * 6 for r, level in ((1, 1.0), (2, 3.0), (3, 1.5))}
    below = {r: [level] * 6 for r, level in ((1, 1.0), (2, 3.0), (3, 1.5))}
    found = stats.ratio(above, below)
    assert (found.value, found.low, found.high) == pytest.approx((2, 2, 2))
    assert found.rounds == 3


def test_a_ratio_within_a_process_covers_at_least_95_percent():
    random = np.random.default_rng(3)
    covered = 0
    for _ in range(1000):
        found = stats.ratio({1: list(random.lognormal(0.5, 0.1, 10))}, {1: list(random.lognormal(0, 0.1, 10))})
        covered += found.low <= math.exp(0.5) <= found.high
    assert covered >= 950


@pytest.mark.parametrize(
    ("low", "high", "said"),
    [
        (0.5, 0.8, "faster"),
        (1.2, 1.5, "slower"),
        (0.98, 1.02, "same"),
        (0.99, 0.995, "same"),
        (0.9, 1.1, "inconclusive"),
        (0.5, 0.999, "faster"),
        (math.nan, math.nan, "inconclusive"),
    ],
)
def test_the_verdict_says_no_more_than_the_interval(low, high, said):
    assert stats.verdict(Interval(1.0, low, high, 10, 3)) == said


@pytest.mark.parametrize("rounds", [1, 2])
def test_what_was_timed_one_after_the_other_in_one_process_is_not_called_faster(rounds):
    assert stats.verdict(Interval(0.5, 0.4, 0.6, 10, rounds)) == "inconclusive"


def test_equal_distributions_are_seldom_called_different():
    random = np.random.default_rng(4)
    verdicts = [
        stats.verdict(stats.ratio(*({r: list(random.lognormal(0, 0.1, 10)) for r in range(3)} for _ in range(2))))
        for _ in range(500)
    ]
    assert sum(verdict in ("faster", "slower") for verdict in verdicts) <= 35
