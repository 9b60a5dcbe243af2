"""A series that stays is called steady, and one that drifts, jumps, throttles or warms up is not: on known noise."""

import numpy as np
import pytest

import simulated_noise
from lib.stats import steady_state

N, TIMES, SPREAD = 40, 200, 0.03


def found(noise, bend=lambda values: values):
    """The part of series of 40 samples, bent by `bend`, in which a change is found."""
    random = np.random.default_rng(1)
    draws = (simulated_noise.NOISES[noise](random, N, SPREAD) for _ in range(TIMES))
    return np.mean([steady_state.change(bend(values)) is not None for values in draws])


def drifting(values):
    return values * (1 + 0.06 * np.arange(N) / (N - 1))


def throttled(values):
    return np.concatenate([values[:-8], 1.10 * values[-8:]])


@pytest.mark.parametrize("noise", [*simulated_noise.INDEPENDENT, "autocorrelated"])
def test_a_throttle_of_10_percent_is_found_and_false_alarms_are_at_most_2_percent(noise):
    assert found(noise) <= 0.02
    assert found(noise, throttled) >= 0.95


@pytest.mark.parametrize("noise", simulated_noise.INDEPENDENT)
def test_a_drift_of_6_percent_is_found(noise):
    assert found(noise, drifting) >= 0.95


def test_a_change_says_what_it_is_how_large_and_where_it_begins():
    steps = np.concatenate([np.full(20, 1.0), np.full(20, 1.2)]) + 0.001 * np.random.default_rng(2).standard_normal(N)
    change = steady_state.jump(steps)
    assert (change.kind, change.at) == ("jump", 20)
    assert change.size == pytest.approx(0.2 / 1.1, rel=0.02)
    assert str(change) == "a jump of +18% from sample 21 on"
    drift = steady_state.drift(drifting(simulated_noise.normal(np.random.default_rng(3), N, 0.001)))
    assert str(drift) == "a drift of +6%"


def test_a_constant_series_is_steady_from_the_first_sample_and_fewer_than_ten_show_no_change():
    assert steady_state.change([1.0] * 5 + [2.0] * 4) is None
    assert steady_state.change([1.0] * 20) is None
    assert steady_state.steady([1.0] * 20) == 0


@pytest.mark.parametrize("noise", simulated_noise.INDEPENDENT)
def test_the_end_of_the_warm_up_is_found_within_3_iterations(noise):
    random = np.random.default_rng(4)
    right = 0
    for _ in range(TIMES):
        values, length = simulated_noise.NOISES[noise](random, N, SPREAD), random.integers(0, 9)
        values[:length] *= 1 + 0.8 ** np.arange(length)
        start = steady_state.steady(values)
        right += start is not None and abs(start - length) <= 3
    assert right / TIMES >= 0.95


@pytest.mark.parametrize(
    "values",
    [
        np.linspace(1, 2, 40),
        np.concatenate([np.full(25, 2.0), np.full(15, 1.0)]),
        [3.0, 2.0, 1.0],
        np.exp2(np.arange(12)),
    ],
    ids=["rising", "late", "short", "growing"],
)
def test_never_is_a_legal_answer(values):
    assert steady_state.steady(values) is None


def test_a_quiet_machine_is_told_from_a_slow_and_from_an_unsteady_one():
    calm = list(1 + 0.01 * np.random.default_rng(5).standard_normal(20))
    assert steady_state.quiet(calm, best=1.0)
    assert not steady_state.quiet([1.2 * time for time in calm], best=1.0)
    assert not steady_state.quiet([1.0, 1.3] * 10, best=1.0)
