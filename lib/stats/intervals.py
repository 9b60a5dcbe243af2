"""Compute medians of times with their intervals.

As a parameter `rounds` is always a list of lists: the samples of each process.

>>> print(median([[1.99, 2.1, 1.9], [2.01, 2.2, 1.9], [2.0, 2.0, 2.0]]))
2.00 (1.98 to 2.02)
"""

import functools
import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
from scipy import special

from lib.stats import digits

CONFIDENCE = 0.95
ENOUGH_ROUNDS = 3  # for an interval that speaks for processes in general


@dataclass(frozen=True)
class Interval:
    """Hold a value with its 95% interval.

    The ends are NaN where the data is too little for one. `rounds` counts the processes that the value is from: of
    several it speaks for processes in general, of one for that process alone. It prints itself: 81 (79 to 83)."""

    value: float
    low: float
    high: float
    rounds: int

    @property
    def known(self) -> bool:
        """Tell if there was enough data for an interval."""
        return math.isfinite(self.low)

    @property
    def reach(self) -> float:
        """Return half the width of the interval; NaN where it is unknown."""
        return (self.high - self.low) / 2

    @property
    def inverse(self) -> "Interval":
        """Return the interval of one over the value, which must be positive."""
        return replace(self, value=1 / self.value, low=1 / self.high, high=1 / self.low)

    def scaled(self, factor: float) -> "Interval":
        """Return the interval of the value times a factor, which must not be negative."""
        return replace(self, value=factor * self.value, low=factor * self.low, high=factor * self.high)

    def text(self, uncertainty: float, unit: str = "") -> str:
        """Format the value with its unit, and the ends, with the digits that an uncertainty warrants."""
        value = digits.number(self.value, uncertainty) + unit
        # an interval of no width, as byte counts have, needs no ends
        if not self.known or self.reach == 0:
            return value
        place = digits.last_place(self.value, uncertainty)
        return f"{value} ({digits.rounded(self.low, place)} to {digits.rounded(self.high, place)})"

    def __str__(self) -> str:
        return self.text(self.reach)


def median(rounds: Sequence[Sequence[float]]) -> Interval:
    """Return the median with its 95% interval.

    Three rounds or more have the geometric mean of their medians, with a t interval over their logarithms. Of fewer the
    first alone is told, by its median and order-statistic interval, which speak for that process. Medians that are not
    all positive, such as those of counts, are told as by `of_processes`. Raises ValueError without any rounds."""
    if not rounds:
        raise ValueError("rounds: got none, expected at least one list of samples")
    medians = [statistics.median(samples) for samples in rounds]
    if len(rounds) >= ENOUGH_ROUNDS or min(medians) <= 0:
        return of_processes(medians)
    return Interval(medians[0], *order_statistics(rounds[0]), 1)


def of_processes(values: Sequence[float]) -> Interval:
    """Return one number for several processes, each of which has one value.

    Three or more equal values, zeros too, give an interval of no width, and other positive ones their geometric mean
    with the t interval over their logarithms. All others give the median, without an interval. Raises ValueError
    without values."""
    if not values:
        raise ValueError("values: got none, expected one of each process")
    count = len(values)
    enough = count >= ENOUGH_ROUNDS
    # logarithms would bring rounding in, and zero has no logarithm
    if enough and min(values) == max(values):
        return Interval(values[0], values[0], values[0], count)
    if enough and min(values) > 0:
        logs = np.log(values)
        reach = t_reach(count - 1) * logs.std(ddof=1) / math.sqrt(count)
        mean, low, high = np.exp([logs.mean(), logs.mean() - reach, logs.mean() + reach]).tolist()
        return Interval(mean, low, high, count)
    return Interval(statistics.median(values), math.nan, math.nan, count)


def t_reach(freedom: np.ndarray | int) -> np.ndarray:
    """Return how many standard errors a t interval reaches to each side."""
    return special.stdtrit(freedom, (1 + CONFIDENCE) / 2)


def order_statistics(samples: Sequence[float]) -> tuple[float, float]:
    """Return the ends of the median's interval (Hettmansperger and Sheather 1986).

    They are the narrowest pair of order statistics that covers at least 95%, moved towards the next pair inward by
    interpolation, to cover just 95%. NaN, NaN when even the extremes cover less, as of fewer than 6 samples."""
    ordered = sorted(samples)
    rank, part = _rank(len(ordered))
    if rank < 1:
        return math.nan, math.nan
    # a weighted mean of two equal samples could differ from them by rounding, and this sum cannot
    low = ordered[rank - 1] + part * (ordered[rank] - ordered[rank - 1])
    high = ordered[-rank] - part * (ordered[-rank] - ordered[-rank - 1])
    return float(low), float(high)


@functools.cache
def _rank(n: int) -> tuple[int, float]:
    """Return the rank of the ends, from 1, and the part of the way to the next.

    The next one is inward. The rank is 0 if there is none. The part is Hettmansperger's and Sheather's."""
    below = special.bdtr(np.arange(n + 1), n, 0.5)  # probability that at most so many of n lie below the median
    rank = int(np.searchsorted(below, (1 - CONFIDENCE) / 2))
    if rank < 1:
        return 0, 0.0
    covers = 1 - 2 * below[rank - 1]
    covers_narrower = 1 - 2 * below[rank]
    excess = (covers - CONFIDENCE) / (covers - covers_narrower)
    part = (n - rank) * excess / (rank + (n - 2 * rank) * excess)
    return rank, float(part)
