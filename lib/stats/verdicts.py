"""Judge all ratios of one experiment on one machine together, so that a verdict is what its interval shows.

A ratio is the baseline's time over the variant's: above one, the variant is faster.
"""

import math

import numpy as np
import pandas as pd
import scipy  # loads scipy.stats when it is first used, which takes a second
from scipy import special

MARGIN = 0.03  # two times are the same when their ratio is shown to lie within 3% of one
# The share of false findings in a table. It is half of 5%, since a table may be looked at twice: `ROUNDS=` measures
# again what was unclear at the first look, and the second look depends on the first.
LEVEL = 0.025
LEAST_SHARE = 0.75  # of a probable gain's interval, in logarithms, that lies above one


def judge(estimates: pd.DataFrame, counts: pd.Series) -> pd.DataFrame:
    """Return each ratio with its interval, verdict and advice.

    `estimates` has `log`, `error` and `freedom` of each ratio, as `estimates.of_processes` returns them.
    `counts` tells which ones count among the m comparisons; the others are judged at the same level.
    Columns: `speedup`, `speedup_low`, `speedup_high`, `verdict` (faster, slower, same, unclear) and `advice` (proven,
    probable, none).

    Benjamini and Hochberg (1995) over all m find R at q = 2.5%. The interval is at the level 1 - q max(R, 1) / m
    (Benjamini and Yekutieli 2005), and `faster` and `slower` are the intervals without one.
    These are the findings: BH finds p if p <= q R / m, and then the t interval at 1 - q R / m lies beside one. With
    R = 0 every p > q / m, and no interval at 1 - q / m lies beside one.
    `same` goes first: two one-sided tests, each at 2.5%, show the ratio within 3% of one. Such a ratio has the 95%
    interval of these tests, which lies within 3%.

    A gain is proven if it is `faster`. It is probable if the ratio is above 1.03 and three quarters of its interval, in
    logarithms, lie above one.

FIGURES"""
    log = estimates["log"]
    error = estimates["error"]
    freedom = estimates["freedom"]
    p = 2 * special.stdtr(freedom, -log.abs() / error)
    false_share = level(p[counts])
    # two one-sided tests in one: the nearer end of the margin decides; a p of NaN is never small
    is_same = special.stdtr(freedom, -(math.log1p(MARGIN) - log.abs()) / error) <= LEVEL
    tail = (false_share / 2 + 0 * log).mask(is_same, LEVEL)
    reach = error * special.stdtrit(freedom, 1 - tail)
    low = log - reach
    high = log + reach
    verdict = pd.Series("unclear", log.index)
    verdict = verdict.mask(low > 0, "faster").mask(high < 0, "slower").mask(is_same, "same")
    share_above = (high / (high - low)).clip(0, 1)
    is_probable = (log > math.log1p(MARGIN)) & (share_above >= LEAST_SHARE) & (verdict == "unclear")
    advice = pd.Series("none", log.index).mask(is_probable, "probable").mask(verdict == "faster", "proven")
    ratios = np.exp(pd.DataFrame({"speedup": log, "speedup_low": low, "speedup_high": high}))
    return ratios.assign(verdict=verdict, advice=advice)


def level(p: pd.Series) -> float:
    """Return q max(R, 1) / m, the part of each interval's distribution that lies outside it.

    R of the m comparisons are what Benjamini and Hochberg find at q; a p of NaN is never found. Without any, it is q."""
    if p.empty:
        return LEVEL
    findings = scipy.stats.false_discovery_control(p.fillna(1.0)) <= LEVEL
    return LEVEL * max(findings.sum(), 1) / len(p)
