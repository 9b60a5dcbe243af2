"""Intervals cover what they say, and verdicts follow from them: on noise that is known, with fixed seeds."""

import math

import numpy as np
import pytest

from lib.stats import intervals, simulated_noise
from lib.stats.intervals import Comparison, Interval


@pytest.mark.parametrize(("n", "low", "high"), [(6, 0, 5), (8, 0, 7), (9, 1, 7), (10, 1, 8), (20, 5, 14)])
def test_the_interval_lies_within_that_of_the_binomial_table_and_beyond_the_next_narrower(n, low, high):
    # Conover 1999, table A3: the narrowest symmetric pair of order statistics with at least 95%
    found = intervals.order_statistics(range(n))
    assert low <= found[0] < low + 1
    assert high - 1 < found[1] <= high


def test_the_interpolation_is_that_of_hettmansperger_and_sheather():
    # n = 10: ranks 2 and 9 cover 97.85%, ranks 3 and 8 cover 89.06%; I = 0.3244, lambda = 8 I / (2 + 6 I) = 0.6577
    low, high = intervals.order_statistics(range(10))
    assert (low, high) == pytest.approx((1.6577, 7.3423), abs=1e-3)


def test_too_few_samples_have_no_interval():
    assert all(math.isnan(end) for end in intervals.order_statistics(range(5)))
    assert not intervals.median([[1.0, 2.0, 3.0]]).known


@pytest.mark.parametrize("n", [10, 20, 40])
@pytest.mark.parametrize("spread", [0.01, 0.03])
@pytest.mark.parametrize("noise", simulated_noise.INDEPENDENT)
def test_the_interval_of_the_median_covers_95_percent_whatever_the_noise(noise, spread, n):
    random = np.random.default_rng(1)
    covered = 0
    for _ in range(2000):
        found = intervals.median([simulated_noise.NOISES[noise](random, n, spread).tolist()])
        covered += found.low <= 1 <= found.high
    assert 0.93 <= covered / 2000 <= 0.97


@pytest.mark.parametrize("processes", [3, 5])
@pytest.mark.parametrize("noise", [name for name in simulated_noise.NOISES if name != "drifting"])
def test_the_interval_across_processes_covers_95_percent_where_processes_differ(noise, processes):
    random = np.random.default_rng(2)
    covered = 0
    for _ in range(2000):
        levels = np.exp(0.03 * random.standard_normal(processes))
        found = intervals.median([level * simulated_noise.NOISES[noise](random, 20, 0.02) for level in levels])
        covered += found.low <= 1 <= found.high
    assert 0.93 <= covered / 2000 <= 0.97


def test_one_interval_speaks_for_one_process_and_three_for_processes():
    samples = [1.0, 1.1, 1.2, 1.3, 1.4, 1.5]
    assert intervals.median([samples, samples]).scope == "within one process"
    assert intervals.median([samples] * 3).scope == "across 3 processes"


def test_the_median_is_not_moved_by_one_outlier():
    assert intervals.median([[1, 1, 1, 1, 1, 1, 1000]]).value == 1


def test_a_ratio_pairs_the_rounds_so_that_what_slows_a_whole_round_cancels():
    above = {r: [2.0 * level] * 6 for r, level in ((1, 1.0), (2, 3.0), (3, 1.5))}
    below = {r: [level] * 6 for r, level in ((1, 1.0), (2, 3.0), (3, 1.5))}
    found = intervals.unpaired(above, below).ratio
    assert (found.value, found.low, found.high) == pytest.approx((2, 2, 2))
    assert found.rounds == 3


def test_a_ratio_within_a_process_covers_at_least_95_percent():
    random = np.random.default_rng(3)
    covered = 0
    for _ in range(1000):
        samples = [{1: random.lognormal(level, 0.1, 10).tolist()} for level in (0.5, 0)]
        found = intervals.unpaired(*samples).ratio
        covered += found.low <= math.exp(0.5) <= found.high
    assert covered >= 950


def test_nothing_is_compared_without_a_common_round():
    assert intervals.unpaired({1: [1.0] * 6}, {2: [1.0] * 6}) is None


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
    assert Comparison(Interval(ratio, ratio, ratio, 9, 1), p, p_same, 0.02, 0.05, 8, intervals.PAIRS).verdict() == said


@pytest.mark.parametrize("rounds", [1, 2])
def test_what_was_timed_one_after_the_other_in_one_process_is_not_called_faster(rounds):
    fast, slow = ({r: [time] * 20 for r in range(rounds)} for time in (1.0, 2.0))
    assert intervals.unpaired(fast, slow).verdict() == "inconclusive"


def test_three_rounds_that_agree_show_a_difference_and_three_that_do_not_show_none():
    assert intervals.across([0.70, 0.71, 0.69], 30, intervals.PAIRS).verdict() == "faster"
    assert intervals.across([0.7, 1.1, 1.2], 30, intervals.PAIRS).verdict() == "inconclusive"
    assert intervals.across([1.001, 0.999, 1.0], 30, intervals.PAIRS).verdict() == "same"


