"""Sets what theory predicts beside what was measured, one hypothesis a row; knows no experiment."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import pandas as pd

from lib.report import compare, tables, tidy
from lib.stats.intervals import Interval

EQUAL, LEAST, MOST = "", "at least", "at most"  # what a prediction is of the quantity
AGREES, ABOVE, BELOW = "agrees", "above", "below"
KEPT, BROKEN, OPEN = "kept", "broken", "open"
NO_INTERVAL, NO_CEILING, NOT_MEASURED = "no interval", "no ceiling", "not measured"
COUNTED = 1e-3  # within which part of it a count, which has no interval, agrees
WORDS = (
    "By the interval of 95%: a prediction agrees where the interval holds it, and the measured value is above or below "
    "where the whole interval is; what is predicted as the least or the most is kept or broken where the whole "
    "interval says so, and open where the interval holds the limit. A count agrees within a thousandth."
)


@dataclass(frozen=True)
class Hypothesis:
    """A quantity with its unit, where it was measured, `how` theory has it, the number that follows (None where it
    needs a ceiling or a case that was not measured), what was measured, and whether the prediction is the quantity
    itself or its least or its most."""

    quantity: str
    how: str
    predicted: float | None
    measured: Interval | None
    limit: str = EQUAL

    @property
    def verdict(self) -> str:
        """Whether the interval of what was measured holds the prediction, in a word of `WORDS`."""
        if self.measured is None:
            return NOT_MEASURED
        if self.predicted is None or math.isnan(self.predicted):
            return NO_CEILING
        if not self.measured.known:
            return NO_INTERVAL
        margin = COUNTED if self.measured.reach == 0 else 0
        above = self.measured.low > self.predicted * (1 + margin)
        below = self.measured.high < self.predicted * (1 - margin)
        if self.limit == EQUAL:
            return ABOVE if above else BELOW if below else AGREES
        right, wrong = (above, below) if self.limit == LEAST else (below, above)
        return BROKEN if wrong else KEPT if right or margin else OPEN


def counted(value: float | None) -> Interval | None:
    """A count, such as bytes, as the interval that it needs none of; None for none."""
    return None if value is None or math.isnan(value) else Interval(value, value, value, 1, 1)


def power(ratio: Interval | None, times: float) -> Interval | None:
    """The exponent of a power law of which so many times the size has this ratio; None without a ratio."""
    if ratio is None:
        return None
    ends = (math.log(end) / math.log(times) for end in (ratio.value, ratio.low, ratio.high))
    return Interval(*ends, ratio.n, ratio.rounds)


def median(records: pd.DataFrame, metric: str, case: Mapping) -> Interval | None:
    """The median of a metric of a case with its interval; None where it was not measured."""
    return tidy.median(tidy.select(records, **case), metric)


def value(records: pd.DataFrame, name: str, case: Mapping) -> float:
    """A fact of a case, or the median of its samples; NaN where it was not measured."""
    chosen = tidy.select(records, **case)
    found = tidy.column(chosen, name).dropna()
    if found.empty:
        return math.nan
    return float(pd.Series(found.iloc[0]).median()) if isinstance(found.iloc[0], list) else float(found.iloc[0])


def ratio(records: pd.DataFrame, metric: str, of: Mapping, to: Mapping) -> Interval | None:
    """The ratio of a metric of two cases with its interval; None where they were not both measured."""
    if None in of.values() or None in to.values():
        return None
    found = compare.comparison(records, metric, of, to)
    return found.ratio if found else None


def exponent(records: pd.DataFrame, metric: str, axis: str, low: Mapping, high: Mapping) -> Interval | None:
    """Find the exponent of a metric in an axis from two cases; None where they were not both measured."""
    return power(ratio(records, metric, high, low), high[axis] / low[axis]) if high[axis] else None


def ends(records: pd.DataFrame, axis: str, case: Mapping, longest: bool = True) -> list[dict]:
    """The case with the two largest, or the two least, values of an axis with times, the lesser first; both None
    where there are fewer."""
    rest = {name: value for name, value in case.items() if name != axis}
    values = sorted(set(tidy.select(records, **rest, status="ok")[axis])) if len(records) else []
    chosen = (values[-2:] if longest else values[:2]) if len(values) > 1 else [None, None]
    return [{**rest, axis: value} for value in chosen]


def table(
    hypotheses: Sequence[Hypothesis], records: pd.DataFrame, caption: str = "Predicted, measured"
) -> tables.Table:
    """One row a hypothesis: the quantity, what the prediction rests on, both numbers and the verdict; the note names
    the hardware of the records."""
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
