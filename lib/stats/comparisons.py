"""Compare two times by their ratio, with an interval and a verdict.

A ratio is the baseline's time over the variant's: above one, the variant is faster. The unit is the process. Three
processes say little about how much processes differ, so that spread is moderated by all comparisons of an experiment
(see `moderation`).

>>> row = Measured(logs=(0.36, 0.34, 0.37), n=90)
>>> print(judged([row])[0])
1.43× (1.38 to 1.48) faster
"""

import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import scipy
from scipy import special

from lib.stats import intervals, moderation
from lib.stats.intervals import ENOUGH_ROUNDS, Interval
from lib.stats.moderation import Prior

MARGIN = 0.03  # two times are the same when their ratio is shown to lie within 3% of one
# The share of false findings in a table. It is half of 5%, since a table may be judged twice: `ROUNDS=` measures again
# what was unclear at the first look, and the second look depends on the first.
LEVEL = 0.025
FASTER = "faster"
SLOWER = "slower"
SAME = "same"
UNCLEAR = "unclear"
EFFICIENCY = 3 / math.pi  # of the signed rank test relative to the t test, under normal noise
LEAST_ERROR = 1e-12  # of a logarithm, where all processes agree


@dataclass(frozen=True)
class Comparison:
    """Hold the ratio of a baseline's time to a variant's, and its verdict."""

    ratio: Interval
    verdict: str

    @property
    def rounds(self) -> int:
        """Return the number of processes."""
        return self.ratio.rounds

    @property
    def tier(self) -> str:
        """Return how sure a gain is: proven, probable (by 3% or more), or none."""
        if self.verdict == SAME or self.ratio.value <= 1:
            return "none"
        if self.ratio.low > 1:
            return "proven"
        if self.ratio.value > 1 + MARGIN:
            return "probable"
        return "none"

    @property
    def factor(self) -> str:
        """Return the ratio, of a slower variant its inverse: 1.4× (1.3 to 1.5)."""
        shown = self.ratio
        if self.verdict == SLOWER:
            shown = self.ratio.inverse
        value, _, ends = shown.text(_uncertainty(shown)).partition(" ")
        return f"{value}× {ends}".rstrip()

    def than(self, other: str) -> str:
        """Say how fast the variant is: 1.4× (1.3 to 1.5) faster than naive."""
        if self.verdict in (FASTER, SLOWER):
            return f"{self.factor} {self.verdict} than {other}{self._scope}"
        if self.verdict == SAME:
            return f"as fast as {other}{self._scope}: {self.factor}"
        return f"neither clearly faster nor slower than {other}{self._scope}: {self.factor}"

    def __str__(self) -> str:
        ending = {FASTER: " faster", SLOWER: " slower", SAME: ", the same", UNCLEAR: ", unclear"}[self.verdict]
        return f"{self.factor}{ending}{self._scope}"

    @property
    def _scope(self) -> str:
        if self.rounds == 1:
            return " in this process"
        return ""


def _uncertainty(ratio: Interval) -> float:
    """Return the uncertainty whose digits tell a ratio and its ends from one."""
    if not ratio.known:
        return 0.01
    nearest = min(abs(ratio.low - 1), abs(ratio.high - 1))
    # a gain must not read 1.0
    if abs(ratio.value - 1) > MARGIN:
        nearest = min(nearest, abs(ratio.value - 1))
    # a digit at 10^-p is off by half of that; more than one further digit is never needed
    return max(min(ratio.reach, 2 * nearest), ratio.reach / 10)


@dataclass(frozen=True)
class Measured:
    """Hold the logarithm of a ratio in each process, from `n` samples in all.

    - `noise`: the standard error of one process's logarithm by its own samples, 0 if unknown.
    - `ms`: the longer of the two times; the spread between processes may depend on it.
    - `paired`: True of interleaved pairs, False of medians that were timed one after the other.
    """

    logs: tuple[float, ...]
    n: int
    noise: float = 0.0
    ms: float = 1.0
    paired: bool = True

    @property
    def variance(self) -> float:
        """Return the variance of the logarithms between processes; NaN of one process."""
        if len(self.logs) < 2:
            return math.nan
        return float(np.var(self.logs, ddof=1))


def of_pairs(variant_ms: Sequence[float], baseline_ms: Sequence[float]) -> Measured:
    """Return the ratio of two times that ran as interleaved pairs in one process.

    It is the Hodges-Lehmann estimate over the logarithms of the pairs: the median of the means of all pairs of them."""
    logs = np.log(baseline_ms) - np.log(variant_ms)
    means = (logs[:, None] + logs) / 2
    estimate = float(np.median(means[np.triu_indices(len(logs))]))
    noise = 0.0
    if len(logs) > 1:
        noise = _robust_deviation(logs) / math.sqrt(EFFICIENCY * len(logs))
    ms = max(statistics.median(variant_ms), statistics.median(baseline_ms))
    return Measured((estimate,), len(logs), noise, ms)


