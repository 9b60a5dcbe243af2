"""Estimate the spread between processes from all comparisons together.

This is empirical Bayes. Three processes give a variance with two degrees of freedom. Many comparisons of one experiment
together say how such variances are distributed, and that prior is worth further degrees of freedom for each (Smyth
2004, Stat. Appl. Genet. Mol. Biol. 3:3). Outlying comparisons take less of it (Phipson et al. 2016, Ann. Appl. Stat.
10:946).
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import scipy  # loads scipy.stats when it is first used, which takes a second
from scipy import special

FEWEST = 3  # comparisons for a prior
ENOUGH = 20  # comparisons for a trend of the spread with the length of a case
TREND_LEVEL = 0.05  # at which the data must show that trend
FREEDOMS = np.geomspace(0.5, 200, 48)[:, None]  # candidates for the prior's degrees of freedom
ONE_ERROR = 0.5  # the loss of log likelihood at one standard error


@dataclass(frozen=True)
class Prior:
    """Hold the spread between processes that the comparisons of an experiment share.

    - `freedom`: the further processes that it counts as, for each comparison.
    - `level`, `slope`, `centre`: the variance is exp(level + slope (ln ms - centre)).
    - `pooled`: the degrees of freedom of all comparisons together, the most that one of them can have.
    - `tails`: how probable so large a variance is, for each comparison, in order.
    """

    freedom: float
    level: float
    slope: float
    centre: float
    pooled: float
    tails: tuple[float, ...]

    def at(self, ms: float) -> float:
        """Return the variance of a process's logarithm in comparisons of that length."""
        return math.exp(self.level + self.slope * (math.log(ms) - self.centre))

    def moderate(self, variance: float, freedom: int, ms: float) -> tuple[float, float]:
        """Return the moderated variance of a comparison and its degrees of freedom.

        An outlying one takes only part of the prior's degrees of freedom: the probability that it is no outlier."""
        tail = special.fdtrc(freedom, self.freedom, variance / self.at(ms))
        added = self.freedom * _belonging(tail, np.array(self.tails))
        total = added + freedom
        moderated = (added * self.at(ms) + freedom * variance) / total
        # never more than all comparisons together have, or than its own
        return moderated, min(total, max(self.pooled, freedom))


def _belonging(tail: float, tails: np.ndarray) -> float:
    """Return the probability that a comparison is not an outlying one.

    It compares how rare so large a variance is under the prior with how rare it is among the others. A larger variance
    never has a larger probability."""
    rarer = np.append(tails[tails <= tail], tail)
    expected = (np.arange(len(rarer)) + 0.5) / (len(tails) + 0.5)
    return min(1.0, float(np.max(rarer / expected)))


def prior(variances: Sequence[float], freedoms: Sequence[int], ms: Sequence[float]) -> Prior | None:
    """Estimate the prior from the variances of comparisons, at least three.

    It is None from fewer. It maximizes the likelihood of the scaled F distribution. Outlying ones are weighted by the
    probability that they belong, and a trend with the length of a case is used if the data show one. The degrees of
    freedom are the least within one standard error, so that a small table does not claim too much, with the level and
    slope fitted to them. `tails` are those of the likeliest fit."""
    positive = np.asarray(variances, dtype=float) > 0  # of equal values there is no logarithm
    if positive.sum() < FEWEST:
        return None
    log_variances = np.log(np.asarray(variances)[positive])
    own_freedoms = np.asarray(freedoms)[positive]
    lengths = np.log(np.asarray(ms)[positive])
    centre = float(lengths.mean())

    design = _design(log_variances, own_freedoms, lengths - centre)
    weights = np.ones(len(lengths))
    for _ in range(2):  # the first fit finds the outlying comparisons, the second gives them less weight
        coefficients, likelihood = _fitted(log_variances, own_freedoms, design, weights)
        best = likelihood.argmax()
        ratios = np.exp(log_variances - coefficients[best] @ design)
        tails = special.fdtrc(own_freedoms, FREEDOMS[best], ratios)
        weights = np.array([_belonging(tail, np.delete(tails, i)) for i, tail in enumerate(tails)])
    least = np.flatnonzero(likelihood >= likelihood[best] - ONE_ERROR)[0]

    slope = 0.0
    if len(design) == 2:
        slope = float(coefficients[least, 1])
    return Prior(
        freedom=float(FREEDOMS[least, 0]), level=float(coefficients[least, 0]), slope=slope, centre=centre,
        pooled=float(own_freedoms.sum()), tails=tuple(sorted(tails.tolist())),
    )  # fmt: skip


def _design(log_variances: np.ndarray, freedoms: np.ndarray, lengths: np.ndarray) -> np.ndarray:
    """Return the terms of the log variances: a level, and a trend if it is shown."""
    level = np.ones((1, len(lengths)))
    if len(lengths) < ENOUGH or np.ptp(lengths) == 0:
        return level
    trend = np.vstack([level, lengths])
    equal = np.ones(len(lengths))
    gain = _fitted(log_variances, freedoms, trend, equal)[1].max()
    gain -= _fitted(log_variances, freedoms, level, equal)[1].max()
    # the likelihood ratio test of one more parameter
    if 2 * gain > special.chdtri(1, TREND_LEVEL):
        return trend
    return level


def _fitted(
    log_variances: np.ndarray, freedoms: np.ndarray, design: np.ndarray, weights: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """Fit the linear model for each candidate of FREEDOMS, by Newton's method.

    Takes log variances (rows,) with their degrees of freedom and a `design` (terms, rows). Returns coefficients
    (candidates, terms) and log likelihoods (candidates,)."""
    coefficients = np.zeros((len(FREEDOMS), len(design)))
    coefficients[:, 0] = np.median(log_variances)
    for _ in range(30):
        ratio = freedoms * np.exp(np.clip(log_variances - coefficients @ design, -60, 60)) / FREEDOMS
        part = ratio / (1 + ratio)
        first = (freedoms + FREEDOMS) / 2 * part - freedoms / 2
        second = (freedoms + FREEDOMS) / 2 * part * (1 - part)
        gradient = np.einsum("fr,tr,r->ft", first, design, weights)
        curvature = np.einsum("fr,tr,sr,r->fts", second, design, design, weights)
        # where all comparisons have lost their weight
        curvature += 1e-9 * np.eye(len(design))
        step = np.linalg.solve(curvature, gradient[..., None])[..., 0]
        coefficients += np.clip(step, -2, 2)
        if np.abs(step).max() < 1e-6:
            break
    logs = np.clip(log_variances - coefficients @ design, -60, 60)
    # the density of a log ratio is that of the ratio times the ratio itself
    densities = scipy.stats.f.logpdf(np.exp(logs), freedoms, FREEDOMS) + logs
    return coefficients, (weights * densities).sum(axis=1)
