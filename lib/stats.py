"""Intervals for medians and ratios of times, and what may be said of them; knows nothing of what was timed.

`rounds` is always a list of lists: the samples of each process.
"""

import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass

from scipy import stats

ENOUGH_ROUNDS = 3
MARGIN = 0.03  # two times are called the same when their ratio is shown to lie within 3% of one


@dataclass(frozen=True)
class Interval:
    """A value with its interval; `low` and `high` are NaN where the data is too little for one."""

    value: float
    low: float
    high: float
    n: int
    rounds: int

    @property
    def scope(self) -> str:
        """What the interval speaks for: one process, or processes in general."""
        return f"across {self.rounds} processes" if self.rounds >= ENOUGH_ROUNDS else "within one process"

    @property
    def reach(self) -> float:
        """Half the width of the interval: zero where all processes agree, NaN where it is unknown."""
        return (self.high - self.low) / 2

    @property
    def known(self) -> bool:
        """Whether there was enough data for an interval."""
        return math.isfinite(self.low)


def order_statistics(samples: Sequence[float], confidence: float = 0.95) -> tuple[float, float]:
    """The interval of the median between two order statistics, valid for any distribution: the narrowest
    symmetric pair whose binomial coverage is at least `confidence` (David and Nagaraja 2003, section 7.1).
    NaN, NaN when even the extremes cover less (fewer than 6 samples at 95%)."""
    ordered = sorted(samples)
    outside = int(stats.binom.ppf((1 - confidence) / 2, len(ordered), 0.5))
    if outside < 1:
        return math.nan, math.nan
    return ordered[outside - 1], ordered[-outside]


def log_t(values: Sequence[float], confidence: float = 0.95) -> tuple[float, float, float]:
    """Geometric mean of positive values and its t interval, over their logarithms."""
    logs = [math.log(value) for value in values]
    middle = statistics.fmean(logs)
    spread = statistics.stdev(logs) / math.sqrt(len(logs))
    reach = stats.t.ppf(0.5 + confidence / 2, len(logs) - 1) * spread
    return math.exp(middle), math.exp(middle - reach), math.exp(middle + reach)


def median(rounds: Sequence[Sequence[float]], confidence: float = 0.95) -> Interval:
    """The median. With three or more rounds, a t interval over the logarithms of the medians of the rounds;
    with fewer, the order-statistic interval of the first round's samples, which speaks for that process."""
    n = sum(map(len, rounds))
    if len(rounds) >= ENOUGH_ROUNDS:
        return Interval(*log_t([statistics.median(samples) for samples in rounds], confidence), n, len(rounds))
    return Interval(statistics.median(rounds[0]), *order_statistics(rounds[0], confidence), len(rounds[0]), 1)


def ratio(above: dict[int, Sequence[float]], below: dict[int, Sequence[float]]) -> Interval:
    """The ratio of two medians, from samples keyed by round. With three or more common rounds the ratios of
    the rounds' medians, a pair a round, give a t interval over their logarithms. With fewer, two intervals of
    97.5% within the first common round are divided by each other's ends, which is at least 95% together."""
    common = sorted(above.keys() & below.keys())
    if len(common) >= ENOUGH_ROUNDS:
        pairs = [statistics.median(above[r]) / statistics.median(below[r]) for r in common]
        n = sum(min(len(above[r]), len(below[r])) for r in common)
        return Interval(*log_t(pairs), n, len(common))
    a, b = (median([samples[common[0]]], confidence=0.975) for samples in (above, below))
    return Interval(a.value / b.value, a.low / b.high, a.high / b.low, min(a.n, b.n), 1)


def verdict(of: Interval, margin: float = MARGIN) -> str:
    """What a ratio of times shows: `same` (equivalence within the margin), `faster`, `slower`, or
    `inconclusive` when the interval holds both one and something beyond the margin, and always with fewer than
    three rounds, in which the two were timed one after the other and not in turns."""
    if not of.known or of.rounds < ENOUGH_ROUNDS:
        return "inconclusive"
    if 1 / (1 + margin) < of.low and of.high < 1 + margin:
        return "same"
    if of.high < 1:
        return "faster"
    return "slower" if of.low > 1 else "inconclusive"
