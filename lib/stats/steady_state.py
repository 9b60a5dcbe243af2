"""Find where a series of times becomes steady, and if it drifts, jumps or slows down late."""

import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import scipy  # loads scipy.stats when it is first used, which takes a second
from scipy import special

FEWEST = 10  # iterations of a steady series; fewer cannot be tested for a change
# The limits of p keep false alarms below 2% of all series. Changes smaller than the second limit, relative to the
# median, do not matter to anyone.
LEVELS = {"drift": 0.03, "jump": 0.001, "throttle": 0.01}
LEAST_CHANGES = {"drift": 0.03, "jump": 0.03, "throttle": 0.05}
SLOWEST_QUIET = 1.1  # median of a quiet machine's noise probe over the best seen
WIDEST_QUIET = 0.1  # its interquartile range over its median


@dataclass(frozen=True)
class Change:
    """Hold a change in a series that should be steady: its size relative to the median, and where it begins."""

    kind: str  # drift, jump or throttle
    size: float
    at: int

    def __str__(self) -> str:
        if self.kind == "drift":
            return f"a drift of {self.size:+.0%}"
        return f"a {self.kind} of {self.size:+.0%} from sample {self.at + 1} on"


def change(samples: Sequence[float]) -> Change | None:
    """Return the largest drift, jump or throttle; None without one, or for fewer than 10 samples."""
    if len(samples) < FEWEST:
        return None
    values = np.asarray(samples, dtype=float)
    changes = [result for result in (drift(values), jump(values), throttle(values)) if result]
    return max(changes, key=lambda result: abs(result.size), default=None)


def drift(values: np.ndarray, autocorrelated: bool = True) -> Change | None:
    """Find a monotonic trend by Kendall's rank correlation with time, and its Theil-Sen slope.

    Neighbours that are alike can look like a trend; if they may be `autocorrelated`, p allows for that."""
    order = np.arange(len(values))
    p = scipy.stats.kendalltau(order, values).pvalue
    if not p <= LEVELS["drift"]:  # what follows can only raise p
        return None
    slope = scipy.stats.theilslopes(values, order).slope
    if autocorrelated:
        inflation = _variance_inflation(values - slope * order)
        p = 2 * special.ndtr(special.ndtri(p / 2) / math.sqrt(inflation))
    return _shown("drift", p, slope * (len(values) - 1), 0, values)


def jump(values: np.ndarray) -> Change | None:
    """Find a split into two levels by the largest deviation of rank sums (Pettitt 1979)."""
    n = len(values)
    rank_sums = np.cumsum(2 * scipy.stats.rankdata(values) - n - 1)[:-1]
    at = int(np.argmax(np.abs(rank_sums))) + 1
    before = np.median(values[:at])
    after = np.median(values[at:])
    inflation = _variance_inflation(np.concatenate([values[:at] - before, values[at:] - after]))
    p = 2 * math.exp(-6 * rank_sums[at - 1] ** 2 / (n**3 + n**2) / inflation)
    return _shown("jump", p, after - before, at, values)


def throttle(values: np.ndarray) -> Change | None:
    """Find a last quarter that is slower than the rest (Mann and Whitney)."""
    at = len(values) - len(values) // 4
    p = scipy.stats.mannwhitneyu(values[at:], values[:at], alternative="greater", method="asymptotic").pvalue
    return _shown("throttle", p, np.median(values[at:]) - np.median(values[:at]), at, values)


def _shown(kind: str, p: float, size: float, at: int, values: np.ndarray) -> Change | None:
    """Return a change if it is both shown and large enough to matter."""
    relative = float(size / np.median(values))
    if p > LEVELS[kind] or abs(relative) < LEAST_CHANGES[kind]:
        return None
    return Change(kind, relative, at)


def _variance_inflation(residuals: np.ndarray) -> float:
    """Return how much autocorrelation inflates the variance of a mean; 1 if it is not shown."""
    ranks = scipy.stats.rankdata(residuals)
    ranks -= ranks.mean()
    if not np.any(ranks):
        return 1.0
    correlation = float(ranks[1:] @ ranks[:-1] / (ranks @ ranks))
    if correlation < special.ndtri(0.9) / math.sqrt(len(residuals)):
        return 1.0
    # an estimate without bias (Kendall 1954)
    correlation = min(0.9, correlation + (1 + 4 * correlation) / len(residuals))
    return (1 + correlation) / (1 - correlation)


def quiet(probe: Sequence[float], best: float) -> bool:
    """Tell if a noise probe was neither slow, compared with the machine's `best` median, nor unsteady."""
    low, middle, high = statistics.quantiles(probe, n=4)
    return middle <= SLOWEST_QUIET * best and high - low <= WIDEST_QUIET * middle


def steady(samples: Sequence[float]) -> int | None:
    """Return the index from which the series is steady, or None if it never is.

    A band of 2 to 15% is laid around the median of the last half. The warm-up ends at the point that best separates
    samples outside the band from those inside. The series is never steady if the warm-up takes more than half of it.
    The same holds if fewer than ten samples are left, or if those still change."""
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
    if start > len(values) // 2 or len(rest) < FEWEST:
        return None
    if drift(rest, autocorrelated=False) or change(rest):
        return None
    return start