def test_equal_rounds_are_seldom_called_different():
    random = np.random.default_rng(4)
    calls = [intervals.across(random.lognormal(0, 0.05, 3), 30, intervals.PAIRS).verdict() for _ in range(1000)]
    assert sum(call in ("faster", "slower") for call in calls) <= 70


@pytest.mark.parametrize("n", [10, 40])
def test_of_pairs_the_smallest_visible_difference_is_seen_nine_times_of_ten(n):
    random = np.random.default_rng(5)
    visible = np.mean([intervals.paired(*random.lognormal(0, 0.014, (2, n))).visible() for _ in range(500)])
    calls = [
        intervals.paired((1 + visible) * random.lognormal(0, 0.014, n), random.lognormal(0, 0.014, n)).verdict()
        for _ in range(500)
    ]
    assert 0.80 <= calls.count("slower") / 500 <= 0.95  # of few pairs somewhat less, since ranks are coarse


@pytest.mark.parametrize(("rounds", "among"), [(3, 1), (4, 1), (4, 5)])
def test_of_rounds_the_smallest_visible_difference_is_seen_nine_times_of_ten(rounds, among):
    random = np.random.default_rng(6)
    distance = math.expm1(intervals._distance(rounds - 1, intervals.ROUNDS_LEVEL / among) * 0.03 / math.sqrt(rounds))
    calls = [
        intervals.across((1 + distance) * random.lognormal(0, 0.03, rounds), 30, intervals.PAIRS).verdict(among)
        for _ in range(2000)
    ]
    assert 0.87 <= calls.count("slower") / 2000 <= 0.93


def test_what_could_not_have_been_seen_has_no_smallest_visible_difference():
    six = intervals.paired([2.0, 2.1, 1.9, 2.0, 2.05, 1.95], [1.0] * 6)
    assert math.isnan(six.visible())
    assert math.isnan(intervals.unpaired({1: [1.0] * 9}, {1: [2.0] * 9}).visible())
    seven = intervals.paired([2.0, 2.1, 1.9, 2.0, 2.05, 1.95, 2.02], [1.0] * 7)
    assert seven.visible() > 0
    assert math.isnan(seven.visible(among=10))


def test_pairs_that_all_agree_exactly_show_no_difference():
    found = intervals.paired([5.0] * 20, [5.0] * 20)
    assert found.ratio.value == 1
    assert found.verdict() == "same"


def test_fewer_than_seven_pairs_show_nothing():
    assert intervals.paired([2.0, 2.1, 1.9, 2.0, 2.05, 1.95], [1.0] * 6).verdict() == "inconclusive"
    assert intervals.paired([2.0, 2.1, 1.9, 2.0, 2.05, 1.95, 2.02], [1.0] * 7).verdict() == "slower"


def test_the_interval_of_a_paired_ratio_covers_95_percent():
    random = np.random.default_rng(6)
    covered = 0
    for _ in range(1000):
        found = intervals.paired(1.5 * random.lognormal(0, 0.02, 30), random.lognormal(0, 0.02, 30))
        covered += found.ratio.low <= 1.5 <= found.ratio.high
    assert 930 <= covered <= 970


def made(p):
    return Comparison(Interval(0.5, 0.4, 0.6, 20, 3), p, 1.0, 0.05, 0.1, 2, intervals.PAIRS)


def test_by_holm_the_clearest_must_hold_against_all_and_the_next_against_the_rest():
    # of three: 0.01 against 0.05 / 3, then 0.02 against 0.05 / 2, then 0.03 against 0.05
    assert intervals.verdicts([made(0.01), made(0.03), made(0.02)]) == ["faster", "faster", "faster"]
    # 0.02 fails against 0.05 / 3, and so all that are less clear fail too, though 0.04 alone is below 0.05
    assert intervals.verdicts([made(0.04), made(0.02), made(0.03)]) == ["inconclusive"] * 3
    assert intervals.verdicts([]) == []


def test_among_many_equal_pairs_a_false_difference_is_as_rare_as_for_one():
    random = np.random.default_rng(7)
    families = 0
    for _ in range(300):
        table = [intervals.paired(*random.lognormal(0, 0.02, (2, 20))) for _ in range(10)]
        families += any(call in ("faster", "slower") for call in intervals.verdicts(table))
    assert families <= 12  # 2% of 300, and chance


def test_the_figure_of_the_method_shows_what_it_says():
    table = simulated_noise.on_a_drifting_machine()
    ratios = table.groupby("arrangement", sort=False)["ratio"].first()
    apart, turns = ratios["one after the other"], ratios["in turns"]
    assert apart.low > 1.01  # two equal programs, told apart by the drift alone
    assert turns.low < 1 < turns.high
    assert table.groupby(["arrangement", "program"]).size().tolist() == [40] * 4
