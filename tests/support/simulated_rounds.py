"""Simulate tables of comparisons whose truth is known, and count how often they are judged wrongly.

`python tests/support/simulated_rounds.py` prints the figures that `lib.stats.verdicts` states. It takes some minutes.
"""

import math

import numpy as np
import pandas as pd

from lib.stats import estimates, verdicts
from lib.stats.intervals import t_reach

ROWS = (3, 6, 24, 60)
ROUNDS = (2, 3, 4, 5)
SPREAD = 0.02  # the median deviation between processes
UNEQUAL = 0.5  # the deviation of its logarithm: comparisons differ in their variances
FREEDOM = 4  # of Student's noise


def judgements(rows: int, rounds: int, tables: int, gain: float = 0.0) -> pd.DataFrame:
    """Judge tables of comparisons, every second of which has a gain, such as 0.1, or a loss.

    Returns one row a comparison: what `verdicts.judge` returns, its number of the `table`, the true `log`, and if its
    95% interval covers that (`covered_95`)."""
    random = np.random.default_rng([rows, rounds])
    judged = []
    for number in range(tables):
        spread = SPREAD * np.exp(UNEQUAL * random.standard_normal(rows))
        truth = np.where(np.arange(rows) % 2, random.choice([-1, 1], rows) * math.log1p(gain), 0.0)
        # the variance of Student's t is n / (n - 2)
        noise = random.standard_t(FREEDOM, (rows, rounds)) / math.sqrt(FREEDOM / (FREEDOM - 2))
        logs = pd.Series((truth[:, None] + spread[:, None] * noise).ravel())
        estimated = estimates.of_processes(logs, pd.Series(np.repeat(np.arange(rows), rounds)))
        table = verdicts.judge(estimated, pd.Series(True, estimated.index))
        reach = estimated["error"] * t_reach(estimated["freedom"])
        judged.append(table.assign(table=number, log=truth, covered_95=(estimated["log"] - truth).abs() <= reach))
    return pd.concat(judged, ignore_index=True)


def figures(table: pd.DataFrame) -> pd.Series:
    """Return the shares of what is judged wrongly, and the coverage of intervals.

    `false` and `tables_with_false` are of equal programs called faster or slower."""
    is_finding = table["verdict"].isin(["faster", "slower"])
    is_false = is_finding & (table["log"] == 0)
    covered = np.log(table["speedup_low"]).le(table["log"]) & np.log(table["speedup_high"]).ge(table["log"])
    return pd.Series(
        {
            "false": is_false[table["log"] == 0].mean(),
            "tables_with_false": is_false.groupby(table["table"]).any().mean(),
            "false_of_findings": (is_false.groupby(table["table"]).sum() / is_finding.groupby(table["table"]).sum())
            .fillna(0)
            .mean(),
            "power": is_finding[table["log"] != 0].mean(),
            "covered": covered.mean(),
            "covered_of_findings": covered[is_finding].mean(),
            "covered_95": table["covered_95"].mean(),
        }
    )


if __name__ == "__main__":
    for gain in (0.0, 0.1):
        print(f"every second one {gain:.0%} apart")
        for rows in ROWS:
            for rounds in ROUNDS:
                shares = figures(judgements(rows, rounds, tables=3600 // rows + 240, gain=gain))
                print(rows, rounds, shares.round(4).to_dict(), flush=True)
