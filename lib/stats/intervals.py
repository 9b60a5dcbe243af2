"""Computes intervals for medians of times, and how many pairs a comparison needs.

`rounds` is always a list of lists: the samples of each process.

>>> round(median([[2.0, 2.1, 1.9]] * 3).value, 2)
2.0
"""

import functools
import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
from scipy import special

ENOUGH_ROUNDS = 3
INSIDE, BELOW, ABOVE, ACROSS = "inside", "below", "above", "across"  # where an interval lies between limits
EFFECT = 0.02  # the difference that a comparison is planned to see
POWER = 0.9  # with which it is planned, and with which the smallest effect would have been seen
PAIRED_LEVEL = 0.02  # at which pairs of one process show a difference
WILCOXON_EFFICIENCY = 3 / math.pi  # of the signed rank test relative to the t test under normal noise


@dataclass(frozen=True)
class Interval:
    """A value with its 95% interval; `low` and `high` are NaN where the data is too little for one."""

    value: float
    low: float
    high: float
    n: int
    rounds: int

    @property
    def scope(self) -> str:
        """Return what the interval speaks for: one process, or processes in general."""
        return f"across {self.rounds} processes" if self.rounds > 1 else "within one process"

    @property
    def reach(self) -> float:
        """Return half the width of the interval: zero where all processes agree, NaN where it is unknown."""
        return (self.high - self.low) / 2

    @property
    def known(self) -> bool:
        """Tell whether there was enough data for an interval."""
        return math.isfinite(self.low)

    @property
    def inverse(self) -> "Interval":
        """Return the interval of one over the value, which must be positive."""
        return Interval(1 / self.value, 1 / self.high, 1 / self.low, self.n, self.rounds)

    @property
    def log_error(self) -> float:
        """Return half the interval's width on the log scale: the relative error; 0 where it is unknown."""
        return math.log(self.high / self.low) / 2 if self.known and self.low > 0 else 0.0

    def widened(self, log_error: float) -> "Interval":
        """Return the interval with one more relative error, added in quadrature on the log scale."""
        if not self.known or self.low <= 0:
            return self
        down, up = (math.hypot(math.log(one), log_error) for one in (self.value / self.low, self.high / self.value))
        return replace(self, low=self.value * math.exp(-down), high=self.value * math.exp(up))

    def scaled(self, factor: float) -> "Interval":
        """Return the interval of the value times a positive factor."""
        return replace(self, value=factor * self.value, low=factor * self.low, high=factor * self.high)

    def against(self, limits: tuple[float, float]) -> str:
        """Return where the interval lies: `INSIDE` the limits, `BELOW`, `ABOVE`, or `ACROSS` one.

        Without an interval, the value decides."""
        low, high = (self.low, self.high) if self.known else (self.value, self.value)
        if limits[0] <= low and high <= limits[1]:
            return INSIDE
        return BELOW if high < limits[0] else ABOVE if low > limits[1] else ACROSS


@functools.cache
def _ranks(n: int, confidence: float) -> tuple[int, float]:
    """Return the rank of the median's interval from each end, and the part towards the next."""
    rank = int(np.searchsorted(special.bdtr(np.arange(n + 1), n, 0.5), (1 - confidence) / 2))
    if rank < 1:
        return 0, 0.0
    covers, covers_less = (1 - 2 * special.bdtr(r - 1, n, 0.5) for r in (rank, rank + 1))
    excess = (covers - confidence) / (covers - covers_less)
    return rank, (n - rank) * excess / (rank + (n - 2 * rank) * excess)


def order_statistics(samples: Sequence[float], confidence: float = 0.95) -> tuple[float, float]:
    """Return the interval of the median for any distribution (Hettmansperger and Sheather 1986).

    It lies between the order statistics whose binomial coverage is at least `confidence` and the next narrower ones,
    interpolated to just that. NaN, NaN when even the extremes cover less (fewer than 6 samples at 95%)."""
    ordered = sorted(samples)
    rank, part = _ranks(len(ordered), confidence)
    if rank < 1:
        return math.nan, math.nan
    ends = ((ordered[rank - 1], ordered[rank]), (ordered[-rank], ordered[-rank - 1]))
    return tuple(float((1 - part) * outer + part * inner) for outer, inner in ends)


def log_t(values: Sequence[float]) -> tuple[float, float, float]:
    """Return the geometric mean of positive values and its 95% t interval, over their logarithms."""
    if min(values) == max(values):  # as byte counts are; their logarithms would bring rounding in
        return values[0], values[0], values[0]
    logs = np.log(values)
    reach = special.stdtrit(len(logs) - 1, 0.975) * logs.std(ddof=1) / math.sqrt(len(logs))
    return tuple(float(np.exp(logs.mean() + part * reach)) for part in (0, -1, 1))


def of_processes(values: Sequence[float], n: int = 1) -> Interval | None:
    """Return one number for several processes, each with `n` samples; None without any.

    Three or more positive values have an interval by `log_t`, equal ones one of no width; of others it is unknown."""
    if not values:
        return None
    count = len(values)
    if count >= ENOUGH_ROUNDS and (min(values) > 0 or len(set(values)) == 1):
        ends = log_t(values) if min(values) > 0 else values[:1] * 3
        return Interval(*ends, n * count, count)
    return Interval(statistics.median(values), math.nan, math.nan, n * count, count)


def median(rounds: Sequence[Sequence[float]]) -> Interval:
    """Return the median with its 95% interval.

    Three or more rounds have a t interval over the logarithms of their medians. Fewer have the order-statistic interval
    of the first round's samples, which speaks for that process. Medians that are not all positive, such as of counts,
    have that of `of_processes`."""
    n, middles = sum(map(len, rounds)), [statistics.median(samples) for samples in rounds]
    if min(middles) <= 0:
        return of_processes(middles, len(rounds[0]))
    if len(rounds) >= ENOUGH_ROUNDS:
        return Interval(*log_t(middles), n, len(rounds))
    return Interval(statistics.median(rounds[0]), *order_statistics(rounds[0]), len(rounds[0]), 1)


_NEEDED = special.ndtri(1 - PAIRED_LEVEL / 2) + special.ndtri(POWER)


def pairs_needed(logs: Sequence[float], effect: float = EFFECT) -> int:
    """Return how many pairs show a relative difference of `effect`, by a pilot's log ratios.

    Their spread is taken at the upper end of what the pilot allows for."""
    n = len(logs)
    doubt = math.sqrt((n - 1) / special.chdtri(n - 1, 0.8))
    return math.ceil((_NEEDED * doubt * spread(logs) / math.log1p(effect)) ** 2 / WILCOXON_EFFICIENCY)


def spread(logs: Sequence[float]) -> float:
    """Return a robust standard deviation: the outer tenth on each side is drawn in.

    The signs of the differences do not enter, so that planning by it cannot favour a verdict."""
    low, high = np.quantile(logs, (0.1, 0.9))
    return float(np.std(np.clip(logs, low, high), ddof=1)) / 0.83
