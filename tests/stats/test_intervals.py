"""Intervals cover what they say: on noise that is known, with fixed seeds."""

import numpy as np
import pytest

import simulated_noise
from lib.stats import intervals


def test_the_interpolation_is_that_of_hettmansperger_and_sheather():
    # n = 10: ranks 2 and 9 cover 97.85%, ranks 3 and 8 cover 89.06%; I = 0.3244, lambda = 8 I / (2 + 6 I) = 0.6577
    low, high = intervals.order_statistics(range(10))
    assert (low, high) == pytest.approx((1.6577, 7.3423), abs=1e-3)


def test_too_few_samples_have_no_interval():
    assert np.isnan(intervals.order_statistics(range(5))).all()


def test_equal_samples_have_an_interval_of_no_width():
    for n in range(6, 60):
        assert intervals.order_statistics([0.1249] * n) == (0.1249, 0.1249)


@pytest.mark.parametrize("n", [10, 40])
@pytest.mark.parametrize("noise", simulated_noise.INDEPENDENT)
def test_the_interval_of_the_median_covers_95_percent_whatever_the_noise(noise, n):
    random = np.random.default_rng(1)
    covered = 0
    for _ in range(1000):
        low, high = intervals.order_statistics(simulated_noise.INDEPENDENT[noise](random, n, 0.03))
        covered += low <= 1 <= high
    assert 0.93 <= covered / 1000 <= 0.97
