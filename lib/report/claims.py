"""Decide claims: each says that some numbers lie between certain limits.

A claim is supported if all its numbers are shown to lie there, and contradicted if one is shown not to. Other hardware
or another size than it names cannot contradict it: that is not comparable. Claims are judged together, so that on
average at most 2.5% of the decisions are wrong (Benjamini and Hochberg 1995).
"""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace

import pandas as pd
from scipy import stats as distributions

from lib.records.frame import Frame
from lib.report import compare, hypotheses, sentences, tidy
from lib.report.sentences import NO_DATA, Statement
from lib.stats import comparisons, digits
from lib.stats.comparisons import ABOVE_ONE, BELOW_ONE, NEAR_ONE, UNCLEAR, Comparison, Limits
from lib.stats.intervals import Interval

SUPPORTED, CONTRADICTED, SAME = "supported", "contradicted", "no difference"
NOT_COMPARABLE = "not comparable"  # other hardware or other sizes than those of the statement
FEW = 3  # numbers that a sentence lists; of more it gives the least and the most
Data = Mapping[str, pd.DataFrame]  # the records of each experiment by its name, or printed tables in their shape
SIZED = "at size {size}, context {context_length}"  # where a model was measured, in words
LESS, MORE = BELOW_ONE, ABOVE_ONE  # what a ratio is for less and for more


def about(value: float, part: float = 0.2) -> Limits:
    """Return the limits of what is called about a value: a fifth of it to either side, or another part."""
    return value * (1 - part), value * (1 + part)


@dataclass(frozen=True)
class Found:
    """One number that a claim is about.

    `of` names the case, `within` the limits that the claim sets, `records` the records that the `estimate` rests on
    (none if it was printed or derived), and `shown` a text in place of the number."""

    of: str
    estimate: Comparison
    within: Limits
    records: tuple[str, ...] = ()
    shown: str = ""

    @property
    def value(self) -> Interval:
        """Return the number with its interval."""
        return self.estimate.ratio

    def __str__(self) -> str:
        return f"{self.shown or digits.brief(self.value)}{'' if self.of.startswith('%') else ' '}{self.of}"


def exact(of: str, value: float, within: Limits, records: Sequence[str] = (), shown: str = "") -> Found:
    """Return a number without noise: printed, derived or counted."""
    return Found(of, comparisons.exact(value), within, tuple(records), shown)


def between(of: str, low: float, high: float, within: Limits) -> Found:
    """Return a number of which a printed table gives only the least and the most that it can be."""
    value, ends = Interval((low + high) / 2, low, high, 1, 1), (digits.number(end) for end in (low, high))
    return Found(of, Comparison(value, 0.0, math.inf, ""), within, shown=f"between {' and '.join(ends)}")


def estimated(of: str, value: Interval, within: Limits, records: Sequence[str] = ()) -> Found:
    """Return a positive number with its interval."""
    return Found(of, comparisons.estimated(value), within, tuple(records))


def printed(records: pd.DataFrame) -> bool:
    """Tell whether these are the rows of a printed table, each a single number, and no records."""
    return Frame.origin(records, "printed")


def names(records: pd.DataFrame) -> tuple[str, ...]:
    """Return the names of records, as the report links them; none of a printed table."""
    return () if printed(records) else sentences.names(records, {})


def rows(data: Data, experiment: str, **where) -> pd.DataFrame:
    """Select the rows of an experiment with these values of fields."""
    return _select(data.get(experiment, Frame({"status": []})), where)


def _select(records: pd.DataFrame, where: Mapping) -> pd.DataFrame:
    """Select rows by values of fields; of a printed table by those fields that it has."""
    return tidy.select(records, **{name: of for name, of in where.items() if name in records or not printed(records)})


def cases(records: pd.DataFrame, **where) -> list[dict]:
    """Return the cases with these values of fields, in the order in which values are introduced."""
    chosen = _select(records, where)
    measured = chosen.loc[chosen["status"] == "ok", records.fields].drop_duplicates()
    return tidy.ordered(measured, " ".join(measured)).to_dict("records") if len(measured) else []


