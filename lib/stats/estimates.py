"""Estimate a quantity of each case from the medians of its processes.

There is one estimator for any number of rounds: the geometric mean. Its interval takes the variance between processes
as moderated by all cases of the experiment (see `moderation`). So even a case of two processes, or of one, has an
interval.
"""

import math
from collections.abc import Sequence

import numpy as np
import pandas as pd

from lib.stats import moderation
from lib.stats.intervals import t_reach

FEWEST_ALONE = 3  # processes that give a case an interval without the help of other cases
EFFICIENCY = 3 / math.pi  # the Hodges-Lehmann estimate's, relative to the mean, under normal noise
LEAST_ERROR = 1e-12  # a logarithm's error where all processes agree
VAGUE = 100.0  # times the lower end of an interval: beyond it the upper end, and so both ends, tell nothing
LEAST_FREEDOM = 1.0  # Student's t with less spans many powers of ten, so its interval tells nothing


def of_pairs(variant_ms: Sequence[float], baseline_ms: Sequence[float]) -> tuple[float, float]:
    """Estimate the logarithm of the ratio of two times that ran as interleaved pairs.

    The ratio is the baseline's time over the variant's. The estimate is Hodges's and Lehmann's: the median of
    (a + b) / 2 over any two of the pairs' logarithms, which may be the same one. Its standard error is 0 for a single
    pair."""
    logs = np.log(baseline_ms) - np.log(variant_ms)
    means = (logs[:, None] + logs) / 2
    estimate = float(np.median(means[np.triu_indices(len(logs))]))
    if len(logs) == 1:
        return estimate, 0.0
    # the outer tenth on each side is clipped, which leaves normal values 0.824 of their deviation
    winsorized = np.clip(logs, *np.quantile(logs, (0.1, 0.9)))
    return estimate, float(np.std(winsorized, ddof=1)) / 0.824 / math.sqrt(EFFICIENCY * len(logs))


def of_processes(logs: pd.Series, cases: pd.Series, noise: pd.Series | float = 0.0) -> pd.DataFrame:
    """Estimate the logarithm of each case from that of each of its processes.

    `logs` has one value a process, and `cases` the case of each. `noise` is the standard error of each process's value
    by its own samples, and the variance is at least its square.
    Returns one row a case: `log`, its standard `error`, and the `freedom` of Student's t.
    With three cases of several processes the variance is the moderated one. With fewer it is a case's own if it has at
    least three processes, and the error is NaN otherwise. It is NaN, too, with less than one degree of freedom, as of a
    single process among cases whose variances differ widely."""
    grouped = logs.groupby(cases)
    counts = grouped.count()
    freedom = counts - 1
    variance = grouped.var(ddof=1)
    moderated = moderation.moderate(variance.fillna(0).to_numpy(), freedom.to_numpy())
    if moderated is None:
        variance = variance.where(counts >= FEWEST_ALONE)
    else:
        freedom = pd.Series(moderated[1], counts.index)
        variance = pd.Series(moderated[0], counts.index).where(freedom >= LEAST_FREEDOM)
    # another case's calm processes say nothing of one whose own samples are far apart
    within = (noise**2 + 0 * logs).groupby(cases).mean()
    error = np.sqrt(variance.clip(lower=within) / counts).clip(lower=LEAST_ERROR)
    return pd.DataFrame({"log": grouped.mean(), "error": error, "freedom": freedom.astype(float)})


def geometric_means(medians: pd.Series, cases: pd.Series) -> pd.DataFrame:
    """Return the geometric mean of each case's medians with its 95% interval.

    All medians must be positive. Columns: `value`, `low`, `high`; the ends are NaN where there is no error."""
    estimates = of_processes(np.log(medians), cases)
    reach = estimates["error"] * t_reach(estimates["freedom"])
    ends = {"value": estimates["log"], "low": estimates["log"] - reach, "high": estimates["log"] + reach}
    return without_vague_ends(np.exp(pd.DataFrame(ends)))


def without_vague_ends(estimates: pd.DataFrame) -> pd.DataFrame:
    """Drop the ends of intervals that are too wide to tell anything."""
    _, low, high = estimates.columns
    is_vague = estimates[high] > VAGUE * estimates[low]
    return estimates.assign(**{low: estimates[low].mask(is_vague), high: estimates[high].mask(is_vague)})


def middles(medians: pd.Series, cases: pd.Series) -> pd.DataFrame:
    """Return the median of each case's medians between their minimum and maximum.

    It is for counts, bytes, errors and zeros. Columns: `value`, `low`, `high`; the ends of one process are NaN."""
    table = medians.groupby(cases).agg(value="median", low="min", high="max", count="count")
    several = table.pop("count") > 1
    return table.assign(low=table["low"].where(several), high=table["high"].where(several))
