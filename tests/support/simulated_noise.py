"""Simulate times with known noise, to test the statistics on.

Each noise function draws `n` factors with a median of 1 and an interquartile range of `spread`.
"""

import numpy as np
from scipy.stats import norm

QUARTILE = norm.ppf(0.75)


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


INDEPENDENT = {f.__name__: f for f in (normal, lognormal, bimodal, spiky)}
