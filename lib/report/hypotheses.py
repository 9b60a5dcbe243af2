"""Sets what theory predicts beside what was measured, one hypothesis a row."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import pandas as pd

from lib.report import compare, tables, tidy
from lib.stats.intervals import ACROSS, INSIDE, Interval

EQUAL, LEAST, MOST = "", "at least", "at most"  # what a prediction is of the quantity
AGREES, WIDE, KEPT, BROKEN, OPEN = "agrees", "too uncertain to test", "kept", "broken", "open"
NO_INTERVAL, NO_CEILING, NOT_MEASURED = "no interval", "no ceiling", "not measured"
COUNTED = 1e-3  # within which part of it a count, which has no interval, agrees
WIDEST = 1.25  # the factor to either side beyond which an interval is too wide to test a prediction
WORDS = (
    "By the interval of 95%: what was measured is above or below the prediction where the whole interval is. It agrees "
    f"where the interval holds the prediction and reaches no further than a factor of {WIDEST} to either side. A least "
    "or a most is kept or broken where the whole interval says so, and open where the interval holds it. A count "
    "agrees within a thousandth."
)


@dataclass(frozen=True)
class Hypothesis:
    """A quantity with its unit, `how` theory predicts it, the number that follows and what was measured.

    `predicted` is None where it needs a ceiling or a case that was not measured. `limit` says whether it is the
    quantity itself, its least or its most."""

    quantity: str
    how: str
    predicted: float | None
    measured: Interval | None
    limit: str = EQUAL

    @property
    def verdict(self) -> str:
        """Return where the measured interval lies by the prediction, in a word of `WORDS`."""
        if self.measured is None:
            return NOT_MEASURED
        if self.predicted is None or math.isnan(self.predicted):
            return NO_CEILING
        if not self.measured.known:
            return NO_INTERVAL
        margin = COUNTED if self.measured.reach == 0 else 0
        least, most = self.predicted * (1 - margin), self.predicted * (1 + margin)
        if self.limit == EQUAL:
            found = self.measured.against((least, most))
            if found not in (ACROSS, INSIDE):
                return found
            narrow = self.measured.against((self.predicted / WIDEST, self.predicted * WIDEST)) == INSIDE
            return AGREES if narrow or self.predicted <= 0 else WIDE
        found = self.measured.against((least, math.inf) if self.limit == LEAST else (-math.inf, most))
        return {INSIDE: KEPT, ACROSS: OPEN}.get(found, BROKEN)


def counted(value: float | None) -> Interval | None:
    """Return a count, such as bytes, as an interval of no width; None for none."""
    return None if value is None or math.isnan(value) else Interval(value, value, value, 1, 1)


def power(ratio: Interval | None, times: float) -> Interval | None:
    """Return the exponent by which `times` the size gives this ratio; None without a ratio."""
    if ratio is None:
        return None
    ends = (math.log(end) / math.log(times) for end in (ratio.value, ratio.low, ratio.high))
    return Interval(*ends, ratio.n, ratio.rounds)


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


def exponent(records: pd.DataFrame, metric: str, axis: str, low: Mapping, high: Mapping) -> Interval | None:
    """Find the exponent of a metric in an axis from two cases; None where they were not both measured."""
    return power(ratio(records, metric, high, low), high[axis] / low[axis]) if high[axis] else None


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
    frame["predicted"] = frame["predicted"].astype(float)
    sources = frame.assign(hardware=", ".join(dict.fromkeys(records["hardware"])))
    sources.attrs["what"] = "Median, ratio or count"
    note = " ".join(filter(None, [tables.provenance(sources), WORDS]))
    return tables.Table(frame, caption, note)