def ratio(records: pd.DataFrame, metric: str, of: Mapping, to: Mapping, within: Limits, label: str) -> list[Found]:
    """Find the ratio of a metric of one case to another's; nothing if one was not measured.

    `label` has the fields of the first in it."""
    one, other = tidy.select(records, **of), tidy.select(records, **to)
    if printed(records):
        values = [chosen[metric].dropna().iloc[:1] for chosen in (one, other)]
        if any(value.empty for value in values):
            return []
        above, below = (float(value.iloc[0][0]) for value in values)
        return [exact(label.format(**of), above / below, within)]
    found = compare.comparison(records, metric, of, to)
    return [Found(label.format(**of), found, within, names(one) + names(other))] if found else []


def contrast(
    records: pd.DataFrame, metric: str, one: tuple[Mapping, Mapping], other: tuple[Mapping, Mapping],
    within: Limits, label: str,
) -> list[Found]:  # fmt: skip
    """Find the ratio of two ratios, each of a pair of cases; nothing where one was not measured."""
    if printed(records):
        found = zip(*(ratio(records, metric, *pair, within, label) for pair in (one, other)), strict=False)
        return [exact(first.of, first.value.value / second.value.value, within) for first, second in found]
    first, second = (compare.comparison(records, metric, *pair) for pair in (one, other))
    if first is None or second is None:
        return []
    used = [name for case in (*one, *other) for name in names(tidy.select(records, **case))]
    return [Found(label.format(**one[0]), comparisons.quotient(first, second), within, tuple(used))]


def ratios(
    records: pd.DataFrame, metric: str, of: Mapping, to: Mapping, within: Limits, label: str, **where
) -> list[Found]:
    """Find the ratio of each case with the values `of` and `where` to the same case with `to`."""
    chosen = cases(records, **of, **where)
    return [one for case in chosen for one in ratio(records, metric, case, {**case, **to}, within, label)]


def medians(records: pd.DataFrame, metric: str, within: Limits, label: str, **where) -> list[Found]:
    """Find the median of a metric in every case with these values of fields."""
    found = []
    for case in cases(records, **where):
        value, of = hypotheses.median(records, metric, case), label.format(**case)
        if value and printed(records):
            found.append(exact(of, value.value, within))
        elif value:
            found.append(estimated(of, value, within, names(tidy.select(records, **case))))
    return found


def exponent(records: pd.DataFrame, metric: str, axis: str, within: Limits, label: str, **where) -> list[Found]:
    """Find the exponent of a power law from the least to the largest value of an axis.

    One number for each group of cases that differ in the axis alone."""
    found, groups = [], {}
    for case in cases(records, **where):
        rest = {name: value for name, value in case.items() if name != axis}
        groups.setdefault(sentences.fields(rest), []).append(case)
    for group in groups.values():
        low, high = (pick(group, key=lambda case: case[axis]) for pick in (min, max))
        times = high[axis] / low[axis]
        limits = tuple(times**limit for limit in within)
        for one in ratio(records, metric, high, low, limits, label) if times > 1 else ():
            found.append(replace(one, shown=digits.brief(_power(one.value, times))))
    return found


def _power(ratio: Interval, times: float) -> Interval:
    """Return the exponent by which `times` the size gives this ratio."""
    ends = (math.log(end) / math.log(times) for end in (ratio.value, ratio.low, ratio.high))
    return Interval(*ends, ratio.n, ratio.rounds)


@dataclass(frozen=True)
class Claim:
    """A statement that data can decide.

    `source` says whose it is. `find` estimates the numbers that it is about from the records of each experiment by
    name; it takes at least `least` of them. `rule` is the decision rule in words; `holds` and `fails` are the sentences
    for a supported and a contradicted claim. `about` names the hardware or sizes that it is bound to, empty if
    any machine can contradict it."""

    id: str
    source: str
    experiment: str
    says: str
    find: Callable[[Data], list[Found]]
    rule: str
    holds: str
    fails: str
    least: int = 1
    about: str = ""

    @property
    def question(self) -> str:
        """Return the question that it answers."""
        return f"Is it true that {self.holds}?"


