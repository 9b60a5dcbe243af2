"""Turns the first steps of fresh processes into tables, sentences and a figure: what warm-ups would have changed;
measures nothing.

A process's series of first steps is one; what follows so many warm-ups is read from it, so that two numbers of
warm-ups are compared without the noise between processes.
"""

import math
import statistics
from collections.abc import Mapping

import matplotlib as mpl
import matplotlib.pyplot as plt
import pandas as pd
from matplotlib.axes import Axes

from lib import compare, estimates, plots, results, series, stats, tables
from lib.claims import NO_DATA, Statement, together
from lib.stats import Interval

WARMUPS = (0, 1, 2, 5)
FULL = 5  # warm-ups that the others are held against, as in the assignment
FOLLOWING = 10  # steps whose mean and deviation are taken after them, likewise
NOISE_PERCENT = 1.0  # deviations below it are called small, as a write-up does
PHASES = {  # the metrics of a case's phases, forward and backward together as the write-ups timed them
    "forward": "first_forward_ms",
    "forward_backward": "first_forward_backward_ms",
    "train_step": "first_total_ms",
}


def cold(records: pd.DataFrame) -> pd.DataFrame:
    """The records of processes that had measured nothing before, and those of cases that could not be measured; with
    `first_forward_backward_ms` where both were."""
    earlier = estimates.column(records, "earlier_cases")
    kept = records[(earlier == 0) | (records["status"] != "ok")]
    kept.attrs = records.attrs
    return estimates.with_sum(kept, PHASES["forward_backward"], "first_forward_ms", "first_backward_ms")


def _cases(records: pd.DataFrame):
    """Each case's row of `estimates.medians`, with its records."""
    for _, row in estimates.medians(records).iterrows():
        yield row, estimates.select(records, **row[records.attrs["fields"]].to_dict())


def _across(values: list[float], samples: int) -> Interval | None:
    """One value a process as a geometric mean with its interval, which takes three processes."""
    if not values:
        return None
    if len(values) < stats.ENOUGH_ROUNDS:
        return Interval(statistics.median(values), math.nan, math.nan, samples, 1)
    return Interval(*stats.log_t(values), samples * len(values), len(values))


def _windows(times: list[float]) -> dict[int, list[float]]:
    """The steps that follow each number of warm-ups, where the series is long enough."""
    return {w: times[w : w + FOLLOWING] for w in WARMUPS if len(times) >= w + FOLLOWING}