def _robust_deviation(logs: np.ndarray) -> float:
    """Estimate the standard deviation from winsorized values.

    The outer tenth on each side is clipped."""
    low, high = np.quantile(logs, (0.1, 0.9))
    winsorized = np.clip(logs, low, high)
    # of many normal values, that much of the deviation is left
    return float(np.std(winsorized, ddof=1)) / 0.824


def of_medians(variant: dict[int, Sequence[float]], baseline: dict[int, Sequence[float]]) -> Measured | None:
    """Return the ratio of medians in ms in each round that both have, or None."""
    processes = []
    for number in sorted(variant.keys() & baseline.keys()):
        variant_ms = statistics.median(variant[number])
        baseline_ms = statistics.median(baseline[number])
        n = min(len(variant[number]), len(baseline[number]))
        log = math.log(baseline_ms / variant_ms)
        processes.append(Measured((log,), n, 0.0, max(variant_ms, baseline_ms), paired=False))
    return joined(processes)


def joined(processes: Sequence[Measured]) -> Measured | None:
    """Return one ratio of several processes from that of each; None of none."""
    if not processes:
        return None
    logs = tuple(log for process in processes for log in process.logs)
    n = sum(process.n for process in processes)
    noise = math.sqrt(statistics.fmean(process.noise**2 for process in processes))
    ms = statistics.median(process.ms for process in processes)
    return Measured(logs, n, noise, ms, processes[0].paired)


def judged(rows: Sequence[Measured]) -> list[Comparison]:
    """Judge the ratios of one table together (Benjamini and Hochberg 1995).

    The spread between processes is moderated by that of all rows. On average at most 2.5% of those called faster or
    slower are false, and as many of those called the same."""
    if not rows:
        return []
    several = [row for row in rows if len(row.logs) > 1]
    shared = moderation.prior(
        [row.variance for row in several], [len(row.logs) - 1 for row in several], [row.ms for row in several]
    )
    ratios = []
    p_differ = []
    p_same = []
    for row in rows:
        variance, freedom = _variance(row, shared)
        log = statistics.fmean(row.logs)
        error = max(math.sqrt(variance / len(row.logs)), LEAST_ERROR)
        reach = math.nan
        if freedom > 0:
            reach = error * intervals.t_reach(freedom)
        ratios.append(Interval(math.exp(log), math.exp(log - reach), math.exp(log + reach), row.n, len(row.logs)))
        p_differ.append(min(1.0, 2 * _tail(-abs(log) / error, freedom)))
        # two one-sided tests in one: the nearer end of the margin decides
        p_same.append(_tail(-(math.log1p(MARGIN) - abs(log)) / error, freedom))
    differ = scipy.stats.false_discovery_control(p_differ) <= LEVEL
    same = scipy.stats.false_discovery_control(p_same) <= LEVEL
    comparisons = []
    for ratio, shown_to_differ, shown_to_be_same in zip(ratios, differ, same, strict=True):
        verdict = UNCLEAR
        # a difference that is real but within 3% is of no use to anyone
        if shown_to_be_same:
            verdict = SAME
        elif shown_to_differ and ratio.value > 1:
            verdict = FASTER
        elif shown_to_differ:
            verdict = SLOWER
        comparisons.append(Comparison(ratio, verdict))
    return comparisons


def _variance(row: Measured, shared: Prior | None) -> tuple[float, float]:
    """Return the variance of a row between processes, and its degrees of freedom.

    With a prior, it is at least that of a process's own samples."""
    own_freedom = len(row.logs) - 1
    if shared is None:
        if not row.paired and len(row.logs) < ENOUGH_ROUNDS:
            # few processes that timed one after the other decide nothing
            return 0.0, 0
        if own_freedom == 0:
            # this speaks for that process alone
            return row.noise**2, row.n - 1
        return row.variance, own_freedom
    if own_freedom == 0:
        return max(shared.at(row.ms), row.noise**2), shared.freedom
    variance, freedom = shared.moderate(row.variance, own_freedom, row.ms)
    return max(variance, row.noise**2), freedom


def _tail(t: float, freedom: float) -> float:
    """Return the probability that Student's t is at most this."""
    if freedom <= 0:
        return 1.0
    return float(special.stdtr(freedom, t))
