"""Find where a series of times becomes steady, and tell if a machine was quiet."""

import math
import statistics
from collections.abc import Sequence

import numpy as np
from scipy import special, stats

FEWEST = 10  # iterations of a steady series; fewer cannot be tested for a change
# A change counts if p is at most its level, and if it is at least so large, relative to the median.
DRIFT_LEVEL = 0.03
JUMP_LEVEL = 0.001
THROTTLE_LEVEL = 0.01
LEAST_DRIFT = 0.03
LEAST_JUMP = 0.03
LEAST_THROTTLE = 0.05
SLOWEST_QUIET = 1.1  # median of a quiet machine's noise probe over the best seen
WIDEST_QUIET = 0.1  # its interquartile range over its median


def steady(samples: Sequence[float]) -> int | None:
    """Return the index from which the series is steady, or None if it never is.

    A band of 2 to 15% is laid around the median of the last half. The warm-up ends at the point that best separates
    samples outside the band from those inside. The series is never steady if the warm-up takes more than half of it.
    The same holds if fewer than ten samples are left, or if those drift, jump or slow down late."""
    values = np.asarray(samples, dtype=float)
    if len(values) < FEWEST:
        return None
    late = values[len(values) // 2 :]
    middle = np.median(late)
    deviation = stats.median_abs_deviation(late, scale="normal")
    band = np.clip(3 * deviation, 0.02 * middle, 0.15 * middle)
    # one up for a sample outside, one down for one inside: the sum is highest where the warm-up ends
    outside = np.where(np.abs(values - middle) > band, 1, -1)
    start = int(np.argmax(np.concatenate([[0], np.cumsum(outside)])))
    rest = values[start:]
    if start > len(values) // 2 or len(rest) < FEWEST:
        return None
    if drifts(rest) or jumps(rest) or throttles(rest):
        return None
    return start


def drifts(values: np.ndarray) -> bool:
    """Tell if the series drifts, by Kendall's correlation and Theil-Sen's slope."""
    order = np.arange(len(values))
    p = stats.kendalltau(order, values).pvalue
    # NaN where all values are equal
    if not p <= DRIFT_LEVEL:
        return False
    slope = stats.theilslopes(values, order).slope
    return abs(slope) * (len(values) - 1) >= LEAST_DRIFT * np.median(values)


def jumps(values: np.ndarray) -> bool:
    """Tell if the series jumps to another level (Pettitt 1979)."""
    n = len(values)
    rank_sums = np.cumsum(2 * stats.rankdata(values) - n - 1)[:-1]
    at = int(np.argmax(np.abs(rank_sums))) + 1
    before = np.median(values[:at])
    after = np.median(values[at:])
    inflation = _variance_inflation(np.concatenate([values[:at] - before, values[at:] - after]))
    # Pettitt's formula for the largest rank sum, whose variance autocorrelation inflates
    p = 2 * math.exp(-6 * rank_sums[at - 1] ** 2 / (n**3 + n**2) / inflation)
    return p <= JUMP_LEVEL and abs(after - before) >= LEAST_JUMP * np.median(values)


def throttles(values: np.ndarray) -> bool:
    """Tell if the last quarter is slower than the rest (Mann and Whitney)."""
    at = len(values) - len(values) // 4
    p = stats.mannwhitneyu(values[at:], values[:at], alternative="greater", method="asymptotic").pvalue
    slower_by = np.median(values[at:]) - np.median(values[:at])
    return p <= THROTTLE_LEVEL and slower_by >= LEAST_THROTTLE * np.median(values)


def _variance_inflation(residuals: np.ndarray) -> float:
    """Return how much autocorrelation inflates a mean's variance; 1 if not shown."""
    ranks = stats.rankdata(residuals)
    ranks -= ranks.mean()
    if not np.any(ranks):
        return 1.0
    correlation = float(ranks[1:] @ ranks[:-1] / (ranks @ ranks))
    if correlation < special.ndtri(0.9) / math.sqrt(len(residuals)):
        return 1.0
    # an estimate without bias (Kendall 1954)
    correlation = min(0.9, correlation + (1 + 4 * correlation) / len(residuals))
    # as of a long first-order autoregressive series
    return (1 + correlation) / (1 - correlation)


def quiet(probe: Sequence[float], best: float) -> bool:
    """Tell if a noise probe was neither slow beside the `best` median nor unsteady."""
    low, middle, high = statistics.quantiles(probe, n=4)
    return middle <= SLOWEST_QUIET * best and high - low <= WIDEST_QUIET * middle
