"""Compute sentences from records, each with its verdict and its evidence.

A sentence is a `Statement`, and its wording follows from what was measured. If data is missing, it says so.
"""

import functools
import html
import itertools
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace

import pandas as pd

from lib.records.record import called
from lib.records.staleness import left_out
from lib.report import compare as comparing
from lib.report import hypotheses, quantities, tidy
from lib.report.headings import heading
from lib.report.quantities import Quantity, marked
from lib.stats import comparisons, digits
from lib.stats.comparisons import FASTER, SAME, SLOWER, UNCLEAR
from lib.stats.intervals import Interval

NO_DATA = "no data"
ABOUT = 0.15  # how far an exponent may lie from a whole number that is said in its place
VAGUE = 1  # an exponent whose interval is wider says nothing


@dataclass(frozen=True)
class Statement:
    """Hold a sentence, its verdict, evidence, names of records, and numbers in the order of the text."""

    text: str
    verdict: str
    evidence: str
    records: tuple[str, ...] = ()
    quantities: tuple[Quantity, ...] = ()

    def _repr_html_(self) -> str:
        if self.verdict == NO_DATA:  # shown by the chapter on questions; the chapter on method lists what is missing
            return ""
        mark = html.escape(self.verdict)
        return (
            f'<div class="claim" data-verdict="{mark}"><p>{marked(self.text, self.quantities)}</p>'
            f"<details><summary>evidence</summary>{self._evidence()}</details></div>"
        )

    def mark(self) -> str:
        """Return the verdict alone as HTML, which opens to the sentence and its evidence."""
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
    """Return the id that a record, by its name, has in the report."""
    return "record-" + re.sub(r"[^A-Za-z0-9]+", "-", record)


def names(records: pd.DataFrame, *cases: Mapping) -> tuple[str, ...]:
    """Return the names of the records of these cases, as the report links them: experiment/case.rN."""
    fields, experiment = records.fields, records.experiment
    rows = (row for case in cases for row in tidy.dicts(tidy.select(records, **case)))
    return tuple(dict.fromkeys(called(experiment, {name: row[name] for name in fields}, row["round"]) for row in rows))


def of_records(*free: str) -> Callable:
    """Decorate a function of records so that its sentences name the records they rest on.

    The function's second argument may be a case. Then only the records of that case are named, and fields listed in
    `free` may have any value. Without a case all records are named."""

    def decorate(say: Callable) -> Callable:
        @functools.wraps(say)
        def named(records: pd.DataFrame, *rest, **more) -> Statement | list[Statement]:
            said = say(records, *rest, **more)
            case = rest[0] if rest and isinstance(rest[0], Mapping) else {}
            where = {name: value for name, value in case.items() if name in records and name not in free}
            used = names(records, where) if "round" in records else ()
            chosen = tidy.select(records, **where)
            every = [
                missing(one.text, chosen) if one.verdict == NO_DATA else replace(one, records=used)
                for one in (said if isinstance(said, list) else [said])
            ]
            return every if isinstance(said, list) else every[0]

        return named

    return decorate


def missing(text: str, *records: pd.DataFrame) -> Statement:
    """Say what was not measured, and how many of these records are stale, if any.

    The page shows the sentence only in the chapter on questions."""
    return Statement(f"{text} {left_out(*records)}".strip(), NO_DATA, "")


def _without(text: str, records: pd.DataFrame, *cases: Mapping) -> Statement:
    """Say that there is no data of these cases, of which unknown fields may have any value."""
    known = ({name: value for name, value in case.items() if value is not None} for case in cases)
    chosen = pd.concat([tidy.select(records, **case) for case in known])
    return missing(text, chosen[~chosen.index.duplicated()])


