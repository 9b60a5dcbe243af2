"""A series that stays is called steady, and one that drifts or warms up for too long is not: on known noise."""

import numpy as np
import pytest

import simulated_noise
from lib.stats import steady_state

N = 40
TIMES = 200
SPREAD = 0.03


def drifting(noise, drift):
    """Return the part of series of 40 samples, slower by so much at the end, in which a drift is found."""
    random = np.random.default_rng(1)
    slower = np.linspace(1, 1 + drift, N)
    return np.mean([steady_state.drifts(slower * noise(random, N, SPREAD)) for _ in range(TIMES)])


@pytest.mark.parametrize("noise", simulated_noise.INDEPENDENT.values(), ids=simulated_noise.INDEPENDENT)
def test_a_drift_is_found_and_few_series_have_a_false_one(noise):
    assert drifting(noise, 0) <= 0.02
    assert drifting(noise, 0.06) >= 0.9


@pytest.mark.parametrize("noise", simulated_noise.INDEPENDENT)
def test_the_end_of_the_warm_up_is_found_within_3_iterations(noise):
    random = np.random.default_rng(4)
    right = 0
    for _ in range(TIMES):
        values = simulated_noise.INDEPENDENT[noise](random, N, SPREAD)
        length = random.integers(0, 9)
        values[:length] *= 1 + 0.8 ** np.arange(length)
        start = steady_state.steady(values)
        right += start is not None and abs(start - length) <= 3
    assert right / TIMES >= 0.95


@pytest.mark.parametrize(
    "values",
    [np.linspace(1, 2, 40), np.repeat([2.0, 1.0], [25, 15]), [3.0, 2.0, 1.0], np.exp2(np.arange(12))],
    ids=["rising", "late", "short", "growing"],
)
def test_a_series_that_never_settles_has_no_start(values):
    assert steady_state.steady(values) is None
