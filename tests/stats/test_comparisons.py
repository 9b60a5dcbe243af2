"""Verdicts hold their level and find what is there: on noise that is known, with fixed seeds."""

import itertools
import math

import numpy as np
import pytest
from scipy import stats

import simulated_noise
from lib.stats import comparisons, moderation
from lib.stats.comparisons import Comparison, Measured
from lib.stats.intervals import Interval

SEEDS = [*range(10), *range(100, 110), *range(200, 210)]
PAIRS_EACH = 12
OUTLYING = 0.05  # the part of rows that vary more
TIMES = 9  # the factor of their variance


def simulate(seed, rows, processes, spread, freedom, outlying=False, difference=0.0):
    """Return the true logarithms of ratios, and what was measured of each.

    Half of the programs differ by the difference, up or down. The variance between processes of a row is scaled inverse
    chi-square; within a process the pairs have noise of the six kinds in turn."""
    random = np.random.default_rng([seed, rows, processes, freedom, outlying])
    variance = spread**2 * freedom / random.chisquare(freedom, rows)
    if outlying:
        variance[random.choice(rows, max(1, round(OUTLYING * rows)), replace=False)] *= TIMES
    logs = np.where(np.arange(rows) < rows // 2, math.log1p(difference) * random.choice([-1, 1], rows), 0.0)
    centres = logs[:, None] + np.sqrt(variance)[:, None] * random.standard_normal((rows, processes))
    within = spread / 4
    measured = []
    for levels, noise in zip(centres, itertools.cycle(simulated_noise.NOISES.values()), strict=False):
        baseline = noise(random, PAIRS_EACH * processes, within)
        variant = noise(random, PAIRS_EACH * processes, within)
        medians = np.median(np.log(baseline / variant).reshape(processes, PAIRS_EACH), axis=1)
        processes_logs = tuple((levels + medians).tolist())
        measured.append(Measured(processes_logs, PAIRS_EACH * processes, within / math.sqrt(PAIRS_EACH)))
    return logs, measured


def judge(tables):
    """Return of all rows their true sign and that of the verdict, by table, and if the interval holds the ratio."""
    signs = []
    called = []
    covered = []
    for logs, measured in tables:
        comparisons_made = comparisons.judged(measured)
        signs.append(np.sign(logs))
        called.append([{"faster": 1, "slower": -1}.get(made.verdict, 0) for made in comparisons_made])
        ratios = [made.ratio for made in comparisons_made]
        covered += [ratio.low <= math.exp(log) <= ratio.high for ratio, log in zip(ratios, logs, strict=True)]
    return np.array(signs), np.array(called), np.mean(covered)


@pytest.mark.parametrize(("rows", "processes", "seeds"), [(24, 5, 25), (100, 3, 10)])
@pytest.mark.parametrize(("outlying", "most"), [(False, 0.08), (True, 0.15)])
def test_of_equal_programs_few_tables_call_any_faster(rows, processes, seeds, outlying, most):
    tables = [
        simulate(seed, rows, processes, 0.03, freedom, outlying) for freedom in (2, 4, 10) for seed in range(seeds)
    ]
    _, called, covered = judge(tables)
    assert np.mean(called.any(axis=1)) <= most
    assert 0.93 <= covered <= 0.97


@pytest.mark.parametrize(
    ("difference", "processes", "spread", "outlying", "least"),
    [(0.05, 5, 0.015, False, 0.9), (0.05, 5, 0.015, True, 0.9), (0.3, 3, 0.08, False, 0.95), (0.3, 3, 0.08, True, 0.9)],
)
def test_differences_are_found_and_few_findings_are_false(difference, processes, spread, outlying, least):
    tables = [simulate(seed, 24, processes, spread, 10, outlying, difference) for seed in SEEDS]
    signs, called, _ = judge(tables)
    assert np.mean(called[signs != 0] == signs[signs != 0]) >= least
    false = (called != 0) & (called != signs)
    assert np.mean(false.sum(axis=1) / np.maximum(1, (called != 0).sum(axis=1))) <= 0.05


def test_equal_programs_are_called_the_same_and_few_that_differ_by_3_percent_are():
    random = np.random.default_rng(7)
    same = [Measured(tuple(0.004 * random.standard_normal(3)), 60) for _ in range(40)]
    differing = [Measured(tuple(math.log1p(0.03) + 0.004 * random.standard_normal(3)), 60) for _ in range(40)]
    verdicts = [comparison.verdict for comparison in comparisons.judged(same + differing)]
    assert verdicts[:40].count("same") >= 38
    assert verdicts[40:].count("same") <= 3


def test_two_variances_or_none_that_is_positive_make_no_prior_and_no_rows_no_verdicts():
    assert moderation.moderate(np.array([0.1, 0.2]), np.array([2, 2])) is None
    assert moderation.moderate(np.zeros(30), np.full(30, 2)) is None
    assert comparisons.judged([]) == []


def test_one_process_has_the_spread_of_the_others_and_at_least_its_own_noise():
    random = np.random.default_rng(2)
    others = [Measured(tuple(0.02 * random.standard_normal(3)), 9) for _ in range(30)]
    calm = Measured((0.2,), 20, 0.001)
    noisy = Measured((0.2,), 20, 0.4)
    made = comparisons.judged([*others, calm, noisy])
    assert [comparison.verdict for comparison in made[-2:]] == ["faster", "unclear"]
    assert [comparison.tier for comparison in made[-2:]] == ["proven", "probable"]
    assert made[-2].ratio.reach < 0.1 < 0.5 < made[-1].ratio.reach


def test_alone_three_processes_have_the_t_interval_of_scipy():
    logs = np.log([1.40, 1.42, 1.45])
    (made,) = comparisons.judged([Measured(tuple(logs), 30)])
    low, high = stats.t.interval(0.95, 2, logs.mean(), stats.sem(logs))
    assert (made.ratio.low, made.ratio.high) == pytest.approx((math.exp(low), math.exp(high)))
    assert (made.verdict, made.ratio.rounds) == ("faster", 3)


def test_the_verdicts_of_a_table_are_those_of_benjamini_and_hochberg():
    rows = [Measured((log, 1.01 * log + 0.02, log - 0.02), 30) for log in (0.03, 0.05, 0.08, 0.12, 0.2, 0.4, -0.3)]
    made = comparisons.judged(rows)
    logs = np.array([row.logs for row in rows])
    variances, freedoms = moderation.moderate(logs.var(axis=1, ddof=1), np.full(len(rows), 2))
    p = 2 * stats.t.sf(abs(logs.mean(axis=1)) / np.sqrt(variances / 3), freedoms)
    expected = stats.false_discovery_control(p) <= 0.025
    assert [comparison.verdict in ("faster", "slower") for comparison in made] == expected.tolist()
    assert made[-1].verdict == "slower"


@pytest.mark.parametrize("kind", simulated_noise.INDEPENDENT)
def test_pairs_of_one_process_cover_their_ratio(kind):
    random = np.random.default_rng(4)
    noise = simulated_noise.INDEPENDENT[kind]
    covered = 0
    for _ in range(500):
        row = comparisons.of_pairs(noise(random, 20, 0.02), 1.5 * noise(random, 20, 0.02))
        ratio = comparisons.judged([row])[0].ratio
        covered += ratio.low <= 1.5 <= ratio.high
    assert covered >= 0.92 * 500


def test_the_estimate_of_pairs_is_the_pseudomedian_of_all_their_means():
    random = np.random.default_rng(5)
    variant, baseline = random.lognormal(0, 0.1, 9), random.lognormal(0.3, 0.1, 9)
    logs = np.log(baseline / variant)
    means = [(logs[i] + logs[j]) / 2 for i in range(9) for j in range(i, 9)]
    assert comparisons.of_pairs(variant, baseline).logs == pytest.approx((np.median(means),))


@pytest.mark.parametrize(
    ("ends", "verdict", "rounds", "text", "tier"),
    [
        ((3.3, 3.1, 3.5), "faster", 3, "3.3× (3.1 to 3.5) faster", "proven"),
        ((1 / 1.2, 1 / 1.3, 1 / 1.1), "slower", 3, "1.2× (1.1 to 1.3) slower", "none"),
        ((1.001, 0.987, 1.014), "same", 3, "1.00× (0.99 to 1.01), the same", "none"),
        ((1.06, 0.96, 1.17), "unclear", 3, "1.06× (0.96 to 1.17), unclear", "probable"),
        ((1.04, 0.82, 1.43), "unclear", 3, "1.04× (0.82 to 1.43), unclear", "probable"),
        ((1.02, 0.96, 1.08), "unclear", 3, "1.02× (0.96 to 1.08), unclear", "none"),
        ((3.3, 3.1, 3.5), "faster", 1, "3.3× (3.1 to 3.5) faster in this process", "proven"),
        ((1.31, math.nan, math.nan), "unclear", 1, "1.31×, unclear in this process", "probable"),
    ],
)
def test_a_comparison_prints_itself_with_the_digits_that_tell_its_ends_from_one(ends, verdict, rounds, text, tier):
    comparison = Comparison(Interval(*ends, rounds), verdict)
    assert f"{comparison}" == text
    assert comparison.tier == tier


@pytest.mark.parametrize(
    ("verdict", "rounds", "sentence"),
    [
        ("faster", 3, "1.43× (1.38 to 1.48) faster than naive"),
        ("faster", 1, "1.43× (1.38 to 1.48) faster than naive in this process"),
        ("same", 3, "as fast as naive: 1.43× (1.38 to 1.48)"),
        ("unclear", 1, "neither clearly faster nor slower than naive in this process: 1.43× (1.38 to 1.48)"),
    ],
)
def test_a_comparison_says_itself_in_a_sentence(verdict, rounds, sentence):
    ratio = Interval(1.43, 1.38, 1.48, rounds)
    assert Comparison(ratio, verdict).than("naive") == sentence
