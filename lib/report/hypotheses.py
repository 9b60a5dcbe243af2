"""Sets what theory predicts beside what was measured, one hypothesis a row."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
import pandas as pd
from scipy import stats

from lib.records.frame import Frame
from lib.report import compare, tables, tidy
from lib.stats.intervals import ACROSS, INSIDE, Interval

EQUAL, LEAST, MOST = "", "at least", "at most"  # what a prediction is of the quantity
AGREES, WIDE, KEPT, BROKEN, OPEN = "agrees", "too uncertain to test", "kept", "broken", "open"
NO_INTERVAL, NO_CEILING, NOT_MEASURED = "no interval", "no ceiling", "not measured"
COUNTED = 1e-3  # within which part of it a count, which has no interval, agrees
WIDEST = 1.25  # the factor to either side beyond which an interval is too wide to test a prediction
_NORMAL = stats.norm.ppf(0.975)
WORDS = (
    "The verdict compares the 95% interval with the prediction. Above or below: the whole interval is. Agrees: the "
    f"interval contains the prediction and reaches at most a factor of {WIDEST} to either side. A lower or upper bound "
    "is kept or broken if the whole interval lies on one side of it, and open if the interval contains it. An interval "
    "of the prediction widens it first. A count agrees within a thousandth."
)


@dataclass(frozen=True)
class Hypothesis:
    """A quantity with its unit, `how` theory predicts it, the number that follows and what was measured.

    `predicted` is an interval where it rests on a ceiling or another measurement, and None where that is missing.
    `limit` says whether it is the quantity itself, its least or its most."""

    quantity: str
    how: str
    predicted: float | Interval | None
    measured: Interval | None
    limit: str = EQUAL

    @property
    def verdict(self) -> str:
        """Return where the measured interval lies by the prediction, in a word of `WORDS`."""
        if self.measured is None:
            return NOT_MEASURED
        predicted = tables.as_interval(self.predicted)
        if predicted is None:
            return NO_CEILING
        if not self.measured.known:
            return NO_INTERVAL
        measured, expected = _widened(self.measured, predicted), predicted.value
        margin = COUNTED if measured.reach == 0 else 0
        least, most = expected * (1 - margin), expected * (1 + margin)
        if self.limit == EQUAL:
            found = measured.against((least, most))
            if found not in (ACROSS, INSIDE):
                return found
            narrow = measured.against((expected / WIDEST, expected * WIDEST)) == INSIDE
            return AGREES if narrow or expected <= 0 else WIDE
        found = measured.against((least, math.inf) if self.limit == LEAST else (-math.inf, most))
        return {INSIDE: KEPT, ACROSS: OPEN}.get(found, BROKEN)


def _widened(measured: Interval, predicted: Interval) -> Interval:
    """Widen a measured interval by that of its prediction, if known.

    The new width is that of the interval of their difference."""
    if not predicted.known:
        return measured
    value = measured.value
    down = math.hypot(value - measured.low, predicted.high - predicted.value)
    up = math.hypot(measured.high - value, predicted.value - predicted.low)
    return replace(measured, low=value - down, high=value + up)


def counted(value: float | None) -> Interval | None:
    """Return a count, such as bytes, as an interval of no width; None for none."""
    return None if value is None or math.isnan(value) else Interval(value, value, value, 1, 1)


def least(records: pd.DataFrame, case: Mapping) -> Interval | None:
    """Return `least_ms` of a case with the error of the ceilings it rests on; None without one."""
    found = counted(value(records, "least_ms", case))
    return found and found.widened(value(records, f"least_ms{tidy.LOG_ERROR}", case))


def median(records: pd.DataFrame, metric: str, case: Mapping) -> Interval | None:
    """Return the median of a metric of a case with its interval; None where it was not measured."""
    return tidy.median(tidy.select(records, **case), metric)


def value(records: pd.DataFrame, name: str, case: Mapping) -> float:
    """Return a fact of a case, or the median of its samples; NaN where it was not measured."""
    chosen = tidy.select(records, **case)
    found = tidy.column(chosen, name).dropna()
    if found.empty:
        return math.nan
    return float(pd.Series(found.iloc[0]).median()) if isinstance(found.iloc[0], list) else float(found.iloc[0])


def ratio(records: pd.DataFrame, metric: str, of: Mapping, to: Mapping) -> Interval | None:
    """Return the ratio of a metric of two cases with its interval; None where they were not both measured."""
    if None in of.values() or None in to.values():
        return None
    found = compare.comparison(records, metric, of, to)
    return found.ratio if found else None


def exponent(records: pd.DataFrame, metric: str, axis: str, case: Mapping) -> Interval | None:
    """Fit the exponent of a metric in an axis over all its measured values; None for fewer than two.

    It is the median slope between the medians of processes on log axes (Theil and Sen), with Kendall's interval: the
    ranks of slopes that chance leaves outside with 5%. Without noise the interval is the range of the slopes. Unknown
    where so few points allow none."""
    chosen = tidy.select(records, **{name: value for name, value in case.items() if name != axis}, status="ok")
    found = tidy.column(chosen, metric).map(_middle).dropna().astype(float)
    x, y = np.log(chosen.loc[found.index, axis].to_numpy(dtype=float)), np.log(found.to_numpy())
    one, other = np.triu_indices(len(x), 1)
    apart = x[one] != x[other]
    slopes = np.sort(((y[other] - y[one])[apart] / (x[other] - x[one])[apart]).round(12))  # equal ones stay equal
    if not len(slopes):
        return None
    n = np.array([len(x), *np.unique(x, return_counts=True)[1]])
    squares = n * (n - 1) * (2 * n + 5) / 18
    reach = _NORMAL * math.sqrt(squares[0] - squares[1:].sum())
    rank = (len(slopes) - reach) / 2  # of the interval's ends, counted from one
    skipped = max(0, round(rank) - 1)
    known = rank >= 0.5 or slopes[0] == slopes[-1]
    ends = (float(slopes[skipped]), float(slopes[-1 - skipped])) if known else (math.nan, math.nan)
    return Interval(float(np.median(slopes)), *ends, len(x), chosen["round"].nunique())


def _middle(value) -> float:
    """Return the median of samples, or a recorded number."""
    return float(np.median(value)) if isinstance(value, list) and value else value


def ends(records: pd.DataFrame, axis: str, case: Mapping, longest: bool = True) -> list[dict]:
    """Return the cases with the two largest (or least) measured values of an axis, the lesser first.

    Their values are None where fewer were measured."""
    rest = {name: value for name, value in case.items() if name != axis}
    values = sorted(set(tidy.select(records, **rest, status="ok")[axis])) if len(records) else []
    chosen = (values[-2:] if longest else values[:2]) if len(values) > 1 else [None, None]
    return [{**rest, axis: value} for value in chosen]


def table(
    hypotheses: Sequence[Hypothesis], records: pd.DataFrame, caption: str = "Predicted, measured"
) -> tables.Table:
    """Tabulate hypotheses: quantity, theory, prediction, measurement and verdict."""
    names = ["quantity", "by theory", "predicted", "measured", "verdict"]
    rows = [
        (", ".join(filter(None, (one.quantity, one.limit))), one.how, one.predicted, one.measured, one.verdict)
        for one in hypotheses
    ]
    frame = pd.DataFrame(rows, columns=names)
    frame["predicted"] = [tables.as_interval(value) for value in frame["predicted"]]
    sources = Frame(frame.assign(hardware=", ".join(dict.fromkeys(records["hardware"]))))
    sources = sources.with_origin(what="Median, ratio or count")
    note = " ".join(filter(None, [tables.provenance(sources), WORDS]))
    return tables.Table(frame, caption, note)
