"""The ratio of interleaved pairs is the pseudomedian, and its error covers the truth."""

import numpy as np
import pytest

import simulated_noise
from lib.stats import estimates, intervals, moderation


def test_the_estimate_of_pairs_is_the_pseudomedian_of_all_their_means():
    random = np.random.default_rng(5)
    variant, baseline = random.lognormal(0, 0.1, 9), random.lognormal(0.3, 0.1, 9)
    logs = np.log(baseline / variant)
    means = [(logs[i] + logs[j]) / 2 for i in range(9) for j in range(i, 9)]
    assert estimates.of_pairs(variant, baseline)[0] == pytest.approx(np.median(means))


@pytest.mark.parametrize("kind", simulated_noise.INDEPENDENT)
def test_pairs_of_one_process_cover_their_ratio(kind):
    random = np.random.default_rng(4)
    noise = simulated_noise.INDEPENDENT[kind]
    covered = 0
    for _ in range(500):
        log, error = estimates.of_pairs(noise(random, 20, 0.02), 1.5 * noise(random, 20, 0.02))
        covered += abs(log - np.log(1.5)) <= error * intervals.t_reach(19)
    assert covered >= 0.92 * 500


def test_two_variances_or_none_that_is_positive_make_no_prior():
    assert moderation.moderate(np.array([0.1, 0.2]), np.array([2, 2])) is None
    assert moderation.moderate(np.zeros(30), np.full(30, 2)) is None
