"""Simulate times with known noise, to test the statistics on.

Each noise function draws `n` factors with a median of 1 and an interquartile range of `spread`.
"""

import numpy as np
from scipy import signal
from scipy.stats import norm

QUARTILE = norm.ppf(0.75)
DRIFT = 0.00075  # relative slowdown at each sample: 6% over 80


def normal(random: np.random.Generator, n: int, spread: float) -> np.ndarray:
    return 1 + spread * random.standard_normal(n) / (2 * QUARTILE)


def lognormal(random: np.random.Generator, n: int, spread: float) -> np.ndarray:
    """Draw from a lognormal distribution: a floor with a long tail above it."""
    sigma = 0.75
    return 1 + spread * (random.lognormal(0, sigma, n) - 1) / (2 * np.sinh(sigma * QUARTILE))


def bimodal(random: np.random.Generator, n: int, spread: float) -> np.ndarray:
    """Draw 70% at one level and 30% at another, five deviations above it."""
    levels = 5.0 * (random.random(n) < 0.3) + random.standard_normal(n)
    lower, middle, upper = norm.ppf(0.25 / 0.7), norm.ppf(0.5 / 0.7), 5 + norm.ppf(0.05 / 0.3)
    return 1 + spread * (levels - middle) / (upper - lower)


def spiky(random: np.random.Generator, n: int, spread: float) -> np.ndarray:
    """Draw from a normal distribution, but 5% come ten deviations late."""
    levels = 10.0 * (random.random(n) < 0.05) + random.standard_normal(n)
    lower, middle, upper = (norm.ppf(part / 0.95) for part in (0.25, 0.5, 0.75))
    return 1 + spread * (levels - middle) / (upper - lower)


def drifting(random: np.random.Generator, n: int, spread: float) -> np.ndarray:
    """Draw normal noise on a machine that slows down; the median is 1 at the start."""
    return normal(random, n, spread) * (1 + DRIFT * np.arange(n))


def autocorrelated(random: np.random.Generator, n: int, spread: float) -> np.ndarray:
    """Draw normal noise whose neighbours correlate with a coefficient of 0.5."""
    shocks = random.standard_normal(n)
    shocks[1:] *= np.sqrt(1 - 0.5**2)  # keeps the variance of the first
    return 1 + spread * signal.lfilter([1], [1, -0.5], shocks) / (2 * QUARTILE)


INDEPENDENT = {f.__name__: f for f in (normal, lognormal, bimodal, spiky)}
NOISES = INDEPENDENT | {f.__name__: f for f in (drifting, autocorrelated)}
