"""Compare cases with their baselines, by the interleaved pairs of each round.

All comparisons of one call and machine are a table: the spread between processes is moderated by all of them, and their
verdicts are corrected together (see `lib.stats.comparisons`). Narrow a table down after it is made, not before.
"""

import pandas as pd

from lib.records import NotMeasured
from lib.report import tidy
from lib.stats.comparisons import Measured, joined, judged, of_pairs


def comparisons(frame: pd.DataFrame, phase: str = "") -> pd.DataFrame:
    """Return one row a case that ran in pairs, with its Comparison.

    The columns are its fields, `machine` and `comparison`: its baseline's time over its own. A `phase` compares that
    part of an iteration. Each machine is a table of its own. Raises NotMeasured without any pairs."""
    rows = []
    made = []
    for machine, of_machine in tidy.ok(frame).groupby("machine", sort=False):
        measured = []
        for values, records in tidy.cases(of_machine):
            pairs = _pairs(records, phase)
            if pairs:
                rows.append({**values, "machine": machine})
                measured.append(joined(list(pairs.values())))
        made += judged(measured)
    if not rows:
        raise NotMeasured("pairs with a baseline")
    return pd.DataFrame(rows).assign(comparison=made)


def _pairs(records: pd.DataFrame, phase: str = "") -> dict[int, Measured]:
    """Return the baseline's time over the case's, by the number of the round."""
    ending = f"{phase}_ms" if phase else "ms"
    pairs = records.reindex(columns=["round", f"paired_{ending}", f"baseline_{ending}"]).dropna()
    return {round: of_pairs(own_ms, other_ms) for round, own_ms, other_ms in pairs.itertuples(index=False)}
