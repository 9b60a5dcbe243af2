"""Verdicts hold their level and find what is there: on noise that is known, with fixed seeds."""

import math
from dataclasses import dataclass

import numpy as np
import pytest

import simulated_noise
from lib.stats import comparisons
from lib.stats.comparisons import MEDIANS, PAIRS, Comparison, Measured
from lib.stats.intervals import Interval

SEEDS = [*range(10), *range(100, 110), *range(200, 210)]
PAIRS_EACH = 12
OUTLYING, TIMES = 0.05, 9  # the part of rows that vary more, and the factor of their variance


@dataclass
class Table:
    """Simulated comparisons: the true `logs` of their ratios, and what each of `rows` measured."""

    logs: np.ndarray
    rows: list[Measured]


def simulate(seed, rows, processes, spread, freedom, outlying=False, difference=0.0):
    """A table half of whose programs differ by the difference, up or down; the variance between processes of each row
    is scaled inverse chi-square, and within a process the pairs have noise of the six kinds in turn."""
    random = np.random.default_rng([seed, rows, processes, freedom, outlying])
    variance = spread**2 * freedom / random.chisquare(freedom, rows)
    if outlying:
        variance[random.choice(rows, max(1, round(OUTLYING * rows)), replace=False)] *= TIMES
    logs = np.where(np.arange(rows) < rows // 2, math.log1p(difference) * random.choice([-1, 1], rows), 0.0)
    centres = logs[:, None] + np.sqrt(variance)[:, None] * random.standard_normal((rows, processes))
    kinds, within = list(simulated_noise.NOISES.values()), spread / 4
    measured = []
    for row, levels in enumerate(centres):
        above, below = (kinds[row % len(kinds)](random, PAIRS_EACH * processes, within) for _ in range(2))
        medians = np.median(np.log(above / below).reshape(processes, PAIRS_EACH), axis=1)
        found = tuple((levels + medians).tolist())
        measured.append(Measured(found, PAIRS, PAIRS_EACH * processes, within / math.sqrt(PAIRS_EACH), 1.0))
    return Table(logs, measured)


def decide(table):
    prior = comparisons.prior(table.rows)
    found = [comparisons.moderated(row, prior) for row in table.rows]
    return found, np.array(comparisons.verdicts(found))


def count(tables):
    """The part of tables with a false finding, of false ones among the findings, of differences found, of true ratios
    within their intervals."""
    any_false, false, found, covered, differences, rows = 0, [], 0, 0, 0, 0
    for table in tables:
        made, verdicts = decide(table)
        said = np.select([verdicts == "faster", verdicts == "slower"], [-1, 1], 0)
        wrong = (said != 0) & (said != np.sign(table.logs))
        any_false += wrong.any()
        false.append(wrong.sum() / max(1, (said != 0).sum()))
        found += ((said != 0) & ~wrong).sum()
        differences += (table.logs != 0).sum()
        ends = zip(made, table.logs, strict=True)
        covered += sum(one.ratio.low <= math.exp(log) <= one.ratio.high for one, log in ends)
        rows += len(made)
    return any_false / len(tables), np.mean(false), found / max(1, differences), covered / rows


@pytest.mark.parametrize(("rows", "processes", "seeds"), [(24, 5, 25), (100, 3, 10)])
def test_of_equal_programs_few_tables_call_any_faster(rows, processes, seeds):
    for outlying, most in ((False, 0.08), (True, 0.15)):
        tables = [
            simulate(seed, rows, processes, 0.03, freedom, outlying) for freedom in (2, 4, 10) for seed in range(seeds)
        ]
        any_false, _, _, covered = count(tables)
        assert any_false <= most
        assert 0.93 <= covered <= 0.97


@pytest.mark.parametrize("outlying", [False, True])
@pytest.mark.parametrize("freedom", [4, 10])
def test_a_difference_of_5_percent_is_found_by_five_processes(freedom, outlying):
    tables = [simulate(seed, 24, 5, 0.015, freedom, outlying, 0.05) for seed in SEEDS]
    _, false, found, covered = count(tables)
    assert found >= 0.9
    assert false <= 0.05
    assert 0.93 <= covered <= 0.97


@pytest.mark.parametrize(("outlying", "least"), [(False, 0.95), (True, 0.9)])
def test_a_difference_of_30_percent_is_found_by_three_processes(outlying, least):
    tables = [simulate(seed, 24, 3, 0.08, 10, outlying, 0.3) for seed in SEEDS]
    _, false, found, _ = count(tables)
    assert found >= least
    assert false <= 0.05


def test_a_trend_of_the_spread_with_the_length_of_a_case_is_learnt():
    random, rows = np.random.default_rng(1), []
    for ms in np.geomspace(1, 1000, 60):
        rows.append(Measured(tuple(0.02 * ms**0.3 * random.standard_normal(5)), PAIRS, 60, 0.0, float(ms)))
    prior = comparisons.prior(rows)
    assert prior.slope == pytest.approx(0.6, abs=0.25)
    assert prior.variance(1000) > 10 * prior.variance(1)


def test_too_few_comparisons_have_no_prior_or_no_verdicts():
    assert comparisons.prior([Measured((0.1, 0.2), PAIRS, 9)] * 2) is None
    assert comparisons.prior([Measured((0.1,), PAIRS, 9)] * 30) is None
    assert comparisons.verdicts([]) == []


def prior_of_thirty():
    random = np.random.default_rng(2)
    return comparisons.prior([Measured(tuple(0.02 * random.standard_normal(3)), PAIRS, 9) for _ in range(30)])


def test_one_process_has_the_spread_of_the_others_and_at_least_its_own_noise():
    prior = prior_of_thirty()
    calm, noisy = (comparisons.moderated(Measured((0.1,), PAIRS, 20, noise), prior) for noise in (0.001, 0.2))
    assert calm.by == "interleaved pairs, one process"
    assert calm.error == pytest.approx(math.sqrt(prior.variance(1.0)))
    assert noisy.error == pytest.approx(0.2)
    assert comparisons.verdicts([calm]) == ["slower"]
    assert comparisons.verdicts([noisy]) == ["unclear"]


def test_an_outlying_row_keeps_its_own_spread():
    prior = prior_of_thirty()
    calm, wild = (prior.moderate(variance, 2, 1.0) for variance in (0.0003, 1.0))
    assert calm[1] > 4  # degrees of freedom of its own and of the others
    assert wild[0] > 0.9
    assert wild[1] == pytest.approx(2, abs=0.1)


def test_without_a_prior_the_processes_stand_alone():
    three = comparisons.moderated(Measured((math.log(0.70), math.log(0.71), math.log(0.69)), PAIRS, 30))
    assert comparisons.verdicts([three]) == ["faster"]
    assert three.freedom == 2
    assert three.ratio.low < 0.7 < three.ratio.high < 0.73
    one = comparisons.paired([1.0, 1.01, 0.99] * 7, [2.0, 2.02, 2.01] * 7)
    assert comparisons.verdicts([one]) == ["faster"]
    assert one.ratio.rounds == 1


@pytest.mark.parametrize("rounds", [1, 2])
def test_few_processes_that_timed_one_after_the_other_decide_nothing_without_a_prior(rounds):
    fast, slow = ({r: [time] * 20 for r in range(rounds)} for time in (1.0, 2.0))
    assert comparisons.verdicts([comparisons.moderated(comparisons.of_medians(fast, slow))]) == ["unclear"]


def test_a_ratio_of_medians_pairs_the_rounds_so_that_what_slows_a_whole_round_cancels():
    levels = {1: 1.0, 2: 3.0, 3: 1.5}
    above, below = ({r: [times * level] * 6 for r, level in levels.items()} for times in (2.0, 1.0))
    found = comparisons.moderated(comparisons.of_medians(above, below))
    assert (found.ratio.value, found.ratio.low, found.ratio.high) == pytest.approx((2, 2, 2))
    assert comparisons.verdicts([found]) == ["slower"]  # byte counts agree in all processes
    assert comparisons.of_medians({1: [1.0] * 6}, {2: [1.0] * 6}) is None


@pytest.mark.parametrize("kind", simulated_noise.INDEPENDENT)
def test_pairs_of_one_process_cover_their_ratio(kind):
    random, noise = np.random.default_rng(4), simulated_noise.INDEPENDENT[kind]
    covered = 0
    for _ in range(500):
        found = comparisons.paired(1.5 * noise(random, 20, 0.02), noise(random, 20, 0.02)).ratio
        covered += found.low <= 1.5 <= found.high
    assert covered >= 0.92 * 500


def test_limits_are_tested_on_the_side_that_they_have():
    near = Comparison(Interval(1.01, 1.0, 1.02, 9, 3), 0.005, 10, PAIRS)
    assert near.inside(comparisons.NEAR_ONE) < 0.01
    assert near.inside((0.0, 1.0)) > 0.9
    assert near.inside((1.0, math.inf)) == pytest.approx(near.outside((0.0, 1.0)))
    assert near.outside((1.0, 1.0)) == pytest.approx(2 * near.outside((0.0, 1.0)))
    assert comparisons.exact(0.5).inside((0.0, 1.0)) == 0
    assert comparisons.exact(2.0).outside((0.0, 1.0)) == 0
    assert comparisons.exact(1.0).outside((0.0, 1.0)) == 1
    assert comparisons.estimated(Interval(1.0, math.nan, math.nan, 3, 1)).inside((0.0, 2.0)) == 1


def test_a_quotient_of_two_ratios_has_the_error_of_both():
    one = Comparison(Interval(2.0, 1.9, 2.1, 9, 3), 0.03, 5, PAIRS)
    other = Comparison(Interval(4.0, 3.9, 4.1, 9, 3), 0.04, 8, MEDIANS)
    found = comparisons.quotient(one, other)
    assert found.ratio.value == 0.5
    assert (found.error, found.freedom) == (pytest.approx(0.05), 5)
    assert found.ratio.low < 0.5 < found.ratio.high