def together(*statements: Statement) -> Statement:
    """Join statements to one paragraph, their evidence in the same order; leave out those without data."""
    statements = tuple(one for one in statements if one.verdict != NO_DATA) or statements[:1]
    marks = ", ".join(dict.fromkeys(s.verdict for s in statements))
    records = tuple(dict.fromkeys(name for s in statements for name in s.records))
    numbers = tuple(itertools.chain.from_iterable(s.quantities for s in statements))
    text, evidence = (" ".join(getattr(s, part) for s in statements) for part in ("text", "evidence"))
    return Statement(text, marks, evidence, records, numbers)


def compare(
    records: pd.DataFrame, of: Mapping, change: Mapping, subject: str, other: str, where: str = ""
) -> Statement:
    """Say how the time of one case compares with that of another, which differs in the fields of `change`.

    `subject` and `other` are noun phrases; `where` names the circumstances, fields of the first case in braces. The
    verdict is that of the table that has the two cases (see `compare.judged`)."""
    to, where = {**of, **change}, at(where, of)
    found = factor(records, "total_ms", of, to)
    if found is None:
        text = _sentence(f"{subject} and {other} were not both measured")
        return _without(text, records, of, to)
    ratio, rests_on = found
    if ratio.verdict == SAME:
        ratio = replace(ratio, shown=digits.interval(ratio.value))
    said = {
        FASTER: f"{subject} is {ratio} faster than {other}",
        SLOWER: f"{subject} takes {ratio} the time of {other}",
        SAME: f"{subject} and {other} take the same time within {comparisons.MARGIN:.0%}: the ratio is {ratio}",
        UNCLEAR: f"{subject} takes {ratio} the time of {other}; which is faster is unclear",
    }[ratio.verdict]
    evidence = f"{_picked(of, to)}; {rests_on}{_disturbances(records, of, to)}."
    text = _sentence(f"{where}, {said}" if where else said)
    return Statement(text, ratio.verdict, evidence, names(records, of, to), (ratio,))


def factor(records: pd.DataFrame, metric: str, of: Mapping, to: Mapping) -> tuple[Quantity, str] | None:
    """Return how many times faster one case is than another, or else how many times as long it takes.

    The quantity has the ratio of the times as its value, and the verdict (see `compare.judged`); only where that is
    faster, its text is the inverse. Beside it stands what it rests on. None where the two were not both measured."""
    judged = comparing.judged(records, metric, of, to)
    if judged is None:
        return None
    found, verdict = judged
    name = f"{metric}/{comparing.baseline_text(records, of, to)}"
    shown = times(found.ratio.inverse if verdict == FASTER else found.ratio)
    return quantity(records, of, name, found.ratio, shown, verdict), f"by {found.by}, {_counted(found.ratio)}"


def number(
    records: pd.DataFrame, metric: str, of: Mapping, shown: Callable[[Interval], str] = digits.value
) -> Quantity | None:
    """Return the median of a metric of one case, its text by `shown`; None where it was not measured."""
    found = tidy.median(tidy.select(records, **of), metric)
    return quantity(records, of, metric, found, shown(found)) if found else None


def quantity(
    records: pd.DataFrame, of: Mapping, metric: str, value: Interval, shown: str, verdict: str = ""
) -> Quantity:
    """Return a number of a case as its text shows it; without a name if `of` picks several cases."""
    chosen = tidy.select(records, **of)
    if chosen.empty or len(chosen[records.fields].drop_duplicates()) > 1 or "machine" not in chosen:
        return Quantity("", value, shown, verdict)
    row = chosen.iloc[0]
    name = quantities.name(row["machine"], records.experiment, row[records.fields], metric)
    return Quantity(name, value, shown, verdict)


def listed(words: list[str], by: str = "and") -> str:
    """Join words to a list: a, b and c."""
    return f" {by} ".join(filter(None, [", ".join(words[:-1]), *words[-1:]]))


def off(*percents: float) -> str:
    """Say how far predictions are off at most: exactly, or to within a percentage, rounded up."""
    most = max(map(abs, percents))
    return f"to within {digits.bound(most)}%" if most else "exactly"


