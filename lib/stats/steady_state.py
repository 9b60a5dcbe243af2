"""Find where a series of times becomes steady, and if it drifts, jumps or slows down late."""

import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import scipy  # loads scipy.stats when it is first used, which takes a second
from scipy import special

LEVELS = {"drift": 0.03, "jump": 0.001, "throttle": 0.01}  # of p, for false alarms in under 2% of all series
MATERIAL = {"drift": 0.03, "jump": 0.03, "throttle": 0.05}  # smaller changes, relative to the median, are ignored
SLOWER, UNSTEADY = 1.1, 0.1  # limits of a quiet machine: median / best, interquartile range / median
STEADY = 10  # least iterations of a steady series; fewer cannot be tested for a change


@dataclass(frozen=True)
class Change:
    """A change in a series that should be steady."""

    kind: str  # drift, jump or throttle
    size: float  # relative to the median of the series
    at: int  # index at which it begins

    def __str__(self) -> str:
        size = f"{self.size:+.0%}"
        return f"a drift of {size}" if self.kind == "drift" else f"a {self.kind} of {size} from sample {self.at + 1} on"


def change(samples: Sequence[float]) -> Change | None:
    """Return the largest drift, jump or throttle found; None for fewer than 10 samples."""
    if len(samples) < 10:
        return None
    values = np.asarray(samples, dtype=float)
    found = [test(values) for test in (drift, jump, throttle)]
    return max((c for c in found if c), key=lambda c: abs(c.size), default=None)


def drift(values: np.ndarray, autocorrelated: bool = True) -> Change | None:
    """Find a monotonic trend by Kendall's rank correlation with time, and its Theil-Sen slope."""
    order = np.arange(len(values))
    p = scipy.stats.kendalltau(order, values).pvalue
    if not p <= LEVELS["drift"]:  # the correction can only raise p
        return None
    slope = scipy.stats.theilslopes(values, order).slope
    if autocorrelated:  # similar neighbours can look like a trend
        p = 2 * special.ndtr(special.ndtri(p / 2) / math.sqrt(_variance_inflation(values - slope * order)))
    return _as_change("drift", p, slope * (len(values) - 1), 0, values)


def jump(values: np.ndarray) -> Change | None:
    """Find a split into two levels by the largest deviation of rank sums (Pettitt 1979)."""
    n = len(values)
    signs = np.cumsum(2 * scipy.stats.rankdata(values) - n - 1)[:-1]
    at = int(np.argmax(np.abs(signs))) + 1
    before, after = np.median(values[:at]), np.median(values[at:])
    inflation = _variance_inflation(np.concatenate([values[:at] - before, values[at:] - after]))
    p = 2 * math.exp(-6 * signs[at - 1] ** 2 / (n**3 + n**2) / inflation)
    return _as_change("jump", p, after - before, at, values)


def throttle(values: np.ndarray) -> Change | None:
    """Find a last quarter that is slower than the rest (Mann and Whitney)."""
    at = len(values) - len(values) // 4
    before, late = values[:at], values[at:]
    test = scipy.stats.mannwhitneyu(late, before, alternative="greater", method="asymptotic")
    return _as_change("throttle", test.pvalue, np.median(late) - np.median(before), at, values)


def _variance_inflation(residuals: np.ndarray) -> float:
    """Return how much autocorrelation inflates the variance of a mean; 1 if it is not shown."""
    ranks = scipy.stats.rankdata(residuals)
    ranks -= ranks.mean()
    correlation = float(ranks[1:] @ ranks[:-1] / (ranks @ ranks)) if np.any(ranks) else 0.0
    if correlation < special.ndtri(0.9) / math.sqrt(len(residuals)):
        return 1.0
    correlation = min(0.9, correlation + (1 + 4 * correlation) / len(residuals))  # without bias (Kendall 1954)
    return (1 + correlation) / (1 - correlation)


def _as_change(kind: str, p: float, size: float, at: int, values: np.ndarray) -> Change | None:
    relative = float(size / np.median(values))
    return Change(kind, relative, at) if p <= LEVELS[kind] and abs(relative) >= MATERIAL[kind] else None


def quiet(probe: Sequence[float], best: float) -> bool:
    """Return True if a noise probe was neither slow, compared with its `best`, nor unsteady."""
    low, middle, high = statistics.quantiles(probe, n=4)
    return middle <= SLOWER * best and high - low <= UNSTEADY * middle


def steady(samples: Sequence[float]) -> int | None:
    """Return the index from which the series is steady, or None if it never is.

    A band of 2 to 15% is laid around the median of the last half. The warm-up ends at the point that best separates
    samples outside the band from those inside. The series is never steady if the warm-up takes more than half of it.
    The same holds if fewer than ten samples are left, or if those still change."""
    values = np.asarray(samples, dtype=float)
    if len(values) < STEADY:
        return None
    late = values[len(values) // 2 :]
    middle = np.median(late)
    band = np.clip(3 * scipy.stats.median_abs_deviation(late, scale="normal"), 0.02 * middle, 0.15 * middle)
    outside = np.where(np.abs(values - middle) > band, 1, -1)
    start = int(np.argmax(np.concatenate([[0], np.cumsum(outside)])))
    rest = values[start:]
    if start > len(values) // 2 or len(rest) < STEADY or drift(rest, autocorrelated=False) or change(rest):
        return None
    return start
