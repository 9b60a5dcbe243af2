"""Two programs that run in turns on a simulated clock: what differs is found, and what does not is not."""

import itertools

import numpy as np
import pytest
from scipy.stats import mannwhitneyu

from lib import timing
from lib.stats import comparisons, intervals, simulated_noise
from lib.timing import compare
from simulated import Simulated

pytestmark = pytest.mark.usefixtures("little_garbage")


def judged(pairs):
    return comparisons.paired(pairs.above, pairs.below)


def calls(noise, spread, effect):
    """The verdicts of 200 comparisons of two programs of which the first takes `effect` longer."""
    found = []
    for seed in range(200):
        simulated = Simulated()
        factors = iter(simulated_noise.NOISES[noise](np.random.default_rng(seed), 2500, spread))
        first, second = (simulated.program(factors, cost) for cost in (1_000_000 * (1 + effect), 1_000_000))
        found.append(judged(compare(first, second, simulated.clock(), seed=seed)).verdict())
    return found


@pytest.mark.parametrize("spread", [0.01, 0.03])
@pytest.mark.parametrize("noise", simulated_noise.NOISES)
def test_a_program_against_itself_is_seldom_called_different(noise, spread):
    found = calls(noise, spread, 0)
    assert found.count("faster") + found.count("slower") <= 10
    assert found.count("same") >= 180


@pytest.mark.parametrize("noise", simulated_noise.NOISES)
def test_a_planted_difference_of_5_percent_is_found(noise):
    assert calls(noise, 0.03, 0.05).count("slower") >= 190


@pytest.mark.parametrize("noise", simulated_noise.INDEPENDENT)
def test_a_planted_difference_of_2_percent_is_found_within_the_planned_pairs(noise):
    assert calls(noise, 0.03, 0.02).count("slower") >= 180


def test_one_after_the_other_drift_is_called_a_difference():
    # the control: without turns, the same programs on the same drifting machine are told apart, wrongly
    wrong = 0
    for seed in range(200):
        factors = simulated_noise.drifting(np.random.default_rng(seed), 80, 0.01)
        wrong += mannwhitneyu(factors[:40], factors[40:]).pvalue <= intervals.PAIRED_LEVEL
    assert wrong > 40


def test_pairs_run_in_turns_in_an_order_that_chance_gives(simulated):
    order = []
    first, second = (lambda mark, name=name: (order.append(name), simulated.work(1), mark("run")) for name in "ab")
    pairs = compare(first, second, simulated.clock(), most=40, effect=1e-9)
    assert all(set(turn) == {"a", "b"} for turn in zip(order[::2], order[1::2], strict=True))
    assert {turn[0] for turn in zip(order[::2], order[1::2], strict=True)} == {"a", "b"}
    assert len(pairs.above) == len(pairs.below) == len(order) // 2 - timing.UNCOUNTED


@pytest.mark.parametrize("most", [6, 20])
def test_what_is_second_in_a_pair_being_slower_makes_no_difference(most):
    different = 0
    for seed in range(200):
        simulated, random, turn = Simulated(), np.random.default_rng(seed), itertools.count()

        def iteration(mark, simulated=simulated, random=random, turn=turn):
            simulated.work(int(1e6 * (1 + 0.02 * (next(turn) % 2)) * random.normal(1, 0.005)))
            mark("run")

        ratios = [
            judged(compare(iteration, iteration, simulated.clock(), most, seed=4 * seed + process)).ratio.value
            for process in range(4)
        ]
        different += comparisons.across(ratios, 4 * most, comparisons.PAIRS).verdict() in ("faster", "slower")
    assert different <= 20


def test_pairs_stop_when_their_time_is_up_but_not_before_the_fifth(simulated):
    programs = (simulated.program(itertools.repeat(1)) for _ in range(2))
    assert len(compare(*programs, simulated.clock(), seconds=0).above) == 5
