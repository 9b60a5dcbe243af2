"""Find where a series of times becomes steady, and tell if a machine was quiet."""

import statistics
from collections.abc import Sequence

import numpy as np
import scipy  # loads scipy.stats when it is first used, which takes a second

FEWEST = 10  # iterations of a steady series; fewer cannot be tested for a drift
DRIFT_LEVEL = 0.03  # the p at which a drift counts
LEAST_DRIFT = 0.03  # the least size of a drift, relative to the median
SLOWEST_QUIET = 1.1  # the median of a quiet machine's noise probe over that of its good moments
WIDEST_QUIET = 0.1  # the interquartile range of a quiet machine's noise probe over its median


def steady(samples: Sequence[float]) -> int | None:
    """Return the index from which the series is steady, or None if it never is.

    A band of ±2 to ±15% is laid around the median of the last half. The warm-up ends at the point that best separates
    samples outside the band from those inside. The series is never steady if the warm-up takes more than half of it, or
    if fewer than ten samples are left, or if those drift."""
    values = np.asarray(samples, dtype=float)
    if len(values) < FEWEST:
        return None
    late = values[len(values) // 2 :]
    middle = np.median(late)
    deviation = scipy.stats.median_abs_deviation(late, scale="normal")
    band = np.clip(3 * deviation, 0.02 * middle, 0.15 * middle)
    # one up for a sample outside, one down for one inside: the sum is highest where the warm-up ends
    outside = np.where(np.abs(values - middle) > band, 1, -1)
    start = int(np.argmax(np.concatenate([[0], np.cumsum(outside)])))
    rest = values[start:]
    if start > len(values) // 2 or len(rest) < FEWEST or drifts(rest):
        return None
    return start


def drifts(values: np.ndarray) -> bool:
    """Tell if the series drifts, by Kendall's correlation and Theil-Sen's slope."""
    order = np.arange(len(values))
    p = scipy.stats.kendalltau(order, values).pvalue
    # NaN where all values are equal
    if not p <= DRIFT_LEVEL:
        return False
    slope = scipy.stats.theilslopes(values, order).slope
    return abs(slope) * (len(values) - 1) >= LEAST_DRIFT * np.median(values)


def quiet(probe: Sequence[float], best: float) -> bool:
    """Tell if a noise probe was neither slow nor unsteady.

    `best` is the median of the machine's good moments, in the unit of `probe`."""
    low, middle, high = statistics.quantiles(probe, n=4)
    return middle <= SLOWEST_QUIET * best and high - low <= WIDEST_QUIET * middle
