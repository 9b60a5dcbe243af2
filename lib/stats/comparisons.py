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

from lib.stats import moderation
from lib.stats.intervals import Interval, t_reach

MARGIN = 0.03  # two times are the same when their ratio is shown to lie within 3% of one
# The share of false findings in a table. It is half of 5%, since a table may be judged twice: `ROUNDS=` measures again
# what was unclear at the first look, and the second look depends on the first.
LEVEL = 0.025
FASTER = "faster"
SLOWER = "slower"
SAME = "same"
UNCLEAR = "unclear"
EFFICIENCY = 3 / math.pi  # of the Hodges-Lehmann estimate relative to the mean, under normal noise
LEAST_ERROR = 1e-12  # of a logarithm, where all processes agree


@dataclass(frozen=True)
class Comparison:
    """Hold the ratio of a baseline's time to a variant's, and its verdict."""

    ratio: Interval
    verdict: str

    @property
    def tier(self) -> str:
        """Return how sure a gain is: proven, probable (by more than 3%), or none.

        It is proven if its own interval lies above one and the verdict is not `same`. The whole table decides the
        verdict, so a proven gain can be `unclear`."""
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
        return shown.text(_uncertainty(shown), "×")

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
        if self.ratio.rounds == 1:
            return " in this process"
        return ""


def _uncertainty(ratio: Interval) -> float:
    """Return the uncertainty by which a ratio is formatted.

    It is the ratio's reach, or less where an end would read 1.0. It is less, too, where a ratio more than 3% from one
    would read 1.0, and at least a tenth of the reach."""
    # a single pair may have no interval: two decimals, and at least two digits
    if not ratio.known:
        return 0.01
    nearest = min(abs(ratio.low - 1), abs(ratio.high - 1))
    # nor may a ratio more than 3% from one read 1.0
    if abs(ratio.value - 1) > MARGIN:
        nearest = min(nearest, abs(ratio.value - 1))
    # rounding moves a number by at most half of its uncertainty; at most one digit more is shown than it warrants
    return max(min(ratio.reach, 2 * nearest), ratio.reach / 10)


@dataclass(frozen=True)
class Measured:
    """Hold the logarithm of a ratio in each process, from `n` pairs in all.

    `noise` is the standard error of one process's logarithm by its own pairs, 0 if unknown."""

    logs: tuple[float, ...]
    n: int
    noise: float = 0.0


def of_pairs(variant_ms: Sequence[float], baseline_ms: Sequence[float]) -> Measured:
    """Return the ratio of two times that ran as interleaved pairs in one process.

    Its logarithm is the Hodges-Lehmann estimate: the median of (a + b) / 2 over any two of the pairs' logarithms, which
    may be the same one."""
    logs = np.log(baseline_ms) - np.log(variant_ms)
    means = (logs[:, None] + logs) / 2
    estimate = float(np.median(means[np.triu_indices(len(logs))]))
    noise = 0.0
    if len(logs) > 1:
        # the outer tenth on each side is clipped; of many normal values, 0.824 of the deviation is left
        winsorized = np.clip(logs, *np.quantile(logs, (0.1, 0.9)))
        noise = float(np.std(winsorized, ddof=1)) / 0.824 / math.sqrt(EFFICIENCY * len(logs))
    return Measured((estimate,), len(logs), noise)


def joined(processes: Sequence[Measured]) -> Measured:
    """Return one ratio of several processes, at least one, from that of each."""
    logs = tuple(log for process in processes for log in process.logs)
    noise = math.sqrt(statistics.fmean(process.noise**2 for process in processes))
    return Measured(logs, sum(process.n for process in processes), noise)


def judged(rows: Sequence[Measured]) -> list[Comparison]:
    """Judge the ratios of one table together (Benjamini and Hochberg 1995).

    The spread between processes is moderated by that of all rows, if at least three have one. One set of tests finds
    which ratios differ from one, another which lie within 3% of it; of what each finds, at most 2.5% is false on
    average. A ratio that both find is called the same."""
    if not rows:
        return []
    counts = np.array([len(row.logs) for row in rows])
    logs = np.array([statistics.fmean(row.logs) for row in rows])
    variances, freedoms = _variances(rows)
    errors = np.maximum(np.sqrt(variances / counts), LEAST_ERROR)
    reaches = errors * t_reach(freedoms)
    p_differ = 2 * _tail(-np.abs(logs) / errors, freedoms)
    # two one-sided tests in one: the nearer end of the margin decides
    p_same = _tail(-(math.log1p(MARGIN) - np.abs(logs)) / errors, freedoms)
    differ = scipy.stats.false_discovery_control(np.minimum(p_differ, 1)) <= LEVEL
    same = scipy.stats.false_discovery_control(p_same) <= LEVEL
    comparisons = []
    for i, (log, reach) in enumerate(zip(logs.tolist(), reaches.tolist(), strict=True)):
        verdict = UNCLEAR
        # a difference that is real but within 3% is of no use to anyone
        if same[i]:
            verdict = SAME
        elif differ[i]:
            verdict = FASTER if log > 0 else SLOWER
        ratio = Interval(math.exp(log), math.exp(log - reach), math.exp(log + reach), len(rows[i].logs))
        comparisons.append(Comparison(ratio, verdict))
    return comparisons


def _variances(rows: Sequence[Measured]) -> tuple[np.ndarray, np.ndarray]:
    """Return the variance by which each row is judged, and its degrees of freedom.

    With enough rows it is the variance between processes, moderated, and at least the squared `noise` of one process.
    With fewer it is the variance between processes, or for a single process its squared noise."""
    freedoms = np.array([len(row.logs) - 1 for row in rows])
    between = np.array([np.var(row.logs, ddof=min(1, len(row.logs) - 1)) for row in rows])
    within = np.array([row.noise**2 for row in rows])
    moderated = moderation.moderate(between, freedoms)
    if moderated is not None:
        return np.maximum(moderated[0], within), moderated[1]
    # one process speaks for itself alone
    alone = freedoms == 0
    return np.where(alone, within, between), np.where(alone, [row.n - 1 for row in rows], freedoms)


def _tail(t: np.ndarray, freedoms: np.ndarray) -> np.ndarray:
    """Return the probability that Student's t is at most `t`; 1 without freedom."""
    return np.nan_to_num(special.stdtr(freedoms, t), nan=1.0)