def times(ratio: Interval) -> str:
    """Write a ratio as a factor with its interval: 4.1× (3.6 to 4.7)."""
    value, _, ends = digits.interval(ratio).partition(" ")
    return f"{value}× {ends}".strip()


def values(records: pd.DataFrame, of: Mapping, wording: str, *metrics: str) -> Statement:
    """Put the medians of metrics of one case, with their intervals, into `wording`, each for one {}."""
    numbers = tuple(number(records, metric, of, digits.brief) for metric in metrics)
    if None in numbers:
        return _without("This was not measured here.", records, of)
    beside = _disturbances(records, of)
    evidence = " ".join(
        f"{metric}, {fields(of)}; median, {_counted(one.value)}{beside}."
        for metric, one in zip(metrics, numbers, strict=True)
    )
    return Statement(wording.format(*numbers), "measured", evidence, names(records, of), numbers)


def at(wording: str, case: Mapping) -> str:
    """Put the fields of a case into the wording; an empty text where the case was not measured."""
    return "" if None in case.values() or not case else wording.format(**case)


LETTERS = {
    "seq_len": "T",
    "context_length": "T",
    "d_head": "d",
    "d_model": "C",
    "param_size": "n",
}  # of axes, in powers


def exponent(records: pd.DataFrame, metric: str, axis: str, of: Mapping, subject: str, unit: str = "") -> Statement:
    """Say how a metric grows with an axis, as a power law fitted over all its values.

    `unit` is what the axis counts, if its heading does not say it."""
    chosen = tidy.select(records, **{name: value for name, value in of.items() if name != axis})
    found = hypotheses.exponent(records, metric, axis, of)
    if found is None:
        return _without(f"How {subject} grows was not measured here.", records, of)
    measured = chosen[tidy.column(chosen, metric).notna()]
    ends = f"from {measured[axis].min():,} to {measured[axis].max():,} {unit or heading(axis)}"
    whole, shown = round(found.value), digits.brief(found)
    if whole in (1, 2, 3) and abs(found.value - whole) <= ABOUT:
        law = f"about as {LETTERS.get(axis, heading(axis))}{'  ²³'[whole].strip()}"
        text = f"{subject} grows {law} (exponent {shown.replace(' (', ', ').rstrip(')')}, {ends})"
    elif found.high - found.low > VAGUE:
        text = f"how {subject} grows {ends} is unclear: the exponent is {shown}"
    else:
        text = f"{subject} grows as {LETTERS.get(axis, heading(axis))} to the power {shown} {ends}"
    rest = {name: chosen.iloc[0][name] for name in records.fields if name != axis}
    name = quantities.name(chosen.iloc[0]["machine"], records.experiment, rest, f"{metric}/exponent")
    number = Quantity(name, found, digits.value(found))
    evidence = f"{metric}, {fields(of)}; median of all slopes on log axes between {found.n} medians of processes."
    return Statement(_sentence(text), "measured", evidence, names(measured, {}), (number,))


def _sentence(text: str) -> str:
    return text[0].upper() + text[1:] + "."


def fields(of: Mapping) -> str:
    return ", ".join(f"{name} {value}" for name, value in of.items() if value is not None) or "any case"


def _picked(of: Mapping, to: Mapping) -> str:
    return f"{fields(of)} against {fields(to)}"


def _counted(found: Interval) -> str:
    return f"{'95% interval' if found.known else 'no interval'} {found.scope}, n = {found.n}"


def _disturbances(records: pd.DataFrame, *cases: Mapping) -> str:
    """Say how many records of these cases have each of `tidy.MARKS`."""
    chosen = pd.concat([tidy.select(records, **case) for case in cases])
    rounds = tidy.dicts(chosen)
    counts = {mark: sum(bool(of(record)) for record in rounds) for mark, of in tidy.MARKS.items()}
    of = f" of {len(chosen)} records "
    return "".join(f"; {count}{of}{heading(mark)}" for mark, count in counts.items() if count)
