"""Compare two times by their ratio: an interval, tests against limits, a table's verdicts.

The unit is the process. Three processes say little about how much processes differ. So that spread is also estimated
from all comparisons of an experiment, which adds degrees of freedom to each (empirical Bayes: Smyth 2004, Stat. Appl.
Genet. Mol. Biol. 3:3; outlying rows: Phipson et al. 2016, Ann. Appl. Stat. 10:946).

>>> table = [Measured((-0.36, -0.34, -0.37), PAIRS, n=90)]
>>> verdicts([moderated(one) for one in table])
['faster']
"""

import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import scipy
from scipy import special

from lib.stats.intervals import ABOVE, BELOW, ENOUGH_ROUNDS, INSIDE, WILCOXON_EFFICIENCY, Interval, median, spread

MARGIN = 0.03  # two times are called the same when their ratio is shown to lie within 3% of one
LEVEL = 0.05  # the share of false findings allowed, and one minus the confidence of an interval
# A table may be judged twice: before and after the sweep of its unclear rows, which depends on the first look. Each
# look gets half the level, so neither needs to know which one it is.
LOOKS = 2
LOOK_LEVEL = LEVEL / LOOKS
PAIRS, MEDIANS = "interleaved pairs", "medians of rounds"  # what a comparison can rest on
FASTER, SLOWER, SAME, UNCLEAR = "faster", "slower", "same", "unclear"
BELOW_ONE, ABOVE_ONE, NEAR_ONE = (0.0, 1.0), (1.0, math.inf), (1 / (1 + MARGIN), 1 + MARGIN)
ENOUGH_COMPARISONS = 20  # for a prior of an experiment's own, and for a trend in it
FEWEST_COMPARISONS = 3  # for any prior
SMALLEST_ERROR = 1e-12  # of a logarithm, where all processes agree, as byte counts do
Limits = tuple[float, float]


@dataclass(frozen=True)
class Comparison:
    """Hold a ratio, or any positive number, with its 95% interval.

    `error` is the standard error of its logarithm.
    `freedom` is that error's degrees of freedom: infinite for a number without noise, 0 where nothing can be decided.
    `by` says what it rests on."""

    ratio: Interval
    error: float
    freedom: float
    by: str

    def _above(self, limit: float) -> float:
        """Return the p value of the test whose alternative is that the number lies above the limit."""
        if limit in (0.0, math.inf):
            return float(limit > 0)
        distance = math.log(self.ratio.value / limit) / max(self.error, SMALLEST_ERROR)
        return float(special.stdtr(self.freedom, -distance))

    def inside(self, limits: Limits) -> float:
        """Return the p value of the test whose alternative is that the number lies within the limits."""
        if not math.isfinite(self.freedom) or not self.freedom:
            return float(not self.freedom or self.ratio.against(limits) != INSIDE)
        return max(self._above(limits[0]), 1 - self._above(limits[1]))

    def outside(self, limits: Limits) -> float:
        """Return the p value of the test whose alternative is that the number lies beyond one of the limits."""
        if not math.isfinite(self.freedom) or not self.freedom:
            return float(not self.freedom or self.ratio.against(limits) not in (BELOW, ABOVE))
        sides = [1 - self._above(limits[0])] * (limits[0] > 0) + [self._above(limits[1])] * (limits[1] < math.inf)
        return min(1.0, len(sides) * min(sides)) if sides else 1.0


def exact(value: float) -> Comparison:
    """Return a number without noise: printed, derived or counted."""
    return Comparison(Interval(value, math.nan, math.nan, 1, 1), 0.0, math.inf, "")


def estimated(value: Interval) -> Comparison:
    """Return a number with a known 95% interval.

    Without an interval, or with one that reaches zero, it decides nothing."""
    if not value.known or value.low <= 0:
        return Comparison(value, math.nan, 0, "")
    freedom = max(1, (value.rounds if value.rounds > 1 else value.n) - 1)
    error = math.log(value.high / value.low) / 2 / special.stdtrit(freedom, 1 - LEVEL / 2)
    return Comparison(value, error, freedom, "")


def quotient(one: Comparison, other: Comparison) -> Comparison:
    """Return the ratio of two comparisons whose errors are independent."""
    error, freedom = math.hypot(one.error, other.error), min(one.freedom, other.freedom)
    value, n = one.ratio.value / other.ratio.value, min(one.ratio.n, other.ratio.n)
    if not freedom or math.isinf(freedom):
        return Comparison(Interval(value, math.nan, math.nan, n, one.ratio.rounds), error, freedom, one.by)
    reach = math.exp(error * special.stdtrit(freedom, 1 - LEVEL / 2))
    return Comparison(Interval(value, value / reach, value * reach, n, one.ratio.rounds), error, freedom, one.by)