def steady(records: pd.DataFrame) -> pd.DataFrame:
    """One row a case: `first_step_ms`, `later_ms` (the median of the last half of the steps), `first_ratio` between
    them, the shares of the excess of the first step by phase, and in words `steady_from`, the first steady step in
    each process."""
    rows = []
    for row, group in _cases(records):
        totals = estimates.samples(group, "first_total_ms")
        later = {r: statistics.median(times[len(times) // 2 :]) for r, times in totals.items()}
        starts = [series.steady(times) for times in totals.values()]
        found = {
            "first_step_ms": _across([times[0] for times in totals.values()], 1),
            "later_ms": _across(list(later.values()), len(next(iter(totals.values()), [])) // 2),
            "first_ratio": _across([times[0] / later[r] for r, times in totals.items()], 1),
            "steady_from": ", ".join("never" if start is None else str(start + 1) for start in starts) or None,
        }
        rows.append(row.to_dict() | found | excess(group))
    return _frame(rows, records, "first_step_ms later_ms first_ratio steady_from", "Geometric mean")


def excess(group: pd.DataFrame) -> dict[str, float]:
    """Of the time by which a case's first steps exceed the later ones, the percentage in each phase, in the mean over
    the processes: `<phase>_excess_percent`."""
    extra = {}
    for phase in ("forward", "backward", "optimizer"):
        for times in estimates.samples(group, f"first_{phase}_ms").values():
            later = statistics.median(times[len(times) // 2 :])
            extra.setdefault(f"{phase}_excess_percent", []).append(times[0] - later)
    whole = sum(sum(values) for values in extra.values())
    return {name: 100 * sum(values) / whole for name, values in extra.items()} if whole > 0 else {}


def after_warmups(records: pd.DataFrame) -> pd.DataFrame:
    """One row a case, phase and number of `warmups`: of the ten steps that follow, `mean_ms`, `std_ms` and their
    quotient `deviation_percent`, and `ratio`, that mean to the one after 5, each across the processes."""
    rows = []
    for row, group in _cases(records):
        for phase, metric in PHASES.items():
            windows = [_windows(times) for times in estimates.samples(group, metric).values()]
            for w in WARMUPS:
                having = [each for each in windows if w in each and FULL in each]
                means = [statistics.mean(each[w]) for each in having]
                stds = [statistics.stdev(each[w]) for each in having]
                full = [statistics.mean(each[FULL]) for each in having]
                percent = [100 * std / mean for std, mean in zip(stds, means, strict=True)]
                found = {
                    "mean_ms": _across(means, FOLLOWING), "std_ms": _across(stds, FOLLOWING),
                    "deviation_percent": _across(percent, FOLLOWING),
                    "ratio": _across([a / b for a, b in zip(means, full, strict=True)], FOLLOWING),
                    "percents": percent,
                }  # fmt: skip
                rows += [row.to_dict() | {"phase": phase, "warmups": w} | found] if having else []
    columns = "phase warmups mean_ms std_ms deviation_percent ratio percents"
    return _frame(rows, records, columns, "Mean or deviation of ten steps, as the geometric mean over processes,")


def pivot(records: pd.DataFrame, value: str) -> pd.DataFrame:
    """The rows of `after_warmups` with the numbers of warm-ups side by side: a column `<value>_after_<w>` each."""
    table = after_warmups(records)
    keys = [*records.attrs["fields"], "phase"]
    rows = [
        {**group.iloc[0].to_dict(), **{f"{value}_after_{w}": v for w, v in zip(group["warmups"], group[value])}}
        for _, group in table.groupby(keys, sort=False)
    ]  # fmt: skip
    said = {"mean_ms": "Mean", "std_ms": "Standard deviation", "deviation_percent": "Deviation relative to the mean"}
    columns = " ".join(f"{value}_after_{w}" for w in WARMUPS)
    return _frame(rows, records, f"phase {columns}", f"{said[value]} of ten steps, as the geometric mean over processes,")


def _frame(rows: list[dict], records: pd.DataFrame, columns: str, what: str) -> pd.DataFrame:
    """The rows as a table that has these columns also when it is empty, and says what its numbers are."""
    fixed = ["machine", "hardware", "status", "why", "codes", "restless"]
    frame = pd.DataFrame(rows, columns=None if rows else [*records.attrs["fields"], *fixed, *columns.split()])
    frame.attrs["what"] = what
    return frame


def one_against_five(records: pd.DataFrame) -> pd.DataFrame:
    """One row a case: the `ratio` of the mean of ten whole steps after one warm-up to that after five, process by
    process, with its `verdict` (by Holm over the rows) and `visible_percent`; nothing from fewer than 3 processes."""
    rows, found = [], []
    for row, group in _cases(records):
        windows = [_windows(times) for times in estimates.samples(group, "first_total_ms").values()]
        ratios = [statistics.mean(each[1]) / statistics.mean(each[FULL]) for each in windows if FULL in each]
        if len(ratios) >= stats.ENOUGH_ROUNDS:
            found.append(stats.across(ratios, FOLLOWING * len(ratios), stats.MEDIANS))
            rows.append(row.to_dict() | {"ratio": found[-1].ratio})
    frame = _frame(rows, records, "ratio", "Ratio")
    visible = pd.Series([100 * one.visible(len(found)) for one in found], dtype=float)
    return frame.assign(verdict=stats.verdicts(found), visible_percent=visible)


def published() -> pd.DataFrame:
    """The published means by warm-ups, one row a source, phase, case and number of `warmups`: `mean_ms, std_ms,
    deviation_percent` and `ratio` to the mean after the most warm-ups of the same case, which is an unstated number in
    a source that states it only for what it varied."""
    table = results.published("end_to_end")
    table = table[(table["how"] == "measured") & table["std_ms"].notna() & ~table["compiled"].astype(bool)]
    table = table[table["dtype"] == "float32"].assign(warmups=table["warmup_steps"].fillna(math.inf))
    keys = ["source", "hardware", "model", "context_length", "phase"]
    most = table.sort_values("warmups").groupby(keys)["mean_ms"].transform("last")
    varied = table.groupby(keys)["warmups"].transform("nunique") > 1
    table = table.assign(ratio=table["mean_ms"] / most, deviation_percent=100 * table["std_ms"] / table["mean_ms"])
    table = table.rename(columns={"model": "size"})[varied]
    return table.assign(source=compare.named(table["source"]))


def _ours(records: pd.DataFrame) -> pd.DataFrame:
    """The rows of `after_warmups` as plain numbers, to be set beside published ones."""
    table = after_warmups(records)
    table = table[table["phase"] != "train_step"] if len(table) else table
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


def claimed(records: pd.DataFrame) -> pd.DataFrame:
    """What the write-ups claim of warm-ups (`claim`, `said_by`), beside what the published tables and the records here
    hold (`in_tables`, `here`), in words."""
    said = results.published("claims")
    said = said[said["experiment"] == "warmup"].set_index("id")
    checks = {"spread-under-one-percent": _small, "cold-spread": _cold_spread, "one-warmup-nearly-enough": _one_enough}
    ours, theirs = _ours(records), published()
    rows = [
        {"claim": said.at[name, "claim"], "said_by": said.at[name, "source"],
         "in_tables": check(theirs), "here": check(ours)}
        for name, check in checks.items()
    ]  # fmt: skip
    return pd.DataFrame(rows)


def _small(table: pd.DataFrame) -> str:
    """How many deviations after the most warm-ups are small; of a published table those of a stated number alone."""
    most = table[(table["warmups"] == FULL)]
    small = (most["deviation_percent"] < NOISE_PERCENT).sum()
    return f"in {small} of {len(most)} rows" if len(most) else tables.MISSING


def _cold_spread(table: pd.DataFrame) -> str:
    without = table[table["warmups"] == 0]["deviation_percent"]
    return f"at most {tables.number(without.max() / 100)} times the mean" if len(without) else tables.MISSING


def _one_enough(table: pd.DataFrame) -> str:
    """The range of the ratio of the mean after one warm-up to that after the most."""
    ratios = table[table["warmups"] == 1]["ratio"]
    return f"{ratios.min():.3f} to {ratios.max():.3f} times the mean after more" if len(ratios) else tables.MISSING


def describe(records: pd.DataFrame) -> pd.DataFrame:
    """One row a source, statistic (`mean_ms` or `std_ms` of ten steps) and number of warm-ups: the count, mean, std,
    min, quartiles and max of it over sizes, contexts and phases, as write-up 002 describes its own."""
    theirs = published()
    both = pd.concat([_ours(records), theirs[theirs["source"] == "write-up 002"]], ignore_index=True)
    rows = [
        {"source": source, "statistic": tables.HEADINGS[name], "warmups": f"{w:.0f}", **group[name].describe()}
        for name in ("mean_ms", "std_ms")
        for (source, w), group in both.groupby(["source", "warmups"], sort=False)
    ]
    return pd.DataFrame(rows).astype({"count": int})


def answer(records: pd.DataFrame, of: Mapping, where: str) -> Statement:
    """How much longer the first step takes, and from which step on the series is steady."""
    table = estimates.select(steady(records), **of)
    if len(table) != 1 or table["first_ratio"].iloc[0] is None:
        return Statement("The first steps of a fresh process were not measured here.", NO_DATA, "warmup")
    row = table.iloc[0]
    starts = row["steady_from"].split(", ")
    settled = sorted(int(start) for start in starts if start != "never")
    text = f"The first step of a fresh process takes {tables.interval(row['first_ratio'])} times as long as its later ones"
    text += f" {where}: " if where else ": "
    if settled:
        span = f"{settled[0]}" if settled[0] == settled[-1] else f"{settled[0]} to {settled[-1]}"
        text += f"the series is steady from step {span} on in {len(settled)} of {len(starts)} processes."
    else:
        text += f"in none of {len(starts)} processes is the series ever shown to be steady."
    return Statement(text, "measured", f"Steady from step, by process: {row['steady_from']}.")


def variation(records: pd.DataFrame, warmups: int) -> Statement:
    """How much ten whole steps vary after so many warm-ups, in all cases."""
    table = after_warmups(records)
    table = table[(table["warmups"] == warmups) & (table["phase"] == "train_step")]
    percents = [percent for row in table["percents"] for percent in row]
    after = {0: "Without a warm-up", 1: "After one warm-up"}.get(warmups, f"After {warmups} warm-ups")
    if not percents:
        return Statement(f"{after} nothing was measured here.", NO_DATA, "warmup")
    small = sum(percent < NOISE_PERCENT for percent in percents)
    text = (
        f"{after}, the standard deviation of ten steps is {tables.number(min(percents))} to "
        f"{tables.number(max(percents))}% of their mean, with a median of {tables.number(statistics.median(percents))}%; "
        f"it is under {NOISE_PERCENT:g}% in {small} of {len(percents)} processes."
    )
    return Statement(text, "measured", f"{len(table)} cases, {len(percents)} processes, whole steps.")


def one_outlier(records: pd.DataFrame, of: Mapping) -> Statement:
    """What the deviation without warm-ups would be if the first step alone were longer, beside what it is."""
    first = estimates.select(steady(records), **of)
    table = estimates.select(after_warmups(records), **of, warmups=0, phase="train_step")
    if len(table) != 1 or len(first) != 1:
        return Statement("What the first step alone explains was not measured here.", NO_DATA, "warmup")
    times = first["first_ratio"].iloc[0].value
    expected = outlier_percent(times)
    found = table["deviation_percent"].iloc[0]
    text = (
        f"One step {tables.number(times)} times as long as nine equal ones would make a deviation of "
        f"{tables.number(expected)}% of the mean; measured is {tables.interval(found)}%."
    )
    return Statement(text, "derived", "The formula above, with the ratio of the first step to the later ones.")


def outlier_percent(times: float) -> float:
    """The standard deviation, in percent of the mean, of ten steps of which one is so many times as long as the nine
    others, which are equal."""
    return 100 * math.sqrt(FOLLOWING) * (times - 1) / (FOLLOWING - 1 + times)


def where_it_goes(records: pd.DataFrame, of: Mapping) -> Statement:
    """In which phases the first step spends what it takes beyond a later one."""
    table = estimates.select(steady(records), **of)
    shares = {
        name.partition("_")[0]: table[name].iloc[0]
        for name in table.columns
        if name.endswith("_excess_percent") and len(table) == 1
    }
    if not shares:
        return Statement("In which phase the first step is longer was not measured here.", NO_DATA, "warmup")
    parts = [f"{tables.number(share)}% of it in the {phase}" for phase, share in shares.items()]
    text = f"What the first step takes beyond a later one lies, {', '.join(parts[:-1])} and {parts[-1]}."
    return Statement(text, "measured", "First step less the median of the last half of the steps, phase by phase.")


def equivalence(records: pd.DataFrame) -> Statement:
    """Whether one warm-up gives the same mean as five, in each case."""
    table = estimates.labelled(one_against_five(records), records.attrs["fields"])
    if table.empty:
        text = "Whether one warm-up is as good as five cannot be said here, since that takes three fresh processes."
        return Statement(text, NO_DATA, "warmup")
    said = {
        "same": f"is the same within {stats.MARGIN:.0%} as",
        "faster": "is less than",
        "slower": "is more than",
        "inconclusive": "is not shown to be the same as, nor to differ from,",
    }
    every = [
        Statement(
            f"At {row['label']}, the mean of ten steps after one warm-up {said[row['verdict']]} that after five: the "
            f"ratio is {tables.interval(row['ratio'])}.",
            row["verdict"], f"{row['label']}: t test over the logarithms of {row['ratio'].rounds} processes' ratios.",
        )
        for _, row in table.iterrows()
    ]  # fmt: skip
    return together(*every)


def draw(records: pd.DataFrame) -> Axes:
    """Every step in order, a faint line a process and a panel a case, with a mark where the process is steady."""
    measured = [(row, group) for row, group in _cases(records) if estimates.samples(group, "first_total_ms")]
    labels = estimates.labelled(pd.DataFrame([row for row, _ in measured]), records.attrs["fields"]) if measured else {}
    across = min(2, max(1, len(measured)))
    down = max(1, math.ceil(len(measured) / across))
    with mpl.rc_context(plots.STYLE):
        _, grid = plt.subplots(down, across, figsize=(plots.WIDTH, 0.6 + 2.4 * down), squeeze=False)
        for ax in grid.flat[len(measured) :]:
            ax.set_visible(False)
        for index, (ax, (_, group)) in enumerate(zip(grid.flat, measured, strict=False)):
            _panel(ax, list(estimates.samples(group, "first_total_ms").values()))
            ax.set_title(labels["label"].iloc[index])
    return grid[0][0]


def _panel(ax: Axes, processes: list[list[float]]) -> None:
    for times in processes:
        ax.plot(range(1, len(times) + 1), times, color=plots.BLUE, alpha=0.5, linewidth=1, marker=".", markersize=4)
        start = series.steady(times)
        if start is not None:
            ax.plot(start + 1, times[start], "s", color=plots.ORANGE, markersize=6)
    far = max(max(times) / statistics.median(times) for times in processes)
    if far > 3:
        ax.set_yscale("log")
        plots.round_ticks(ax)
    ax.set(xlabel="step", ylabel="time of the step, ms")
    ax.grid(axis="y")


def note(records: pd.DataFrame) -> str:
    """Hardware and number of processes behind the figure; empty where nothing was measured."""
    measured = records[estimates.column(records, "first_total_ms").notna()]
    if measured.empty:
        return ""
    steps = sorted({len(times) for times in measured["first_total_ms"]})
    return f"{', '.join(dict.fromkeys(measured['hardware']))}. {len(measured)} fresh processes of {steps[-1]} steps each."
