"""Verdicts follow from intervals and tests: on noise that is known, with fixed seeds."""

import math

import numpy as np
import pytest

from lib.stats import comparisons
from lib.stats.comparisons import Comparison
from lib.stats.intervals import Interval


def test_a_ratio_pairs_the_rounds_so_that_what_slows_a_whole_round_cancels():
    above = {r: [2.0 * level] * 6 for r, level in ((1, 1.0), (2, 3.0), (3, 1.5))}
    below = {r: [level] * 6 for r, level in ((1, 1.0), (2, 3.0), (3, 1.5))}
    found = comparisons.unpaired(above, below).ratio
    assert (found.value, found.low, found.high) == pytest.approx((2, 2, 2))
    assert found.rounds == 3


def test_a_ratio_within_a_process_covers_at_least_95_percent():
    random = np.random.default_rng(3)
    covered = 0
    for _ in range(1000):
        samples = [{1: random.lognormal(level, 0.1, 10).tolist()} for level in (0.5, 0)]
        found = comparisons.unpaired(*samples).ratio
        covered += found.low <= math.exp(0.5) <= found.high
    assert covered >= 950


def test_nothing_is_compared_without_a_common_round():
    assert comparisons.unpaired({1: [1.0] * 6}, {2: [1.0] * 6}) is None


@pytest.mark.parametrize(
    ("ratio", "p", "p_same", "said"),
    [
        (0.7, 0.01, 1.0, "faster"),
        (1.3, 0.01, 1.0, "slower"),
        (0.99, 0.01, 0.01, "faster"),  # a small difference is one all the same
        (0.99, 0.5, 0.01, "same"),
        (0.9, 0.5, 0.5, "inconclusive"),
    ],
)
def test_a_verdict_follows_from_both_tests(ratio, p, p_same, said):
    assert (
        Comparison(Interval(ratio, ratio, ratio, 9, 1), p, p_same, 0.02, 0.05, 8, comparisons.PAIRS).verdict() == said
    )


@pytest.mark.parametrize("rounds", [1, 2])
def test_what_was_timed_one_after_the_other_in_one_process_is_not_called_faster(rounds):
    fast, slow = ({r: [time] * 20 for r in range(rounds)} for time in (1.0, 2.0))
    assert comparisons.unpaired(fast, slow).verdict() == "inconclusive"


def test_three_rounds_that_agree_show_a_difference_and_three_that_do_not_show_none():
    assert comparisons.across([0.70, 0.71, 0.69], 30, comparisons.PAIRS).verdict() == "faster"
    assert comparisons.across([0.7, 1.1, 1.2], 30, comparisons.PAIRS).verdict() == "inconclusive"
    assert comparisons.across([1.001, 0.999, 1.0], 30, comparisons.PAIRS).verdict() == "same"


def test_equal_rounds_are_seldom_called_different():
    random = np.random.default_rng(4)
    calls = [comparisons.across(random.lognormal(0, 0.05, 3), 30, comparisons.PAIRS).verdict() for _ in range(1000)]
    assert sum(call in ("faster", "slower") for call in calls) <= 70


@pytest.mark.parametrize("n", [10, 40])
def test_of_pairs_the_smallest_visible_difference_is_seen_nine_times_of_ten(n):
    random = np.random.default_rng(5)
    visible = np.mean([comparisons.paired(*random.lognormal(0, 0.014, (2, n))).visible() for _ in range(500)])
    calls = [
        comparisons.paired((1 + visible) * random.lognormal(0, 0.014, n), random.lognormal(0, 0.014, n)).verdict()
        for _ in range(500)
    ]
    assert 0.80 <= calls.count("slower") / 500 <= 0.95  # of few pairs somewhat less, since ranks are coarse


@pytest.mark.parametrize(("rounds", "among"), [(3, 1), (4, 1), (4, 5)])
def test_of_rounds_the_smallest_visible_difference_is_seen_nine_times_of_ten(rounds, among):
    random = np.random.default_rng(6)
    distance = math.expm1(
        comparisons._distance(rounds - 1, comparisons.ROUNDS_LEVEL / among) * 0.03 / math.sqrt(rounds)
    )
    calls = [
        comparisons.across((1 + distance) * random.lognormal(0, 0.03, rounds), 30, comparisons.PAIRS).verdict(among)
        for _ in range(2000)
    ]
    assert 0.87 <= calls.count("slower") / 2000 <= 0.93


def test_what_could_not_have_been_seen_has_no_smallest_visible_difference():
    six = comparisons.paired([2.0, 2.1, 1.9, 2.0, 2.05, 1.95], [1.0] * 6)
    assert math.isnan(six.visible())
    assert math.isnan(comparisons.unpaired({1: [1.0] * 9}, {1: [2.0] * 9}).visible())
    seven = comparisons.paired([2.0, 2.1, 1.9, 2.0, 2.05, 1.95, 2.02], [1.0] * 7)
    assert seven.visible() > 0
    assert math.isnan(seven.visible(among=10))


def test_pairs_that_all_agree_exactly_show_no_difference():
    found = comparisons.paired([5.0] * 20, [5.0] * 20)
    assert found.ratio.value == 1
    assert found.verdict() == "same"


def test_fewer_than_seven_pairs_show_nothing():
    assert comparisons.paired([2.0, 2.1, 1.9, 2.0, 2.05, 1.95], [1.0] * 6).verdict() == "inconclusive"
    assert comparisons.paired([2.0, 2.1, 1.9, 2.0, 2.05, 1.95, 2.02], [1.0] * 7).verdict() == "slower"


def test_the_interval_of_a_paired_ratio_covers_95_percent():
    random = np.random.default_rng(6)
    covered = 0
    for _ in range(1000):
        found = comparisons.paired(1.5 * random.lognormal(0, 0.02, 30), random.lognormal(0, 0.02, 30))
        covered += found.ratio.low <= 1.5 <= found.ratio.high
    assert 930 <= covered <= 970


def made(p):
    return Comparison(Interval(0.5, 0.4, 0.6, 20, 3), p, 1.0, 0.05, 0.1, 2, comparisons.PAIRS)


def test_by_holm_the_clearest_must_hold_against_all_and_the_next_against_the_rest():
    # of three: 0.01 against 0.05 / 3, then 0.02 against 0.05 / 2, then 0.03 against 0.05
    assert comparisons.verdicts([made(0.01), made(0.03), made(0.02)]) == ["faster", "faster", "faster"]
    # 0.02 fails against 0.05 / 3, and so all that are less clear fail too, though 0.04 alone is below 0.05
    assert comparisons.verdicts([made(0.04), made(0.02), made(0.03)]) == ["inconclusive"] * 3
    assert comparisons.verdicts([]) == []


def test_among_many_equal_pairs_a_false_difference_is_as_rare_as_for_one():
    random = np.random.default_rng(7)
    families = 0
    for _ in range(300):
        table = [comparisons.paired(*random.lognormal(0, 0.02, (2, 20))) for _ in range(10)]
        families += any(call in ("faster", "slower") for call in comparisons.verdicts(table))
    assert families <= 12  # 2% of 300, and chance
