"""Sentences that are computed from records, each with its verdict and its evidence; measures nothing.

Every function returns a `Statement` whose wording follows from an interval: what the data does not show is not
said, and what was not measured is said to be so.
"""

import functools
import html
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace

import pandas as pd

from lib.records.record import called
from lib.records.staleness import left_out
from lib.report import compare as verdicts
from lib.report import hypotheses, tidy
from lib.report.headings import heading
from lib.stats import comparisons, digits
from lib.stats.intervals import Interval

NO_DATA = "no data"
HUGE = 9.0  # a difference, relative to one, that it says nothing to be able to see


@dataclass(frozen=True)
class Statement:
    """A sentence, its verdict, the evidence that it follows from and the names of the records that this rests on."""

    text: str
    verdict: str
    evidence: str
    records: tuple[str, ...] = ()

    def _repr_html_(self) -> str:
        mark = html.escape(self.verdict)
        return (
            f'<div class="claim" data-verdict="{mark}"><p>{html.escape(self.text)}</p>'
            f"<details><summary>evidence</summary>{self._evidence()}</details></div>"
        )

    def mark(self) -> str:
        """The verdict alone as HTML, which opens to the sentence and its evidence."""
        verdict = html.escape(self.verdict)
        return (
            f'<details class="mark" data-verdict="{verdict}"><summary>{verdict}</summary>'
            f"<div><p>{html.escape(self.text)}</p>{self._evidence()}</div></details>"
        )

    def _evidence(self) -> str:
        links = ", ".join(f'<a href="#{anchor(name)}">{html.escape(name)}</a>' for name in self.records)
        records = f'<p class="records">Records: {links}.</p>' if links else ""
        return f"<p>{html.escape(self.evidence)}</p>{records}"


def anchor(record: str) -> str:
    """The id that a record, by its name, has in the report."""
    return "record-" + re.sub(r"[^A-Za-z0-9]+", "-", record)


def names(records: pd.DataFrame, *cases: Mapping) -> tuple[str, ...]:
    """The names of the records of these cases, as the report links them: experiment/case.rN."""
    fields, experiment = records.attrs["fields"], records.attrs["experiment"]
    chosen = [row for case in cases for _, row in tidy.select(records, **case).iterrows()]
    return tuple(dict.fromkeys(called(experiment, row[fields], row["round"]) for row in chosen))


def of_records(*free: str) -> Callable:
    """Makes a function that says something of records, and perhaps of the case that is its second argument, name the
    records that its sentences rest on: those of the case, whatever their values of the `free` fields, or all."""

    def decorate(say: Callable) -> Callable:
        @functools.wraps(say)
        def named(records: pd.DataFrame, *rest, **more) -> Statement | list[Statement]:
            said = say(records, *rest, **more)
            case = rest[0] if rest and isinstance(rest[0], Mapping) else {}
            where = {name: value for name, value in case.items() if name in records and name not in free}
            used = names(records, where) if "round" in records else ()
            chosen = tidy.select(records, **where)
            every = [
                with_stale(one, chosen) if one.verdict == NO_DATA else replace(one, records=used)
                for one in (said if isinstance(said, list) else [said])
            ]
            return every if isinstance(said, list) else every[0]

        return named

    return decorate


def with_stale(said: Statement, *records: pd.DataFrame) -> Statement:
    """A statement that there is no data, followed by how many of these records are stale, if any is."""
    return replace(said, text=" ".join(filter(None, (said.text, left_out(*records)))))


def _nothing(text: str, evidence: str, records: pd.DataFrame, *cases: Mapping) -> Statement:
    """That there is no data of these cases."""
    return with_stale(Statement(text, NO_DATA, evidence), *(tidy.select(records, **case) for case in cases))


def together(*statements: Statement) -> Statement:
    """Several statements as one paragraph, with their evidence in the same order."""
    marks = ", ".join(dict.fromkeys(s.verdict for s in statements))
    records = tuple(dict.fromkeys(name for s in statements for name in s.records))
    return Statement(" ".join(s.text for s in statements), marks, " ".join(s.evidence for s in statements), records)


def compare(
    records: pd.DataFrame, metric: str, of: Mapping, to: Mapping, subject: str, other: str, where: str = "",
    rivals: int = 1,
) -> Statement:  # fmt: skip
    """What the ratio of a metric of two cases shows: `subject` against `other`, both noun phrases, in the circumstances
    that `where` names. It says no more than the table of `compare.against_baselines` does, nor,
    of what is in another table, than one of so many `rivals` may."""
    judged = verdicts.judged(records, metric, of, to, rivals)
    if judged is None:
        text = _sentence(f"{subject} and {other} were not both measured")
        return _nothing(text, _picked(of, to), records, of, to)
    found, verdict, visible = judged
    place, value = f"{where}, " if where else "", digits.interval(found.ratio)
    seen = f"; one of {digits.number(1 + visible)} would have been seen" if visible > 0 else ""
    if visible > HUGE:
        seen = "; among so many comparisons, so few processes show next to nothing"
    said = {
        "faster": f"{subject} is faster than {other}: its time is {value} of the other's",
        "slower": f"{subject} is slower than {other}: its time is {value} times the other's",
        "same": f"{subject} and {other} take equally long within {comparisons.MARGIN:.0%}: the ratio is {value}",
        "inconclusive": f"the data do not show which of {subject} and {other} is faster: the ratio is {value}{seen}",
    }[verdict]
    evidence = f"{_picked(of, to)}; by {found.by}, {_counted(found.ratio)}{_disturbances(records, of, to)}."
    return Statement(_sentence(place + said), verdict, evidence, names(records, of, to))