@dataclass(frozen=True)
class Judgement:
    """A claim's verdict and the numbers that it follows from.

    `rivals` is the number of claims that were decided together, `had` how the data was obtained."""

    claim: Claim
    verdict: str
    found: list[Found] = field(default_factory=list)
    rivals: int = 1
    had: str = "measured here"

    @property
    def statement(self) -> Statement:
        """Return the verdict as a sentence, with its evidence."""
        claim = self.claim
        words = {
            SUPPORTED: claim.holds, CONTRADICTED: claim.fails, SAME: f"{claim.fails}, and no difference is beyond 3%",
            NOT_COMPARABLE: f"the statement is about {claim.about}; here {claim.fails}",
            UNCLEAR: f"it is unclear whether {claim.holds}",
            NO_DATA: f"no data on whether {claim.holds} was {self.had}",
        }[self.verdict]  # fmt: skip
        text = words[0].upper() + words[1:]
        if self.verdict == NO_DATA:
            return Statement(f"{text}.", NO_DATA, f"{claim.question} Rule: {claim.rule}.")
        shown = _listed(self.found)
        among = f", as one of {self.rivals} claims" if self.rivals > 1 else ""
        evidence = f"{claim.question} Rule: {claim.rule}{among}. {' '.join(map(_counted, self.found))}"
        records = tuple(dict.fromkeys(name for one in self.found for name in one.records))
        return Statement(f"{text}: {shown}.", self.verdict, evidence, records)


def _listed(found: list[Found]) -> str:
    """List the numbers, or the least and the most of many that have the same limits."""
    said = []
    for within in dict.fromkeys(one.within for one in found):
        alike = sorted((one for one in found if one.within == within), key=lambda one: one.value.value)
        ends = f"from {alike[0]} to {alike[-1]}, over {len(alike)} cases"
        said += [ends] if len(alike) > FEW else map(str, alike)
    return "; ".join(said)


def _counted(one: Found) -> str:
    if not one.records:
        return f"{one}, as printed or derived."
    return f"{one}, n = {one.value.n}, {one.value.rounds} process{'es' * (one.value.rounds > 1)}."


def judge(claims: Sequence[Claim], data: Data, had: str = "measured here", comparable: bool = True) -> list[Judgement]:
    """Judge claims that stand together by the records of each experiment.

    `had` says how the data was obtained, for claims without any. Where the data is not `comparable`, it cannot
    contradict a claim that is `about` other hardware or sizes."""
    found = [claim.find(data) for claim in claims]
    measured = [i for i, claim in enumerate(claims) if len(found[i]) >= claim.least]
    tests = {  # p of all numbers lying within their limits, and of any lying outside
        i: (max(one.estimate.inside(one.within) for one in found[i]),
            min(1.0, len(found[i]) * min(one.estimate.outside(one.within) for one in found[i])))
        for i in measured
    }  # fmt: skip
    noisy = [i for i in measured if any(math.isfinite(one.estimate.freedom) for one in found[i])]
    adjusted = distributions.false_discovery_control([min(1.0, 2 * min(tests[i])) for i in noisy]) if noisy else []
    shown = dict(zip(noisy, adjusted <= comparisons.LOOK_LEVEL if noisy else (), strict=True))
    said = dict.fromkeys(range(len(claims)), NO_DATA)
    for i in measured:
        lies, lacks = tests[i]
        decided = shown.get(i, min(lies, lacks) == 0)
        said[i] = (SUPPORTED if lies < lacks else CONTRADICTED) if decided else _undecided(found[i])
    if not comparable:
        bound = {i: NOT_COMPARABLE for i in measured if claims[i].about and said[i] in (CONTRADICTED, SAME)}
        said |= bound
    every = zip(claims, said.values(), found, strict=True)
    return [Judgement(claim, verdict, used * (verdict != NO_DATA), len(noisy), had) for claim, verdict, used in every]


def _undecided(found: list[Found]) -> str:
    """Return `SAME` if a number claimed to differ from one is shown to be one, else `UNCLEAR`."""
    sided = [one for one in found if one.within in (LESS, MORE)]
    return SAME if any(one.estimate.inside(NEAR_ONE) <= comparisons.LOOK_LEVEL for one in sided) else UNCLEAR