@dataclass(frozen=True)
class Measured:
    """Hold a ratio as it was measured: its logarithm in each process, from `n` samples in all.

    `noise` is the standard error of one process's logarithm by its own samples (0 if unknown). `ms` is the longer of
    the two times; the spread between processes may depend on it."""

    logs: tuple[float, ...]
    by: str
    n: int
    noise: float = 0.0
    ms: float = 1.0

    @property
    def variance(self) -> float:
        """Return the variance of the logarithms between processes; NaN of one process."""
        return float(np.var(self.logs, ddof=1)) if len(self.logs) > 1 else math.nan


def of_pairs(above: Sequence[float], below: Sequence[float]) -> Measured:
    """Return the ratio of two times in ms that ran as interleaved pairs in one process.

    It is the Hodges-Lehmann estimate over the logarithms of the pairs."""
    log, noise = _hodges_lehmann(np.log(above) - np.log(below))
    ms = max(statistics.median(above), statistics.median(below))
    return Measured((log,), PAIRS, len(above), noise, ms)


def joined(processes: Sequence[Measured]) -> Measured | None:
    """Return one ratio of several processes from that of each; None of none."""
    if not processes:
        return None
    logs = tuple(log for one in processes for log in one.logs)
    noise = math.sqrt(statistics.fmean(one.noise**2 for one in processes))
    ms = statistics.median(one.ms for one in processes)
    return Measured(logs, processes[0].by, sum(one.n for one in processes), noise, ms)


def _hodges_lehmann(logs: np.ndarray) -> tuple[float, float]:
    """Return the median of the means of all pairs of values, and its standard error."""
    means = ((logs[:, None] + logs) / 2)[np.triu_indices(len(logs))]
    error = spread(logs) / math.sqrt(WILCOXON_EFFICIENCY * len(logs)) if len(logs) > 1 else math.nan
    return float(np.median(means)), error


def of_medians(above: dict[int, Sequence[float]], below: dict[int, Sequence[float]]) -> Measured | None:
    """Return the ratio of two times by their medians in each common round.

    Takes samples keyed by round. None without a common round."""
    processes = []
    for r in sorted(above.keys() & below.keys()):
        one, other = statistics.median(above[r]), statistics.median(below[r])
        noise = math.hypot(_width(above[r]), _width(below[r])) / (2 * special.ndtri(1 - LEVEL / 2))
        n = min(len(above[r]), len(below[r]))
        processes.append(Measured((math.log(one / other),), MEDIANS, n, noise, max(one, other)))
    return joined(processes)


def _width(samples: Sequence[float]) -> float:
    """Return the width of the interval of a median's logarithm; 0 of too few samples."""
    found = median([samples])
    return math.log(found.high / found.low) if found.known and found.low > 0 else 0.0


@dataclass(frozen=True)
class Prior:
    """Hold the spread between processes that comparisons of an experiment share.

    It counts as `freedom` further processes for each comparison. The variance is exp(`level` + `slope` (ln ms -
    `centre`)). `pooled` has the degrees of freedom of all rows together, the most that one row can have. `tails` are
    the p values of the rows' own variances, in order."""

    freedom: float
    level: float
    slope: float
    centre: float
    pooled: float
    tails: tuple[float, ...]

    def variance(self, ms: float) -> float:
        """Return the variance of a process's logarithm for comparisons of that length."""
        return math.exp(self.level + self.slope * (math.log(ms) - self.centre))

    def moderate(self, variance: float, freedom: int, ms: float) -> tuple[float, float]:
        """Return the variance of a row and its degrees of freedom, moderated by those of all rows.

        An outlying row takes only part of the prior's degrees of freedom: the probability that it is no outlier."""
        tail = special.fdtrc(freedom, self.freedom, variance / self.variance(ms))
        added = self.freedom * _belonging(tail, np.array(self.tails))
        total = added + freedom
        return (added * self.variance(ms) + freedom * variance) / total, min(total, max(self.pooled, freedom))


def _belonging(tail: float, tails: np.ndarray) -> float:
    """Return the probability that a row is not an outlying one.

    It compares how rare so large a variance is under the prior with how rare it is among the rows. A larger variance
    never has a larger probability."""
    lesser = np.append(tails[tails <= tail], tail)
    return float(np.minimum(1, np.max(lesser / ((np.arange(len(lesser)) + 0.5) / (len(tails) + 0.5)))))


_FREEDOMS = np.geomspace(0.5, 200, 48)[:, None]  # candidates for the prior's degrees of freedom
_ONE_ERROR = 0.5  # the loss of log likelihood at one standard error


