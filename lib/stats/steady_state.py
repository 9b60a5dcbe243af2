"""Tells whether a series of times is steady: where its warm-up ends, whether it drifts, jumps or slows down late."""

import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from scipy import stats

LEVELS = {"drift": 0.03, "jump": 0.001, "throttle": 0.01}  # together they raise fewer than 2% of false alarms
MATERIAL = {"drift": 0.03, "jump": 0.03, "throttle": 0.05}  # changes of a smaller part of the median are no matter
SLOWER, UNSTEADY = 1.1, 0.1  # what a quiet machine keeps below: a tenth above its best, a tenth between quartiles
STEADY = 10  # iterations that a steady series has at least, since fewer cannot be tested for a change


@dataclass(frozen=True)
class Change:
    """What a series does instead of staying: its `kind` (`drift`, `jump` or `throttle`), the relative `size` of it,
    and the index `at` which it begins."""

    kind: str
    size: float
    at: int

    def __str__(self) -> str:
        size = f"{self.size:+.0%}"
        return f"a drift of {size}" if self.kind == "drift" else f"a {self.kind} of {size} from sample {self.at + 1} on"


def change(samples: Sequence[float]) -> Change | None:
    """The largest of these that are found: a drift (Mann and Kendall), a jump (Pettitt 1979), or a last quarter that is
    slower than the rest (Mann and Whitney); None for a series that stays, or is shorter than 10."""
    if len(samples) < 10:
        return None
    values = np.asarray(samples, dtype=float)
    found = [test(values) for test in (drift, jump, throttle)]
    return max((c for c in found if c), key=lambda c: abs(c.size), default=None)


def drift(values: np.ndarray, alike: bool = True) -> Change | None:
    """A monotonous trend: Kendall's rank correlation with time, and its size over the series by the median of the
    slopes between all pairs (Theil and Sen). `alike` allows for neighbours that are, which may look like a trend."""
    order = np.arange(len(values))
    p = stats.kendalltau(order, values).pvalue
    if not p <= LEVELS["drift"]:  # what follows can only make it larger
        return None
    slope = stats.theilslopes(values, order).slope
    if alike:
        p = 2 * stats.norm.sf(stats.norm.isf(p / 2) / math.sqrt(_together(values - slope * order)))
    return _material("drift", p, slope * (len(values) - 1), 0, values)


def jump(values: np.ndarray) -> Change | None:
    """The point that splits the series into two levels: the largest of the rank sums' deviations, by Pettitt's
    approximation of its probability."""
    n = len(values)
    signs = np.cumsum(2 * stats.rankdata(values) - n - 1)[:-1]
    at = int(np.argmax(np.abs(signs))) + 1
    before, after = np.median(values[:at]), np.median(values[at:])
    together = _together(np.concatenate([values[:at] - before, values[at:] - after]))
    p = 2 * math.exp(-6 * signs[at - 1] ** 2 / (n**3 + n**2) / together)
    return _material("jump", p, after - before, at, values)


def throttle(values: np.ndarray) -> Change | None:
    """A last quarter that is slower than what came before."""
    at = len(values) - len(values) // 4
    before, late = values[:at], values[at:]
    test = stats.mannwhitneyu(late, before, alternative="greater", method="asymptotic")
    return _material("throttle", test.pvalue, np.median(late) - np.median(before), at, values)


def _together(residuals: np.ndarray) -> float:
    """By how much the variance of a mean grows because neighbours are alike: one where they are shown not to be."""
    ranks = stats.rankdata(residuals)
    ranks -= ranks.mean()
    alike = float(ranks[1:] @ ranks[:-1] / (ranks @ ranks)) if np.any(ranks) else 0.0
    if alike < stats.norm.ppf(0.9) / math.sqrt(len(residuals)):
        return 1.0
    alike = min(0.9, alike + (1 + 4 * alike) / len(residuals))  # its bias (Kendall 1954)
    return (1 + alike) / (1 - alike)


def _material(kind: str, p: float, size: float, at: int, values: np.ndarray) -> Change | None:
    relative = float(size / np.median(values))
    return Change(kind, relative, at) if p <= LEVELS[kind] and abs(relative) >= MATERIAL[kind] else None


def quiet(probe: Sequence[float], best: float) -> bool:
    """Whether the same small computation, timed over and over beside a measurement, says that the machine was left
    alone: its median near the `best` that the machine ever showed, its quartiles near each other."""
    low, middle, high = statistics.quantiles(probe, n=4)
    return middle <= SLOWER * best and high - low <= UNSTEADY * middle


def steady(samples: Sequence[float]) -> int | None:
    """The index from which the series is steady; None where it never is: when more than half of it is warm-up, or
    fewer than ten iterations are left, or what is left drifts or jumps.

    A sample belongs to the warm-up when it lies outside the band that the last half keeps to, of 2 to 15% about its
    median, and the warm-up ends where most samples before lay outside and most after within."""
    values = np.asarray(samples, dtype=float)
    if len(values) < STEADY:
        return None
    late = values[len(values) // 2 :]
    middle = np.median(late)
    band = np.clip(3 * stats.median_abs_deviation(late, scale="normal"), 0.02 * middle, 0.15 * middle)
    outside = np.where(np.abs(values - middle) > band, 1, -1)
    start = int(np.argmax(np.concatenate([[0], np.cumsum(outside)])))
    rest = values[start:]
    if start > len(values) // 2 or len(rest) < STEADY or drift(rest, alike=False) or change(rest):
        return None
    return start
