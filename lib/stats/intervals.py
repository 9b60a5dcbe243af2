"""Compute intervals: of a median from its samples, and by Student's t."""

import functools
import math
from collections.abc import Sequence

import numpy as np
from scipy import special

CONFIDENCE = 0.95


def t_reach(freedom: np.ndarray | int) -> np.ndarray:
    """Return how many standard errors a t interval reaches to each side."""
    return special.stdtrit(freedom, (1 + CONFIDENCE) / 2)


def order_statistics(samples: Sequence[float]) -> tuple[float, float]:
    """Return the ends of the median's interval (Hettmansperger and Sheather 1986).

    They are the narrowest pair of order statistics that covers at least 95%, moved towards the next pair inward by
    interpolation, to cover just 95%. NaN, NaN when even the extremes cover less, as of fewer than 6 samples."""
    ordered = sorted(samples)
    rank, part = _rank(len(ordered))
    if rank < 1:
        return math.nan, math.nan
    # a weighted mean of two equal samples could differ from them by rounding, and this sum cannot
    low = ordered[rank - 1] + part * (ordered[rank] - ordered[rank - 1])
    high = ordered[-rank] - part * (ordered[-rank] - ordered[-rank - 1])
    return float(low), float(high)


@functools.cache
def _rank(n: int) -> tuple[int, float]:
    """Return the rank of both ends, from 1, and how far they move to the next one.

    They move inward by that part of the way, which is Hettmansperger's and Sheather's. The rank is 0 if even the
    extremes cover too little."""
    below = special.bdtr(np.arange(n + 1), n, 0.5)  # probability that at most so many of n lie below the median
    rank = int(np.searchsorted(below, (1 - CONFIDENCE) / 2))
    if rank < 1:
        return 0, 0.0
    covers = 1 - 2 * below[rank - 1]
    covers_narrower = 1 - 2 * below[rank]
    excess = (covers - CONFIDENCE) / (covers - covers_narrower)
    part = (n - rank) * excess / (rank + (n - 2 * rank) * excess)
    return rank, float(part)
