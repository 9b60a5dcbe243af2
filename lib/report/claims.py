"""Claims: statements with a decision rule, the numbers that they speak of, and the verdict on them.

A claim says of each of some numbers between which limits it lies. It is supported where all are shown to lie there,
and contradicted where one is shown not to. Verdicts that stand together are by Holm (1979): the chance of any false one
among them is that of a single 95% interval.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace

import pandas as pd
from scipy import stats as distributions

from lib.report import compare, hypotheses, sentences, tidy
from lib.report.sentences import HUGE, NO_DATA, Statement
from lib.stats import comparisons, digits, intervals
from lib.stats.comparisons import Comparison
from lib.stats.intervals import Interval

SUPPORTED, CONTRADICTED, SAME, INCONCLUSIVE = "supported", "contradicted", "no difference", "inconclusive"
VERDICTS = (SUPPORTED, CONTRADICTED, SAME, INCONCLUSIVE, NO_DATA)
LEVEL = 0.025  # of a test towards one side, so that a single verdict is that of a 95% interval
FEW = 3  # numbers that a sentence lists; of more it gives the least and the most
Limits = tuple[float, float]
Data = Mapping[str, pd.DataFrame]  # the records of each experiment by its name, or printed tables in their shape
SIZED = "at size {size}, context {context_length}"  # where a model was measured, in words
LESS, MORE = (0.0, 1.0), (1.0, math.inf)  # what a ratio is for less and for more


def about(value: float, part: float = 0.2) -> Limits:
    """The limits of what is called about a value: a fifth of it to either side, or another part."""
    return value * (1 - part), value * (1 + part)


@dataclass(frozen=True)
class Found:
    """One number that a claim is about: `of` which case, its value with its interval, `within` which limits the claim
    has it, the p of its lying `outside` and of its lying `inside` these, that of a difference from one beyond the
    margin (`differs`), the smallest difference that would have been seen (`visible`), the names of the `records` that
    it rests on, none where it was printed or derived, and what is `shown` in place of the number, if not itself."""

    of: str
    value: Interval
    within: Limits
    outside: float
    inside: float
    differs: float = 1.0
    visible: float = math.nan
    records: tuple[str, ...] = ()
    shown: str = ""

    def __str__(self) -> str:
        number = digits.interval(self.value) if self.value.known else digits.number(self.value.value)
        return f"{self.shown or number}{'' if self.of.startswith('%') else ' '}{self.of}"


def known(of: str, value: float, within: Limits, records: Sequence[str] = (), shown: str = "") -> Found:
    """A number without noise: printed, derived or counted."""
    alone = Interval(value, math.nan, math.nan, 1, 1)
    lies = within[0] <= value <= within[1]
    return Found(of, alone, within, float(not lies), float(lies), records=tuple(records), shown=shown)


def between(of: str, low: float, high: float, within: Limits) -> Found:
    """A number of which a printed table gives no more than the least and the most that it can be."""
    inside, outside = within[0] <= low and high <= within[1], high < within[0] or low > within[1]
    value, ends = Interval((low + high) / 2, low, high, 1, 1), (digits.number(end) for end in (low, high))
    return Found(of, value, within, float(not inside), float(not outside), shown=f"between {' and '.join(ends)}")


def compared(of: str, found: Comparison, within: Limits, records: Sequence[str] = ()) -> Found:
    """A ratio with the standard error of its logarithm, by t tests against the limits; of too few samples to show any
    difference, none is decided."""
    visible = found.visible()
    if math.isnan(visible):
        return Found(of, found.ratio, within, 1.0, 1.0, records=tuple(records))
    p = [_beyond(found.ratio.value, limit, found) for limit in within]  # of it lying above the limit
    sides = [1 - p[0]] * (within[0] > 0) + [p[1]] * (within[1] < math.inf)
    inside, outside = min(1.0, len(sides) * min(sides)), max(p[0], 1 - p[1])
    return Found(of, found.ratio, within, outside, inside, found.p_same, visible, tuple(records))


def _beyond(value: float, limit: float, found: Comparison) -> float:
    """The p of a t test whose alternative is that the value lies above the limit."""
    if limit in (0.0, math.inf):
        return float(limit > 0)
    return float(distributions.t.sf((math.log(value) - math.log(limit)) / max(found.error, 1e-12), found.freedom))


def estimated(of: str, value: Interval, within: Limits, records: Sequence[str] = ()) -> Found:
    """A positive number by its interval: that of the logarithm across processes, or within one of many samples."""
    if not value.known or value.low <= 0:
        return Found(of, value, within, 1.0, 1.0, records=tuple(records))
    freedom = value.rounds - 1 if value.rounds >= intervals.ENOUGH_ROUNDS else max(1, value.n - 1)
    error = math.log(value.high / value.low) / 2 / distributions.t.ppf(0.975, freedom)
    return compared(of, Comparison(value, 1.0, 1.0, 0.05, error, freedom, comparisons.MEDIANS), within, records)


def usual(of: str, values: Sequence[float], within: Limits, records: Sequence[str] = ()) -> Found:
    """The median of several cases, by the sign test: that most lie within the limits, or most do not."""
    count, inside = len(values), sum(within[0] <= value <= within[1] for value in values)
    middle = Interval(float(pd.Series(values).median()), *intervals.order_statistics(values), count, 1)
    most, few = (float(distributions.binom.sf(k - 1, count, 0.5)) for k in (inside, count - inside))
    return Found(f"{of}, median of {count}", middle, within, most, few, records=tuple(records))


def printed(records: pd.DataFrame) -> bool:
    """Tell whether these are the rows of a printed table, each a single number, and no records."""
    return bool(records.attrs.get("printed"))


def names(records: pd.DataFrame) -> tuple[str, ...]:
    """The names of records, as the report links them; none of a printed table."""
    return () if printed(records) else sentences.names(records, {})


def rows(data: Data, experiment: str, **where) -> pd.DataFrame:
    """Select the rows of an experiment with these values of fields; none where there is no such experiment."""
    records = data.get(experiment, pd.DataFrame({"status": []}))
    records.attrs.setdefault("fields", [])
    return _select(records, where)


def _select(records: pd.DataFrame, where: Mapping) -> pd.DataFrame:
    """Select rows by values of fields; of a printed table by those fields that it has."""
    return tidy.select(records, **{name: of for name, of in where.items() if name in records or not printed(records)})


def cases(records: pd.DataFrame, **where) -> list[dict]:
    """The cases with these values of fields, in the order in which values are introduced."""
    chosen = _select(records, where)
    measured = chosen.loc[chosen["status"] == "ok", records.attrs["fields"]].drop_duplicates()
    return tidy.ordered(measured, " ".join(measured)).to_dict("records") if len(measured) else []


def ratio(records: pd.DataFrame, metric: str, of: Mapping, to: Mapping, within: Limits, label: str) -> list[Found]:
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
    within: Limits, label: str,
) -> list[Found]:  # fmt: skip
    """How the ratio of one pair of cases relates to that of another: one number, or none where one was not measured."""
    if printed(records):
        found = zip(*(ratio(records, metric, *pair, within, label) for pair in (one, other)), strict=False)
        return [known(first.of, first.value.value / second.value.value, within) for first, second in found]
    first, second = (compare.comparison(records, metric, *pair) for pair in (one, other))
    if first is None or second is None:
        return []
    error, freedom = math.hypot(first.error, second.error), min(first.freedom, second.freedom)
    quotient, n = first.ratio.value / second.ratio.value, min(first.ratio.n, second.ratio.n)
    reach = math.exp(error * distributions.t.ppf(0.975, freedom)) if freedom else math.nan
    value = Interval(quotient, quotient / reach, quotient * reach, n, first.ratio.rounds)
    both = Comparison(value, 1.0, 1.0, 0.05, error, freedom, comparisons.MEDIANS)
    used = [name for case in (*one, *other) for name in names(tidy.select(records, **case))]
    return [compared(label.format(**one[0]), both, within, used)]


def ratios(
    records: pd.DataFrame, metric: str, of: Mapping, to: Mapping, within: Limits, label: str, **where
) -> list[Found]:
    """The same for every case with the values `of` and `where`, beside the otherwise equal one with the values `to`."""
    chosen = cases(records, **of, **where)
    return [one for case in chosen for one in ratio(records, metric, case, {**case, **to}, within, label)]


def medians(records: pd.DataFrame, metric: str, within: Limits, label: str, **where) -> list[Found]:
    """The median of a metric in every case with these values of fields."""
    found = []
    for case in cases(records, **where):
        value, of = hypotheses.median(records, metric, case), label.format(**case)
        if value and printed(records):
            found.append(known(of, value.value, within))
        elif value:
            found.append(estimated(of, value, within, names(tidy.select(records, **case))))
    return found


def exponent(records: pd.DataFrame, metric: str, axis: str, within: Limits, label: str, **where) -> list[Found]:
    """How a metric grows from the least to the largest value of an axis, as the exponent of a power law, in each group
    of cases that differ in the axis alone."""
    found, groups = [], {}
    for case in cases(records, **where):
        rest = {name: value for name, value in case.items() if name != axis}
        groups.setdefault(sentences.fields(rest), []).append(case)
    for group in groups.values():
        low, high = (pick(group, key=lambda case: case[axis]) for pick in (min, max))
        times = high[axis] / low[axis]
        limits = tuple(times**limit for limit in within)
        for one in ratio(records, metric, high, low, limits, label) if times > 1 else ():
            power = hypotheses.power(one.value, times)
            found.append(Found(one.of, power, within, one.outside, one.inside, records=one.records))
    return found


@dataclass(frozen=True)
class Claim:
    """A statement that data can decide: `source` says whose it is, `find` selects and estimates the numbers that it is
    about from the records of each experiment by name, `rule` is its decision rule in words, `least` how many numbers
    it takes, and `holds` and `fails` are what is said where it is supported and where it is contradicted."""

    id: str
    source: str
    experiment: str
    says: str
    find: Callable[[Data], list[Found]]
    rule: str
    holds: str
    fails: str
    least: int = 1

    @property
    def question(self) -> str:
        """What it answers."""
        return f"Is it so that {self.holds}?"


@dataclass(frozen=True)
class Judgement:
    """A claim with the verdict of some data on it, the numbers that this follows from, among how many `rivals` by Holm,
    and how the data is `had`."""

    claim: Claim
    verdict: str
    found: list[Found] = field(default_factory=list)
    rivals: int = 1
    had: str = "measured here"

    @property
    def statement(self) -> Statement:
        """The verdict as a sentence, with its evidence."""
        claim = self.claim
        words = {
            SUPPORTED: claim.holds, CONTRADICTED: claim.fails, SAME: f"{claim.fails}, nor the reverse",
            INCONCLUSIVE: f"the data do not show whether {claim.holds}",
            NO_DATA: f"what would show whether {claim.holds} was not {self.had}",
        }[self.verdict]  # fmt: skip
        text = words[0].upper() + words[1:]
        if self.verdict == NO_DATA:
            return Statement(f"{text}.", NO_DATA, f"{claim.question} Rule: {claim.rule}.")
        shown = _listed(self.found)
        seen = max((one.visible for one in self.found if one.visible > 0), default=math.nan)
        if self.verdict == INCONCLUSIVE and seen < HUGE:
            shown += f"; a difference of {digits.number(100 * seen)}% would have been seen"
        many = f", by Holm among {self.rivals} claims" if self.rivals > 1 else ""
        evidence = f"{claim.question} Rule: {claim.rule}{many}. {' '.join(map(_counted, self.found))}"
        records = tuple(dict.fromkeys(name for one in self.found for name in one.records))
        return Statement(f"{text}: {shown}.", self.verdict, evidence, records)


def _listed(found: list[Found]) -> str:
    """The numbers, or of many that have the same limits the least and the most."""
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


def judge(claims: Sequence[Claim], data: Data, had: str = "measured here") -> list[Judgement]:
    """The verdict of the data, the records of each experiment by its name, on claims that stand together; how the data
    is `had` is said where it is missing."""
    found = [claim.find(data) for claim in claims]
    known = [i for i, claim in enumerate(claims) if len(found[i]) >= claim.least]
    p = {  # of one number lying outside, and of all lying inside, by the clearest of them
        i: (max(one.outside for one in found[i]), min(1.0, len(found[i]) * min(one.inside for one in found[i])))
        for i in known
    }
    noisy = [i for i in known if any(one.outside not in (0, 1) or one.inside not in (0, 1) for one in found[i])]
    said, factor = dict.fromkeys(range(len(claims)), NO_DATA), float(max(1, len(noisy)))
    for i in sorted(known, key=lambda i: min(p[i])):
        lies, lacks = (x * factor <= LEVEL for x in p[i])
        said[i] = SUPPORTED if lies else CONTRADICTED if lacks else _undecided(found[i])
        if i in noisy:
            factor = max(1.0, factor - 1) if lies or lacks else math.inf
    return [Judgement(claim, said[i], found[i] if i in p else [], len(noisy), had) for i, claim in enumerate(claims)]


def _undecided(found: list[Found]) -> str:
    """Whether at least one of the numbers that a claim has on one side of one is shown to be one, within the margin."""
    sided = [one for one in found if one.within in (LESS, MORE)]
    return SAME if any(one.differs <= 0.05 for one in sided) else INCONCLUSIVE
