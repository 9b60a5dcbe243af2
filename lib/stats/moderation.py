"""Estimate the spread between processes from all comparisons together.

This is empirical Bayes. Three processes give a variance with two degrees of freedom. Many comparisons of one experiment
together say how such variances are distributed, and that prior is worth further degrees of freedom for each (Smyth
2004, Stat. Appl. Genet. Mol. Biol. 3:3). Outlying comparisons take less of it (Phipson et al. 2016, Ann. Appl. Stat.
10:946).
"""

import numpy as np
import scipy  # loads scipy.stats when it is first used, which takes a second
from scipy import special

FEWEST = 3  # comparisons for a prior
PRIOR_FREEDOMS = np.geomspace(0.5, 200, 48)[:, None]  # candidates for the prior's degrees of freedom
ONE_ERROR = 0.5  # the loss of log likelihood at one standard error


def moderate(variances: np.ndarray, freedoms: np.ndarray) -> tuple[np.ndarray, np.ndarray] | None:
    """Return the moderated variance of each comparison, and its degrees of freedom.

    A comparison of one process, with no degrees of freedom of its own, has those of the prior. An outlying one takes
    only a share of them: the probability that it is no outlier. The prior has the fewest degrees of freedom within one
    standard error of the likeliest, so that a small table does not claim too much. Returns None for fewer than three
    positive variances."""
    positive = variances > 0  # the variance of equal values, or of one process, is 0 and has no logarithm
    if positive.sum() < FEWEST:
        return None
    weights = np.ones(len(variances))
    for _ in range(2):  # the first fit finds the outlying comparisons, the second gives them less weight
        levels, likelihood = _fit_levels(np.log(variances[positive]), freedoms[positive], weights[positive])
        best = likelihood.argmax()
        tails = special.fdtrc(freedoms[positive], PRIOR_FREEDOMS[best], variances[positive] / np.exp(levels[best]))
        weights[positive] = [_weigh(tail, np.delete(tails, i)) for i, tail in enumerate(tails)]
    least = np.flatnonzero(likelihood >= likelihood[best] - ONE_ERROR)[0]
    added = PRIOR_FREEDOMS[least] * weights
    total = added + freedoms
    # never more than all comparisons together have
    return (added * np.exp(levels[least]) + freedoms * variances) / total, np.minimum(total, freedoms.sum())


def _weigh(tail: float, others: np.ndarray) -> float:
    """Return the probability that a comparison is not an outlying one.

    It is `tail` over the tail that a variance of this rank would have if none were outlying, at most 1. A tail is the
    probability of so large a variance under the prior, and `others` are those of the other comparisons (Phipson et al.;
    `ProbNotOutlier` in fitFDistRobustly of their package limma). A larger variance never has a larger probability."""
    rarer = np.append(np.sort(others[others <= tail]), tail)
    # of n tails spread evenly from 0 to 1, number k lies at (k - 1/2) / n
    expected = (np.arange(len(rarer)) + 0.5) / (len(others) + 1)
    # the maximum over all rarer tails keeps it falling with the variance
    return min(1.0, float(np.max(rarer / expected)))


def _fit_levels(log_variances: np.ndarray, freedoms: np.ndarray, weights: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Fit the level of scaled F distributions to log variances, by Newton's method.

    Returns levels (candidates, 1) and log likelihoods (candidates,), for each of PRIOR_FREEDOMS."""
    levels = np.full_like(PRIOR_FREEDOMS, np.median(log_variances))
    for _ in range(30):
        # a level is the log of the prior's variance; a share is the F variable as a beta variable
        odds = freedoms * np.exp(log_variances - levels) / PRIOR_FREEDOMS
        share = odds / (1 + odds)
        # the log likelihood's first derivative by the level, and minus its second
        slope = (freedoms + PRIOR_FREEDOMS) / 2 * share - freedoms / 2
        curvature = (freedoms + PRIOR_FREEDOMS) / 2 * share * (1 - share)
        step = np.clip((slope @ weights) / (curvature @ weights + 1e-9), -2, 2)
        levels += step[:, None]
    logs = log_variances - levels
    # the density of a log ratio is that of the ratio times the ratio itself
    densities = scipy.stats.f.logpdf(np.exp(logs), freedoms, PRIOR_FREEDOMS) + logs
    return levels, densities @ weights
