"""Compare cases with their baselines, by the interleaved pairs of each round.

All comparisons of one call and machine are a table: the spread between processes is moderated by all of them, and their
verdicts are corrected together (see `lib.stats.comparisons`). Narrow a table down after it is made, not before.
"""

import contextlib
import math
import statistics
import sys
from collections.abc import Mapping

import numpy as np
import pandas as pd

from lib.records import NotMeasured
from lib.report import tidy
from lib.stats.comparisons import UNCLEAR, Comparison, Measured, joined, judged, of_pairs
from lib.stats.intervals import ENOUGH_ROUNDS, Interval
from lib.validate import BadInput

WITH_ITSELF = Measured(logs=(0.0,), n=sys.maxsize)  # known exactly


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


def between(frame: pd.DataFrame, cases: Mapping[str, tuple[Mapping, Mapping | None]]) -> dict[str, Comparison]:
    """Compare, under each name, two cases that both ran in pairs with the same baseline.

    Each is one case of one machine, told by its values; the second is None if it is that baseline itself. Their ratio,
    the second's time over the first's, is the quotient of their two ratios in each round. Names whose cases were not
    measured are left out."""
    measured = {}
    for name, (case, other) in cases.items():
        with contextlib.suppress(NotMeasured):
            pairs = _pairs(tidy.ok(tidy.only(frame, **case)))
            other_pairs = dict.fromkeys(pairs, WITH_ITSELF)
            if other is not None:
                other_pairs = _pairs(tidy.ok(tidy.only(frame, **other)))
            processes = []
            for round in sorted(pairs.keys() & other_pairs.keys()):
                first = pairs[round]
                second = other_pairs[round]
                log = first.logs[0] - second.logs[0]
                # as sure as that with fewer pairs
                n = min(first.n, second.n)
                processes.append(Measured((log,), n, math.hypot(first.noise, second.noise)))
            if processes:
                measured[name] = joined(processes)
    return dict(zip(measured, judged(list(measured.values())), strict=True))


def _pairs(records: pd.DataFrame, phase: str = "") -> dict[int, Measured]:
    """Return the baseline's time over the case's, by the number of the round."""
    ending = f"{phase}_ms" if phase else "ms"
    pairs = records.reindex(columns=["round", f"paired_{ending}", f"baseline_{ending}"]).dropna()
    return {round: of_pairs(own_ms, other_ms) for round, own_ms, other_ms in pairs.itertuples(index=False)}


def of_medians(frame: pd.DataFrame, metric: str, case: Mapping, other: Mapping) -> Comparison:
    """Compare two cases that cannot run in one process, by their medians of each round.

    Each is one case of one machine. The ratio is the second's over the first's; of fewer than three rounds it is
    unclear. Raises NotMeasured if they share no round, and BadInput for several cases or machines."""
    medians = []
    for values in (case, other):
        records = tidy.ok(tidy.only(frame, **values))
        if records["round"].duplicated().any():
            raise BadInput(f"{metric}: got several cases or machines for {dict(values)}, expected one")
        medians.append(records.set_index("round")[metric].map(statistics.median))
    logs = np.log(medians[1] / medians[0]).dropna()
    if logs.empty:
        raise NotMeasured("both cases in one round")
    if len(logs) < ENOUGH_ROUNDS:
        # few processes that timed one after the other decide nothing; there are two in each round
        return Comparison(Interval(math.exp(logs.mean()), math.nan, math.nan, 2 * len(logs)), UNCLEAR)
    # there are no pairs, and their number matters for a single process alone
    return judged([Measured(tuple(logs), n=0)])[0]
