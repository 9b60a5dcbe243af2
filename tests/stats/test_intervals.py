"""Intervals cover what they say: on noise that is known, with fixed seeds."""

import math

import numpy as np
import pytest
from scipy import stats

import simulated_noise
from lib.stats import intervals
from lib.stats.intervals import Interval


def test_the_interpolation_is_that_of_hettmansperger_and_sheather():
    # n = 10: ranks 2 and 9 cover 97.85%, ranks 3 and 8 cover 89.06%; I = 0.3244, lambda = 8 I / (2 + 6 I) = 0.6577
    low, high = intervals.order_statistics(range(10))
    assert (low, high) == pytest.approx((1.6577, 7.3423), abs=1e-3)


def test_too_few_samples_have_no_interval():
    assert all(math.isnan(end) for end in intervals.order_statistics(range(5)))
    assert not intervals.median([[1.0, 2.0, 3.0]]).known


@pytest.mark.parametrize("n", range(6, 60))
def test_equal_samples_have_an_interval_of_no_width(n):
    assert intervals.order_statistics([0.1249] * n) == (0.1249, 0.1249)


@pytest.mark.parametrize("n", [10, 40])
@pytest.mark.parametrize("noise", simulated_noise.INDEPENDENT)
def test_the_interval_of_the_median_covers_95_percent_whatever_the_noise(noise, n):
    random = np.random.default_rng(1)
    covered = 0
    for _ in range(1000):
        found = intervals.median([simulated_noise.NOISES[noise](random, n, 0.03).tolist()])
        covered += found.low <= 1 <= found.high
    assert 0.93 <= covered / 1000 <= 0.97


@pytest.mark.parametrize("noise", [name for name in simulated_noise.NOISES if name != "drifting"])
def test_the_interval_across_processes_covers_95_percent_where_processes_differ(noise):
    random = np.random.default_rng(2)
    covered = 0
    for _ in range(1000):
        levels = np.exp(0.03 * random.standard_normal(3))
        found = intervals.median([level * simulated_noise.NOISES[noise](random, 20, 0.02) for level in levels])
        covered += found.low <= 1 <= found.high
    assert 0.93 <= covered / 1000 <= 0.97


def test_three_rounds_have_the_t_interval_of_their_medians_and_fewer_that_of_the_first():
    random = np.random.default_rng(3)
    rounds = random.lognormal(0, 0.1, (4, 9))
    logs = np.log(np.median(rounds, axis=1))
    found = intervals.median(rounds.tolist())
    ends = stats.t.interval(0.95, 3, logs.mean(), stats.sem(logs))
    assert (found.value, found.low, found.high) == pytest.approx(tuple(np.exp([logs.mean(), *ends])))
    assert found.rounds == 4
    assert intervals.median(rounds[:2].tolist()) == intervals.median(rounds[:1].tolist())
    assert intervals.median(rounds[:1].tolist()).rounds == 1


def test_counts_of_zero_have_a_median_though_no_logarithm():
    found = intervals.median([[0, 0, 1], [0, 2, 0], [5, 5, 5]])
    assert (found.value, found.rounds) == (0, 3)
    assert not found.known
    assert intervals.median([[0, 0, 0]] * 3).reach == 0


@pytest.mark.parametrize(
    ("interval", "text"),
    [
        (Interval(81.2, 79.1, 83.3, 3), "81 (79 to 83)"),
        (Interval(2.7134, 2.66, 2.75, 3), "2.71 (2.66 to 2.75)"),
        (Interval(2.7134, math.nan, math.nan, 1), "2.71"),
        (Interval(4096, 4096, 4096, 3), "4,096"),
        (Interval(1.1, 0.61, 2.0, 1), "1.1 (0.6 to 2.0)"),
    ],
)
def test_an_interval_prints_itself(interval, text):
    assert f"{interval}" == text


def test_the_inverse_and_a_multiple_of_an_interval_are_those_of_its_ends():
    interval = Interval(2.0, 1.6, 2.5, 3)
    assert interval.inverse == Interval(0.5, 0.4, 0.625, 3)
    assert interval.scaled(10) == Interval(20, 16, 25, 3)
    assert interval.reach == pytest.approx(0.45)
