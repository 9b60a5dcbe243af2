"""Says in sentences what the first steps of fresh processes show, and sets them beside the write-ups' own; measures
nothing.
"""

import math
import statistics
from collections.abc import Mapping

import pandas as pd

from lib.chapters.warmup import FOLLOWING, FULL, WHOLE, after_warmups, one_against_five, steady, where
from lib.report import tidy
from lib.report.headings import heading
from lib.report.published import published_table
from lib.report.sentences import NO_DATA, Statement, of_records, together
from lib.stats import comparisons, digits

NOISE_PERCENT = 1.0  # deviations below it are called small, as a write-up does


def published() -> pd.DataFrame:
    """The published means by warm-ups, one row a source, phase, case and number of `warmups`: `mean_ms, std_ms,
    deviation_percent` and `ratio` to the mean after the most warm-ups of the same case, which is an unstated number in
    a source that states it only for what it varied."""
    table = published_table("end_to_end")
    table = table[(table["how"] == "measured") & table["std_ms"].notna() & ~table["compiled"].astype(bool)]
    table = table[table["dtype"] == "float32"].assign(warmups=table["warmup_steps"].fillna(math.inf))
    keys = ["source", "hardware", "model", "context_length", "phase"]
    most = table.sort_values("warmups").groupby(keys)["mean_ms"].transform("last")
    varied = table.groupby(keys)["warmups"].transform("nunique") > 1
    table = table.assign(ratio=table["mean_ms"] / most, deviation_percent=100 * table["std_ms"] / table["mean_ms"])
    table = table.rename(columns={"model": "size"})[varied]
    return table.assign(phase=table["phase"].str.replace("_", " and "))


def _ours(records: pd.DataFrame) -> pd.DataFrame:
    """The rows of `after_warmups` as plain numbers, to be set beside published ones."""
    table = after_warmups(records)
    table = table[table["phase"] != WHOLE] if len(table) else table
    names = ["mean_ms", "std_ms", "deviation_percent", "ratio"]
    plain = table.assign(**{name: table[name].map(lambda found: found.value).astype(float) for name in names})
    return plain.assign(source="this report")


def beside_published(records: pd.DataFrame) -> pd.DataFrame:
    """One row a source, phase and number of warm-ups: over its sizes and contexts (`cases`) the median, least and most
    of the mean relative to that after the most warm-ups, and of the deviation relative to the mean."""
    both = pd.concat([_ours(records), published()], ignore_index=True)
    rows = []
    for key, group in both.groupby(["source", "hardware", "phase", "warmups"], sort=False):
        warmups = "not stated" if math.isinf(key[3]) else f"{key[3]:.0f}"
        row = dict(zip(["source", "hardware", "phase"], key[:3], strict=True)) | {"warmups": warmups}
        row["cases"] = len(group)
        for name in ("ratio", "deviation_percent"):
            values = group[name]
            row |= {f"{name}_median": values.median(), f"{name}_least": values.min(), f"{name}_most": values.max()}
        rows.append(row)
    return pd.DataFrame(rows)


def describe(records: pd.DataFrame) -> pd.DataFrame:
    """One row a source, statistic (`mean_ms` or `std_ms` of ten steps) and number of warm-ups: the count, mean, std,
    min, quartiles and max of it over sizes, contexts and phases, as write-up 002 describes its own."""
    theirs = published()
    both = pd.concat([_ours(records), theirs[theirs["source"] == "write-up 002"]], ignore_index=True)
    rows = [
        {"source": source, "statistic": heading(name), "warmups": f"{w:.0f}", **group[name].describe()}
        for name in ("mean_ms", "std_ms")
        for (source, w), group in both.groupby(["source", "warmups"], sort=False)
    ]
    return pd.DataFrame(rows).astype({"count": int})


@of_records()
def answer(records: pd.DataFrame, of: Mapping, where: str) -> Statement:
    """How much longer the first step takes, and from which step on the series is steady."""
    table = tidy.select(steady(records), **of)
    if len(table) != 1 or table["first_ratio"].iloc[0] is None:
        return Statement("The first steps of a fresh process were not measured here.", NO_DATA, "warmup")
    row = table.iloc[0]
    starts = row["steady_from"].split(", ")
    settled = sorted(int(start) for start in starts if start != "never")
    text = (
        f"The first step of a fresh process takes {digits.interval(row['first_ratio'])} times as long as its later ones"
    )
    text += f" {where}: " if where else ": "
    if settled:
        span = " to ".join(map(digits.count, dict.fromkeys((settled[0], settled[-1]))))
        text += f"the series is steady from step {span} on in {digits.count(len(settled))} of "
        text += f"{digits.count(len(starts))} processes."
    else:
        text += f"in none of {digits.count(len(starts))} processes is the series ever shown to be steady."
    return Statement(text, "measured", f"Steady from step, by process: {row['steady_from']}.")