def prior(rows: Sequence[Measured]) -> Prior | None:
    """Estimate the prior from the comparisons with several processes; None from fewer than three.

    By maximum likelihood of the scaled F distribution. Outlying rows are weighted by the probability that they belong,
    and a trend with the length of a case is used if the data show one. The degrees of freedom are the least within one
    standard error, so that a small table does not claim too much."""
    rows = [row for row in rows if len(row.logs) > 1 and row.variance > 0]
    if len(rows) < FEWEST_COMPARISONS:
        return None
    z = np.log([row.variance for row in rows])
    d = np.array([len(row.logs) - 1 for row in rows])
    lengths = np.log([row.ms for row in rows])
    weights, centre = np.ones(len(rows)), float(lengths.mean())
    level, trend = np.ones((1, len(rows))), np.vstack([np.ones(len(rows)), lengths - centre])
    design = level
    if len(rows) >= ENOUGH_COMPARISONS and np.ptp(lengths) > 0:
        gain = np.subtract(*(_likelihoods(z, d, terms, weights)[1].max() for terms in (trend, level)))
        design = trend if 2 * gain > special.chdtri(1, LEVEL) else level
    for _ in range(2):  # the first fit finds the outlying rows
        found, likelihood = _likelihoods(z, d, design, weights)
        best = likelihood.argmax()
        tails = special.fdtrc(d, _FREEDOMS[best], np.exp(z - found[best] @ design))
        weights = np.array([_belonging(tail, tails[tails != tail]) for tail in tails])
    at = np.flatnonzero(likelihood >= likelihood[best] - _ONE_ERROR)[0]
    level, slope = [*map(float, found[at]), 0.0][:2]
    return Prior(float(_FREEDOMS[at, 0]), level, slope, centre, float(d.sum()), tuple(sorted(tails.tolist())))


def _likelihoods(z: np.ndarray, d: np.ndarray, design: np.ndarray, weights: np.ndarray) -> tuple[np.ndarray, ...]:
    """Fit the log variances for each of the prior's degrees of freedom, by Newton's method.

    Takes `z` (rows,) with `d` degrees of freedom and a linear `design` (terms, rows). Returns coefficients (freedoms,
    terms) and log likelihoods (freedoms,)."""
    found = np.zeros((len(_FREEDOMS), len(design)))
    found[:, 0] = np.median(z)
    for _ in range(30):
        ratio = d * np.exp(np.clip(z - found @ design, -60, 60)) / _FREEDOMS
        part = ratio / (1 + ratio)
        gradient = np.einsum("fr,tr,r->ft", (d + _FREEDOMS) / 2 * part - d / 2, design, weights)
        curvature = np.einsum("fr,tr,sr,r->fts", (d + _FREEDOMS) / 2 * part * (1 - part), design, design, weights)
        step = np.linalg.solve(curvature + 1e-9 * np.eye(len(design)), gradient[..., None])[..., 0]
        found += np.clip(step, -2, 2)
        if np.abs(step).max() < 1e-6:
            break
    logs = np.clip(z - found @ design, -60, 60)
    return found, (weights * (scipy.stats.f.logpdf(np.exp(logs), d, _FREEDOMS) + logs)).sum(1)


def moderated(found: Measured, prior: Prior | None = None) -> Comparison:
    """Turn a measured ratio into a comparison, with the help of a prior if given.

    With a prior, the variance is at least that of a process's own samples. One process without a prior has only that,
    and the interval speaks for it alone. Medians were timed one after the other: without a prior, fewer than three
    processes decide nothing."""
    count = len(found.logs)
    variance, freedom = found.variance, count - 1
    if prior and count > 1:
        variance, freedom = prior.moderate(variance, count - 1, found.ms)
    elif prior:
        variance, freedom = prior.variance(found.ms), prior.freedom
    elif count == 1:
        variance, freedom = found.noise**2, found.n - 1
    if prior:
        variance = max(variance, found.noise**2)
    middle, error = statistics.fmean(found.logs), max(math.sqrt(variance / count), SMALLEST_ERROR)
    reach = math.sqrt(variance / count) * special.stdtrit(freedom, 1 - LEVEL / 2) if freedom else math.nan
    ends = (middle, middle - reach, middle + reach)
    by = f"{found.by}, one process" if count == 1 else found.by
    if count < ENOUGH_ROUNDS and not prior and found.by == MEDIANS:
        freedom = 0
    return Comparison(Interval(*map(math.exp, ends), found.n, count), error, freedom, by)


def paired(above: Sequence[float], below: Sequence[float]) -> Comparison:
    """Compare two times by the interleaved pairs of one process, for that process alone."""
    return moderated(of_pairs(above, below))


def verdicts(comparisons: Sequence[Comparison]) -> list[str]:
    """Return the verdicts of comparisons that stand together (Benjamini and Hochberg 1995).

    On average at most 2.5% of those called faster or slower are false, and as many of those called the same."""
    if not comparisons:
        return []
    differ, alike = (scipy.stats.false_discovery_control(p) <= LOOK_LEVEL for p in (
        [one.outside((1.0, 1.0)) for one in comparisons], [one.inside(NEAR_ONE) for one in comparisons]
    ))  # fmt: skip
    sides = [FASTER if one.ratio.value < 1 else SLOWER for one in comparisons]
    return [
        side if shown else SAME if within else UNCLEAR for side, shown, within in zip(sides, differ, alike, strict=True)
    ]
