"""Compares two times by their ratio: an interval, tests against one and against a margin, and a verdict.

>>> across([0.70, 0.71, 0.69], 30, PAIRS).verdict()
'faster'
"""

import functools
import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from scipy import optimize, stats

from lib.stats.intervals import (
    ENOUGH_ROUNDS,
    PAIRED_LEVEL,
    POWER,
    WILCOXON_EFFICIENCY,
    Interval,
    log_t,
    median,
    spread,
)

MARGIN = 0.03  # two times are called the same when their ratio is shown to lie within 3% of one
ROUNDS_LEVEL = 0.05  # at which several processes show a difference
PAIRS, MEDIANS = "pairs in turns", "medians of rounds"  # what a comparison can rest on


@dataclass(frozen=True)
class Comparison:
    """A ratio of two times and how it compares with one: `p` of a ratio of one, `p_same` of one beyond the margin,
    the `level` that `p` must not exceed to show a difference, the standard `error` of the ratio's logarithm with its
    degrees of `freedom` (NaN and 0 where the data is too little), and what it rests on."""

    ratio: Interval
    p: float
    p_same: float
    level: float
    error: float
    freedom: int
    by: str

    def verdict(self, among: int = 1) -> str:
        """`faster` or `slower` where a difference is shown, else `same` where a difference beyond the margin is
        excluded, else `inconclusive`. `among` multiplies `p`, as one of several comparisons (see `verdicts`)."""
        if among * self.p <= self.level:
            return "faster" if self.ratio.value < 1 else "slower"
        return "same" if self.p_same <= 0.05 else "inconclusive"

    def visible(self, among: int = 1) -> float:
        """The smallest relative difference that would have been seen nine times of ten, as the clearest of so many
        comparisons; NaN where none would have been, as with fewer than 7 pairs."""
        level = self.level / among
        if not self.freedom or (self.by == PAIRS and self.ratio.rounds == 1 and 2 * 0.5**self.ratio.n > level):
            return math.nan
        return math.expm1(_distance(self.freedom, level) * self.error)


@functools.cache
def _distance(freedom: int, level: float) -> float:
    """How many standard errors from none a difference lies that a t test at that level sees with POWER."""
    critical = stats.t.ppf(1 - level / 2, freedom)
    return optimize.brentq(lambda distance: stats.nct.sf(critical, freedom, distance) - POWER, 0, 4 * critical + 10)


def paired(above: Sequence[float], below: Sequence[float], margin: float = MARGIN) -> Comparison:
    """Two times compared by pairs of one process that ran in turns: the Hodges-Lehmann estimate of their ratio with
    its interval, Wilcoxon's signed rank test over the logarithms, and two one-sided ones against the margin."""
    logs = np.log(above) - np.log(below)
    n, limit = len(logs), math.log1p(margin)
    means = np.sort(((logs[:, None] + logs) / 2)[np.triu_indices(n)])
    rank = round(len(means) / 2 - stats.norm.ppf(0.975) * math.sqrt(n * (n + 1) * (2 * n + 1) / 24))
    ends = (means[rank - 1], means[-rank]) if rank >= 1 else (math.nan, math.nan)
    ratio = Interval(*(math.exp(log) for log in (np.median(means), *ends)), n, 1)
    p_same = max(_signed_rank(logs + limit, "greater"), _signed_rank(logs - limit, "less"))
    error = spread(logs) / math.sqrt(WILCOXON_EFFICIENCY * n)
    return Comparison(ratio, _signed_rank(logs, "two-sided"), p_same, PAIRED_LEVEL, error, n - 1, PAIRS)


def _signed_rank(logs: np.ndarray, alternative: str) -> float:
    """The p of Wilcoxon's test: exact for few pairs, by the normal approximation for many and where there are ties."""
    if not np.any(logs):
        return 1.0
    distinct = np.all(logs) and len(np.unique(np.abs(logs))) == len(logs)
    method = "exact" if distinct and len(logs) <= 50 else "asymptotic"
    return float(stats.wilcoxon(logs, alternative=alternative, method=method).pvalue)


def across(ratios: Sequence[float], n: int, by: str, margin: float = MARGIN) -> Comparison:
    """Two times compared by their ratio in each of three or more processes, `n` samples in all: t tests over the
    logarithms."""
    logs, limit, freedom = np.log(ratios), math.log1p(margin), len(ratios) - 1
    error = max(float(stats.sem(logs)), 1e-12)  # where all processes agree, as byte counts do
    middle = float(logs.mean())
    p = 2 * stats.t.sf(abs(middle) / error, freedom)
    p_same = stats.t.sf((limit - abs(middle)) / error, freedom)
    return Comparison(Interval(*log_t(ratios), n, len(logs)), float(p), float(p_same), ROUNDS_LEVEL, error, freedom, by)


def unpaired(above: dict[int, Sequence[float]], below: dict[int, Sequence[float]]) -> Comparison | None:
    """Two times compared by their medians in the rounds that both have, from samples keyed by round; None without
    such a round. In fewer than three nothing is shown, since one was timed after the other: then two intervals of
    97.5% within the first round are divided by each other's ends, which is at least 95% together."""
    common = sorted(above.keys() & below.keys())
    if not common:
        return None
    if len(common) >= ENOUGH_ROUNDS:
        ratios = [statistics.median(above[r]) / statistics.median(below[r]) for r in common]
        return across(ratios, sum(min(len(above[r]), len(below[r])) for r in common), MEDIANS)
    a, b = (median([samples[common[0]]], confidence=0.975) for samples in (above, below))
    ratio = Interval(a.value / b.value, a.low / b.high, a.high / b.low, min(a.n, b.n), 1)
    return Comparison(ratio, 1.0, 1.0, ROUNDS_LEVEL, math.nan, 0, MEDIANS)


def verdicts(comparisons: Sequence[Comparison]) -> list[str]:
    """The verdicts of comparisons that stand together, such that the chance of any false difference among them is
    the level of one (Holm 1979): the clearest must hold against all of them, the next against the rest, and so on
    until one does not."""
    ranked = sorted(range(len(comparisons)), key=lambda i: comparisons[i].p / comparisons[i].level)
    found, factor = [""] * len(comparisons), len(comparisons)
    for position, i in enumerate(ranked):
        found[i] = comparisons[i].verdict(factor)
        factor = len(comparisons) - position - 1 if found[i] in ("faster", "slower") else math.inf
    return found