@of_records()
def variation(records: pd.DataFrame, warmups: int) -> Statement:
    """How much ten whole steps vary after so many warm-ups, in all cases."""
    table = after_warmups(records)
    table = table[(table["warmups"] == warmups) & (table["phase"] == WHOLE)]
    percents = [percent for row in table["percents"] for percent in row]
    after = {0: "Without a warm-up", 1: "After one warm-up"}.get(warmups, f"After {warmups} warm-ups")
    if not percents:
        return Statement(f"{after} nothing was measured here.", NO_DATA, "warmup")
    small = sum(percent < NOISE_PERCENT for percent in percents)
    least, middle, most = (digits.number(of(percents)) for of in (min, statistics.median, max))
    text = (
        f"{after}, the standard deviation of ten steps is {least} to {most}% of their mean, {middle}% in the median; "
        f"it is under {NOISE_PERCENT:g}% in {digits.count(small)} of {digits.count(len(percents))} processes."
    )
    return Statement(text, "measured", f"{len(table)} cases, {len(percents)} processes, whole steps.")


@of_records()
def one_outlier(records: pd.DataFrame, of: Mapping) -> Statement:
    """What the deviation without warm-ups would be if the first step alone were longer, beside what it is."""
    first = tidy.select(steady(records), **of)
    table = tidy.select(after_warmups(records), **of, warmups=0, phase=WHOLE)
    if len(table) != 1 or len(first) != 1:
        return Statement("What the first step alone explains was not measured here.", NO_DATA, "warmup")
    times = first["first_ratio"].iloc[0].value
    expected = outlier_percent(times)
    found = table["deviation_percent"].iloc[0]
    text = (
        f"One step {digits.number(times)} times as long as nine equal ones would make a deviation of "
        f"{digits.number(expected)}% of the mean; measured is {digits.interval(found)}%."
    )
    return Statement(text, "derived", "The formula above, with the ratio of the first step to the later ones.")


def outlier_percent(times: float) -> float:
    """The standard deviation, in percent of the mean, of ten steps of which one is so many times as long as the nine
    others, which are equal."""
    return 100 * math.sqrt(FOLLOWING) * (times - 1) / (FOLLOWING - 1 + times)


@of_records()
def settled(records: pd.DataFrame) -> Statement:
    """In how many processes of all cases the series is steady after one, two and five warm-ups, in how many never."""
    texts = [text for text in steady(records)["steady_from"] if text]
    starts = [start for text in texts for start in text.split(", ")]
    if not starts:
        return Statement("From which step a process is steady was not measured here.", NO_DATA, "warmup")
    by = {w: sum(start != "never" and int(start) <= w + 1 for start in starts) for w in (1, 2, FULL)}
    never = starts.count("never")
    text = (
        f"Of {len(starts)} processes {by[1]} are steady after one warm-up, {by[2]} after two and {by[FULL]} after "
        f"five; {never or 'none'} never {'is' if never < 2 else 'are'}."
    )
    return Statement(text, "measured", f"Steady from step: {'; '.join(texts)}.")


@of_records()
def where_it_goes(records: pd.DataFrame, of: Mapping) -> Statement:
    """In which phases the first step spends what it takes beyond a later one."""
    table = tidy.select(steady(records), **of)
    shares = {
        name.partition("_")[0]: table[name].iloc[0]
        for name in table.columns
        if name.endswith("_excess_percent") and len(table) == 1
    }
    if not shares:
        return Statement("In which phase the first step is longer was not measured here.", NO_DATA, "warmup")
    parts = [f"{digits.number(share)}% in the {phase}" for phase, share in shares.items()]
    last = f" and {parts.pop()}" if len(parts) > 1 else ""
    text = f"Of what the first step takes beyond a later one, the data show {', '.join(parts)}{last}."
    return Statement(text, "measured", "First step less the median of the last half of the steps, phase by phase.")


@of_records()
def equivalence(records: pd.DataFrame) -> Statement:
    """Whether one warm-up gives the same mean as five, in each case."""
    table = one_against_five(records)
    if table.empty:
        text = "Whether one warm-up is as good as five cannot be said here, since that takes three fresh processes."
        return Statement(text, NO_DATA, "warmup")
    said = {
        "same": f"is the same within {comparisons.MARGIN:.0%} as",
        "faster": "is less than",
        "slower": "is more than",
        "inconclusive": "is not shown to be the same as, nor to differ from,",
    }
    every = [
        Statement(
            f"At {where(row)}, the mean of ten steps after one warm-up {said[row['verdict']]} that after five: the "
            f"ratio is {digits.interval(row['ratio'])}.",
            row["verdict"], f"{where(row)}: t test over the logarithms of {row['ratio'].rounds} processes' ratios.",
        )
        for _, row in table.iterrows()
    ]  # fmt: skip
    return together(*every)
