"""Judge all ratios of one experiment on one machine together.

A verdict then says what the interval shows. A ratio is the baseline's time over the variant's: above one, the variant
is faster.
"""

import math

import numpy as np
import pandas as pd
import scipy  # loads scipy.stats when it is first used, which takes a second
from scipy import special

from lib.stats import estimates as estimating

MARGIN = 0.03  # two times are the same when their ratio is shown to lie within 3% of one
# The share of false findings in a table. It is half of 5%, since a table may be looked at twice: `ROUNDS=` measures
# again what was unclear at the first look, and the second look depends on the first.
LEVEL = 0.025
LARGEST_LOG = 300.0
LEAST_SHARE = 0.75  # the share of a probable gain's interval, in logarithms, that must lie above one


def judge(estimates: pd.DataFrame, counts: pd.Series) -> pd.DataFrame:
    """Return each ratio with its interval, verdict and advice.

    `estimates` has `log`, `error` and `freedom` of each ratio, as `estimates.of_processes` returns them.
    `counts` tells which ones are among the m comparisons; the others are judged at the same level.
    Columns: `speedup`, `speedup_low`, `speedup_high`, `verdict` (faster, slower, same, unclear), `advice` (proven,
    probable, none).

    Benjamini and Hochberg (1995) over all m find R at q = 2.5%. The interval is at the level 1 - q max(R, 1) / m
    (Benjamini and Yekutieli 2005), and `faster` and `slower` are the intervals without one.
    These intervals are exactly the findings. A p is found if p <= q R / m, and then the t interval at 1 - q R / m lies
    beside one. With R = 0 every p > q / m, and no interval at 1 - q / m lies beside one.
    `same` goes first: two one-sided tests, each at 2.5%, show the ratio within 3% of one. Such a ratio has the 95%
    interval of these tests, which lies within 3%.
    A gain is proven if it is `faster`. It is probable if the ratio is above 1.03, and three quarters of its interval
    lie above one, in logarithms.

    Simulated at 3, 6, 24 and 60 comparisons of 2 to 5 rounds, with Student's noise of 4 degrees of freedom and unequal
    variances (`tests/support/simulated_rounds.py`):
    - Of equal programs at most 0.8%, 0.7%, 0.1% and 0.02% are called faster or slower: some in at most 3.2% of tables.
    - With every second program 10% apart at most 1.6% of the findings in a table are false. Found are 63 to 95%, 72 to
      96%, 81 to 98% and 87 to 98% of these programs.
    - The intervals of what is found cover 93 to 97%, 95 to 98%, 98 to 99% and 98 to 99%; all that are shown at least
      95%; and those at 95%, as of times, 92 to 94%, 93 to 95%, 95 to 96% and 96%.
    - Benjamini and Hochberg's correction of `same` would find 9% instead of 50% of equal programs at 60 comparisons of
      3 rounds. Without it 0.8 to 3.5% of programs that are just 3% apart are called the same."""
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
    advice = pd.Series("none", log.index).mask(is_probable(log, low, high), "probable")
    advice = advice.mask(verdict == "faster", "proven")
    # no end of an interval is beyond what a float holds
    ends = pd.DataFrame({"speedup": log, "speedup_low": low, "speedup_high": high}).clip(-LARGEST_LOG, LARGEST_LOG)
    ratios = np.exp(ends)
    # findings keep their ends, since these are the verdict
    ratios[verdict == "unclear"] = estimating.without_vague_ends(ratios[verdict == "unclear"])
    return ratios.assign(verdict=verdict, advice=advice)


def level(p: pd.Series) -> float:
    """Return q max(R, 1) / m, the share of a distribution outside its interval.

    R of the m comparisons are what Benjamini and Hochberg find at q. A p of NaN is never found. Without any comparison
    it is q."""
    if p.empty:
        return LEVEL
    findings = scipy.stats.false_discovery_control(p.fillna(1.0)) <= LEVEL
    return LEVEL * max(findings.sum(), 1) / len(p)


def is_probable(log: pd.Series, low: pd.Series, high: pd.Series) -> pd.Series:
    """Tell if a logarithm is beyond the margin, and most of its interval above zero."""
    return (log > math.log1p(MARGIN)) & (high >= LEAST_SHARE * (high - low))
