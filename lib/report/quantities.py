"""Finds the numbers that claims speak of, in records and in printed tables, and what each shows of its limits; knows no
experiment.
"""

import math
from collections.abc import Mapping
from dataclasses import replace

import pandas as pd
from scipy import stats as distributions

from lib.report import compare, sentences, tidy
from lib.report.claims import LESS, MORE, Found, compared, estimated, known
from lib.report.sentences import fields
from lib.stats import intervals
from lib.stats.intervals import Comparison, Interval

Data = Mapping[str, pd.DataFrame]  # the records of each experiment by its name, or printed tables in their shape
SIZED = "at size {size}, context {context_length}"  # where a model was measured, in words


def rows(data: Data, experiment: str, **where) -> pd.DataFrame:
    """Select the rows of an experiment with these values of fields; none where there is no such experiment."""
    records = data.get(experiment, pd.DataFrame({"status": []}))
    records.attrs.setdefault("fields", [])
    return _select(records, where)


def _select(records: pd.DataFrame, where: Mapping) -> pd.DataFrame:
    """Select rows by values of fields; of a printed table by those fields that it has."""
    return tidy.select(records, **{name: of for name, of in where.items() if name in records or not printed(records)})


def printed(records: pd.DataFrame) -> bool:
    """Whether these are the rows of a printed table, each a single number, and no records."""
    return bool(records.attrs.get("printed"))


def names(records: pd.DataFrame) -> tuple[str, ...]:
    """The names of records, as the report links them; none of a printed table."""
    return () if printed(records) else sentences.names(records, {})


def cases(records: pd.DataFrame, **where) -> list[dict]:
    """The cases with these values of fields, in the order in which values are introduced."""
    chosen = _select(records, where)
    measured = chosen.loc[chosen["status"] == "ok", records.attrs["fields"]].drop_duplicates()
    return tidy.ordered(measured, " ".join(measured)).to_dict("records") if len(measured) else []


def ratio(
    records: pd.DataFrame, metric: str, of: Mapping, to: Mapping, within: tuple[float, float], label: str
) -> list[Found]:
    """The ratio of a metric of one case to that of another: one number, or none where they were not both measured.
    `label` has the fields of the first in it. What the table of an experiment's verdicts leaves open, stays so."""
    one, other = tidy.select(records, **of), tidy.select(records, **to)
    if printed(records):
        values = [chosen[metric].dropna().iloc[:1] for chosen in (one, other)]
        if any(value.empty for value in values):
            return []
        above, below = (float(value.iloc[0][0]) for value in values)
        return [known(label.format(**of), above / below, within)]
    found = compare.judged(records, metric, of, to)
    if found is None:
        return []
    bears = compared(label.format(**of), found[0], within, names(one) + names(other))
    # a claim says no more of a case and its baseline than the table of all of them does
    shown = within not in (LESS, MORE) or found[1] in ("faster", "slower")
    return [bears if shown else replace(bears, outside=1.0, inside=1.0)]


def contrast(
    records: pd.DataFrame, metric: str, one: tuple[Mapping, Mapping], other: tuple[Mapping, Mapping],
    within: tuple[float, float], label: str,
) -> list[Found]:  # fmt: skip
    """How the ratio of one pair of cases relates to that of another: one number, or none where one was not measured."""
    if printed(records):
        above, below = (ratio(records, metric, *pair, within, label) for pair in (one, other))
        found = zip(above, below, strict=False)
        return [known(first.of, first.value.value / second.value.value, within) for first, second in found]
    first, second = (compare.comparison(records, metric, *pair) for pair in (one, other))
    if first is None or second is None:
        return []
    error, freedom = math.hypot(first.error, second.error), min(first.freedom, second.freedom)
    quotient = first.ratio.value / second.ratio.value
    reach = math.exp(error * distributions.t.ppf(0.975, freedom)) if freedom else math.nan
    value = Interval(
        quotient, quotient / reach, quotient * reach, min(first.ratio.n, second.ratio.n), first.ratio.rounds
    )
    both = Comparison(value, 1.0, 1.0, 0.05, error, freedom, intervals.MEDIANS)
    used = [name for case in (*one, *other) for name in names(tidy.select(records, **case))]
    return [compared(label.format(**one[0]), both, within, used)]


def ratios(
    records: pd.DataFrame, metric: str, of: Mapping, to: Mapping, within: tuple[float, float], label: str, **where
) -> list[Found]:
    """The same for every case with the values `of` and `where`, beside the otherwise equal one with the values `to`."""
    chosen = cases(records, **of, **where)
    return [one for case in chosen for one in ratio(records, metric, case, {**case, **to}, within, label)]


def medians(records: pd.DataFrame, metric: str, within: tuple[float, float], label: str, **where) -> list[Found]:
    """The median of a metric in every case with these values of fields."""
    found = []
    for case in cases(records, **where):
        chosen = tidy.select(records, **case)
        by_round = tidy.samples(chosen, metric)
        if by_round and printed(records):
            found.append(known(label.format(**case), by_round[1][0], within))
        elif by_round:
            value = intervals.median(list(by_round.values()))
            found.append(estimated(label.format(**case), value, within, names(chosen)))
    return found


def exponent(
    records: pd.DataFrame, metric: str, axis: str, within: tuple[float, float], label: str, **where
) -> list[Found]:
    """How a metric grows from the least to the largest value of an axis, as the exponent of a power law, in each group
    of cases that differ in the axis alone."""
    found, groups = [], {}
    for case in cases(records, **where):
        rest = {name: value for name, value in case.items() if name != axis}
        groups.setdefault(fields(rest), []).append(case)
    for group in groups.values():
        low, high = (pick(group, key=lambda case: case[axis]) for pick in (min, max))
        width = math.log(high[axis] / low[axis])
        if width:
            limits = tuple(math.exp(limit * width) if limit < math.inf else math.inf for limit in within)
            for one in ratio(records, metric, high, low, limits, label):
                ends = (one.value.value, one.value.low, one.value.high)
                power = Interval(*(math.log(x) / width for x in ends), one.value.n, one.value.rounds)
                found.append(Found(one.of, power, within, one.outside, one.inside, records=one.records))
    return found