def value(records: pd.DataFrame, metric: str, of: Mapping, wording: str) -> Statement:
    """`wording` with the median of a metric of one case and its interval in the place of {}."""
    found = tidy.median(tidy.select(records, **of), metric)
    if found is None:
        return _nothing("This was not measured here.", fields(of), records, of)
    evidence = f"{metric}, {fields(of)}; median, {_counted(found)}{_disturbances(records, of)}."
    return Statement(wording.format(digits.interval(found)), "measured", evidence, names(records, of))


def values(records: pd.DataFrame, of: Mapping, wording: str, *metrics: str) -> Statement:
    """`wording` with the medians of several metrics of one case, each in the place of one {}."""
    found = [value(records, metric, of, "{}") for metric in metrics]
    if any(one.verdict == NO_DATA for one in found):
        return _nothing("This was not measured here.", fields(of), records, of)
    evidence = " ".join(one.evidence for one in found)
    return Statement(wording.format(*(one.text for one in found)), "measured", evidence, names(records, of))


def known(records: pd.DataFrame, lead: str, unit: str, values: Mapping[str, float]) -> Statement:
    """`lead` followed by values of these records with their unit, each in the precision that it is named by."""
    shown = " and ".join(f"{digits.number(value)} {unit} in {name}" for name, value in values.items())
    if not shown:
        return _nothing("A ceiling was not measured here.", unit, records, {})
    return Statement(
        f"{lead} {shown}.",
        "measured",
        f"{unit}: the largest over the measured sizes and processes, at the median time of the process.",
        names(records, {}),
    )


def at(wording: str, case: Mapping) -> str:
    """The wording with the fields of a case in it, or nothing where the case was not measured."""
    return "" if None in case.values() or not case else wording.format(**case)


def exponent(records: pd.DataFrame, metric: str, axis: str, of: Mapping, subject: str, unit: str = "") -> Statement:
    """How a metric grows between the two largest measured values of an axis, as the exponent of a power law; `unit` is
    what the axis counts, if its heading does not say it."""
    chosen = tidy.select(records, **of)
    measured = tidy.medians(chosen, metric)
    sizes = sorted(set(measured.loc[measured[metric].notna(), axis]))
    compared = verdicts.comparison(chosen, metric, {axis: sizes[-1]}, {axis: sizes[-2]}) if len(sizes) > 1 else None
    if compared is None:
        return _nothing(f"How {subject} grows was not measured here.", fields(of), records, of)
    found, (below, above) = compared.ratio, sizes[-2:]
    power = hypotheses.power(found, above / below)
    unit = unit or heading(axis)
    text = f"From {below:,} to {above:,} {unit}, {subject} grows as that number to the power {digits.interval(power)}"
    evidence = f"{metric}, {fields(of)}, ratio {digits.interval(found)}; by {compared.by}, {_counted(found)}."
    return Statement(text + ".", "measured", evidence, names(chosen, {axis: below}, {axis: above}))


def fastest(records: pd.DataFrame, metric: str, among: str, of: Mapping, what: str) -> Statement:
    """Which value of the field `among` is least, and which others are not shown to be more."""
    order = verdicts.ranked(tidy.select(records, **of), metric, among)
    if len(order) < 2:
        text = f"Which {among} is fastest cannot be said, since fewer than two were measured here."
        return _nothing(text, fields(of), records, of)
    first, *others = order
    cases = [{**of, among: name} for name in order]
    judged = {
        name: verdicts.judged(records, metric, cases[0], case, rivals=len(others))
        for name, case in zip(others, cases[1:], strict=True)
    }
    ratios = {name: digits.interval(one[0].ratio) for name, one in judged.items() if one}
    tied = [name for name, one in judged.items() if one is None or one[1] != "faster"]
    evidence = "; ".join(f"{first} to {name}: {ratio}" for name, ratio in ratios.items())
    evidence = f"{metric}, {fields(of)}; ratios of {evidence}{_disturbances(records, *cases)}."
    if tied:
        text = f"Of {what}, {first} takes the least time; the data do not show that it is faster than "
        return Statement(text + " or ".join(tied) + ".", "inconclusive", evidence, names(records, *cases))
    lead = f"with {ratios[others[0]]} of the time of {others[0]}"
    return Statement(f"Of {what}, {first} is fastest, {lead}.", "faster", evidence, names(records, *cases))


def _sentence(text: str) -> str:
    return text[0].upper() + text[1:] + "."


def fields(of: Mapping) -> str:
    return ", ".join(f"{name} {value}" for name, value in of.items() if value is not None) or "any case"


def _picked(of: Mapping, to: Mapping) -> str:
    return f"{fields(of)} against {fields(to)}"


def _counted(found: Interval) -> str:
    return f"95% interval {found.scope}, n = {found.n}"


def _disturbances(records: pd.DataFrame, *cases: Mapping) -> str:
    """How many of the records of these cases were measured on a noisy machine or in a series that changed."""
    chosen = pd.concat([tidy.select(records, **case) for case in cases])
    disturbed = sum(bool(tidy.disturbances(record)) for _, record in chosen.iterrows())
    return f"; {disturbed} of {len(chosen)} records noisy" if disturbed else ""
