"""Analyse first steps of fresh processes, and published claims on warm-ups.

Each process gives one series of first steps. The steps after any number of warm-ups are read from it, so two numbers
of warm-ups are compared without the noise between processes.
"""

import math
import statistics
from collections.abc import Mapping

import matplotlib as mpl
import matplotlib.pyplot as plt
import pandas as pd
from matplotlib.axes import Axes

from lib.report import claims, plots, sentences, tidy
from lib.report.claims import Found
from lib.report.headings import heading
from lib.report.hypotheses import Hypothesis
from lib.report.published import published_table
from lib.report.sentences import NO_DATA, Statement, of_records
from lib.stats import comparisons, digits, intervals, steady_state

WARMUPS = (0, 1, 2, 5)
FULL = 5  # warm-ups that the others are compared with, as in the assignment
FOLLOWING = 10  # steps after the warm-ups that give mean and deviation, as in the assignment
WHOLE = "whole step"
PHASES = {  # metrics by phase; the write-ups timed forward and backward together
    "forward": "first_forward_ms",
    "forward and backward": "first_forward_backward_ms",
    WHOLE: "first_total_ms",
}
STATISTICS = {  # of the steps after warm-ups, as named in a table's note
    "mean_ms": "Mean", "std_ms": "Standard deviation", "deviation_percent": "Deviation relative to the mean",
}  # fmt: skip
NOISE_PERCENT = 1.0  # smaller deviations are called small, as in a write-up


def cold(records: pd.DataFrame) -> pd.DataFrame:
    """Select records of processes that had measured nothing before.

    Cases that could not be measured are kept. Adds `first_forward_backward_ms` where both passes were measured."""
    earlier = tidy.column(records, "earlier_cases")
    kept = records[(earlier == 0) | (records["status"] != "ok")]
    return tidy.with_sum(kept, PHASES["forward and backward"], "first_forward_ms", "first_backward_ms")


def _late_ms(times: list[float]) -> float:
    """Return the median of the last half of the steps."""
    return statistics.median(times[len(times) // 2 :])


def _steps_after_warmups(group: pd.DataFrame, metric: str) -> list[dict[int, list[float]]]:
    """Return the steps after each number of warm-ups, for each long enough process."""
    series = tidy.samples(group, metric).values()
    return [{w: times[w : w + FOLLOWING] for w in WARMUPS} for times in series if len(times) >= FULL + FOLLOWING]


def _as_table(rows: list[dict], what: str, *columns: str) -> pd.DataFrame:
    """Make a table with a note on its numbers; if empty, it has these columns."""
    frame = pd.DataFrame(rows, columns=None if rows else columns)
    frame.attrs["what"] = what
    return frame


def steady(records: pd.DataFrame) -> pd.DataFrame:
    """Compare each case's first step with later ones, and find when it is steady.

    `later_ms` is the median of the last half of the steps, and `first_ratio` divides the first step by it.
    `<phase>_excess_percent` is a phase's part of the first step's excess over all processes. `steady_from` lists the
    first steady step of each process."""
    rows = []
    for row, group in tidy.by_case(records):
        totals = list(tidy.samples(group, "first_total_ms").values())
        starts = [steady_state.steady(times) for times in totals]
        half = len(totals[0]) // 2 if totals else 0
        row |= {
            "first_step_ms": intervals.of_processes([times[0] for times in totals]),
            "later_ms": intervals.of_processes([_late_ms(times) for times in totals], half),
            "first_ratio": intervals.of_processes([times[0] / _late_ms(times) for times in totals]),
            "steady_from": ", ".join("never" if start is None else str(start + 1) for start in starts) or None,
        }
        by_phase = {name: tidy.samples(group, f"first_{name}_ms") for name in ("forward", "backward", "optimizer")}
        extra = {
            name: sum(times[0] - _late_ms(times) for times in found.values())
            for name, found in by_phase.items()
            if found
        }
        whole = sum(extra.values())
        rows.append(row | {f"{name}_excess_percent": 100 * ms / whole for name, ms in extra.items() if whole > 0})
    return _as_table(rows, "Geometric mean", "steady_from")


def after_warmups(records: pd.DataFrame) -> pd.DataFrame:
    """Return statistics of the ten steps after warm-ups, across processes.

    One row per case, phase and number of `warmups`: `mean_ms`, `std_ms`, their quotient `deviation_percent`, and
    `ratio`, the mean relative to that after 5 warm-ups."""
    rows = []
    for row, group in tidy.by_case(records):
        for phase, metric in PHASES.items():
            windows = _steps_after_warmups(group, metric)
            for w in WARMUPS if windows else ():
                means = [statistics.mean(each[w]) for each in windows]
                stds = [statistics.stdev(each[w]) for each in windows]
                percent = [100 * std / mean for std, mean in zip(stds, means, strict=True)]
                ratios = [mean / statistics.mean(each[FULL]) for mean, each in zip(means, windows, strict=True)]
                found = {"mean_ms": means, "std_ms": stds, "deviation_percent": percent, "ratio": ratios}
                found = {name: intervals.of_processes(values, FOLLOWING) for name, values in found.items()}
                rows.append(row | {"phase": phase, "warmups": w, "percents": percent} | found)
    columns = (*records.attrs["fields"], "phase", "warmups", "percents", "ratio", *STATISTICS)
    return _as_table(rows, "Mean or deviation of ten steps, as the geometric mean over processes,", *columns)


def pivot(records: pd.DataFrame, value: str) -> pd.DataFrame:
    """Spread `after_warmups` into one column `<value>_after_<w>` per number of warm-ups."""
    rows = [
        group.iloc[0].to_dict()
        | {f"{value}_after_{w}": found for w, found in zip(group["warmups"], group[value], strict=True)}
        for _, group in after_warmups(records).groupby([*records.attrs["fields"], "phase"], sort=False)
    ]
    return _as_table(rows, f"{STATISTICS[value]} of ten steps, as the geometric mean over processes,")


def one_against_five(records: pd.DataFrame) -> pd.DataFrame:
    """Compare one warm-up with five by the mean of ten whole steps, case by case.

    `ratio` is taken in each process. A case needs 3 processes."""
    rows, found = [], []
    for row, group in tidy.by_case(records):
        windows = _steps_after_warmups(group, PHASES[WHOLE])
        ratios = [statistics.mean(each[1]) / statistics.mean(each[FULL]) for each in windows]
        if len(ratios) >= intervals.ENOUGH_ROUNDS:
            logs, n = tuple(map(math.log, ratios)), FOLLOWING * len(ratios)
            found.append(comparisons.moderated(comparisons.Measured(logs, comparisons.MEDIANS, n)))
            rows.append(row | {"ratio": found[-1].ratio})
    return _as_table(rows, "Ratio").assign(verdict=comparisons.verdicts(found))


def where(case: Mapping) -> str:
    """Name a case in a few words."""
    precision = case["precision"] if case["precision"] != "fp32" else ""
    words = [case["size"], f"context {case['context_length']:,}", precision, "compiled" if case["compiled"] else ""]
    return ", ".join(filter(None, words))


def draw(records: pd.DataFrame) -> Axes:
    """Draw every step in order, one panel per case, and mark where processes are steady."""
    measured = [(row, tidy.samples(group, "first_total_ms")) for row, group in tidy.by_case(records)]
    measured = [(row, list(found.values())) for row, found in measured if found]
    across = min(2, max(1, len(measured)))
    down = max(1, math.ceil(len(measured) / across))
    with mpl.rc_context(plots.STYLE):
        _, grid = plt.subplots(down, across, figsize=(plots.WIDTH, 0.6 + 2.4 * down), squeeze=False)
        for ax in grid.flat[len(measured) :]:
            ax.set_visible(False)
        for ax, (row, processes) in zip(grid.flat, measured, strict=False):
            _draw_panel(ax, processes)
            ax.set_title(where(row))
    return grid[0][0]


def _draw_panel(ax: Axes, processes: list[list[float]]) -> None:
    for times in processes:
        ax.plot(range(1, len(times) + 1), times, color=plots.BLUE, alpha=0.5, linewidth=1, marker=".", markersize=4)
        start = steady_state.steady(times)
        if start is not None:
            ax.plot(start + 1, times[start], "s", color=plots.ORANGE, markersize=6)
    if max(max(times) / statistics.median(times) for times in processes) > 3:
        ax.set_yscale("log")
        ax.minorticks_off()
        plots.round_ticks(ax.yaxis)
    ax.set(xlabel="step", ylabel="time of the step, ms")
    ax.grid(axis="y")


def note(records: pd.DataFrame) -> str:
    """Return the hardware and number of processes behind the figure, if any."""
    measured = records[tidy.column(records, "first_total_ms").notna()]
    if measured.empty:
        return ""
    names, steps = ", ".join(dict.fromkeys(measured["hardware"])), max(map(len, measured["first_total_ms"]))
    return f"{names}. {len(measured)} fresh processes of {steps} steps each."


def published() -> pd.DataFrame:
    """Return the published means by warm-ups, one row per source, phase and case.

    `ratio` divides a mean by the mean after the most warm-ups of the same case. If a source does not state how many
    warm-ups it made, `warmups` is infinity, which counts as the most."""
    table = published_table("end_to_end")
    table = table[(table["how"] == "measured") & table["std_ms"].notna() & ~table["compiled"].astype(bool)]
    table = table[table["dtype"] == "float32"].assign(warmups=table["warmup_steps"].fillna(math.inf))
    keys = ["source", "hardware", "model", "context_length", "phase"]
    most = table.sort_values("warmups").groupby(keys)["mean_ms"].transform("last")
    varied = table.groupby(keys)["warmups"].transform("nunique") > 1
    table = table.assign(ratio=table["mean_ms"] / most, deviation_percent=100 * table["std_ms"] / table["mean_ms"])
    table = table.rename(columns={"model": "size"})[varied]
    return table.assign(phase=table["phase"].str.replace("_", " and "))


def _own_as_numbers(records: pd.DataFrame) -> pd.DataFrame:
    """Return the rows of `after_warmups` as plain numbers, to join published ones."""
    table = after_warmups(records)
    table = table[table["phase"] != WHOLE]
    plain = {name: table[name].map(lambda found: found.value).astype(float) for name in (*STATISTICS, "ratio")}
    return table.assign(source="this report", **plain)


def beside_published(records: pd.DataFrame) -> pd.DataFrame:
    """Summarise this report and published means by source, phase and warm-ups.

    Each row counts its `cases`, the sizes and contexts. Over them it gives the median, least and most of two numbers:
    `ratio` (see `published`) and `deviation_percent`, the standard deviation in percent of the mean."""
    both = pd.concat([_own_as_numbers(records), published()], ignore_index=True)
    both["warmups"] = both["warmups"].map(lambda count: "not stated" if math.isinf(count) else f"{count:.0f}")
    names, ways = ("ratio", "deviation_percent"), {"median": "median", "least": "min", "most": "max"}
    told = {f"{name}_{word}": (name, way) for name in names for word, way in ways.items()}
    groups = both.groupby(["source", "hardware", "phase", "warmups"], sort=False)
    return groups.agg(cases=("source", "size"), **told).reset_index()


def describe(records: pd.DataFrame) -> pd.DataFrame:
    """Describe `mean_ms` and `std_ms` over cases, as write-up 002 does.

    One row per source, statistic and number of warm-ups: count, mean, std, min, quartiles and max."""
    both = pd.concat([_own_as_numbers(records), tidy.select(published(), source="write-up 002")], ignore_index=True)
    rows = [
        {"source": source, "statistic": heading(name), "warmups": f"{w:.0f}", **group[name].describe()}
        for name in ("mean_ms", "std_ms")
        for (source, w), group in both.groupby(["source", "warmups"], sort=False)
    ]
    return pd.DataFrame(rows).astype({"count": int})


def _not_measured(what: str) -> Statement:
    return Statement(f"{what} measured here.", NO_DATA, "warmup")


@of_records()
def answer(records: pd.DataFrame, of: Mapping, where: str) -> Statement:
    """State how much longer the first step is, and from which step on it is steady."""
    row = tidy.one(steady(records), of)
    if row.get("first_ratio") is None:
        return _not_measured("The first steps of a fresh process were not")
    starts = row["steady_from"].split(", ")
    found = sorted(int(start) for start in starts if start != "never")
    every, at = digits.count(len(starts)), f" {where}" if where else ""
    end = f"in none of {every} processes is the series ever shown to be steady."
    if found:
        span = " to ".join(map(digits.count, dict.fromkeys((found[0], found[-1]))))
        end = f"the series is steady from step {span} on in {digits.count(len(found))} of {every} processes."
    lead = f"The first step of a fresh process takes {digits.interval(row['first_ratio'])} times as long as its later"
    return Statement(f"{lead} ones{at}: {end}", "measured", f"Steady from step, by process: {row['steady_from']}.")


@of_records()
def variation(records: pd.DataFrame, warmups: int) -> Statement:
    """State how much ten whole steps vary after this many warm-ups, in all cases."""
    table = tidy.select(after_warmups(records), warmups=warmups, phase=WHOLE)
    percents = [percent for row in table["percents"] for percent in row]
    after = {0: "Without a warm-up", 1: "After one warm-up"}.get(warmups, f"After {warmups} warm-ups")
    if not percents:
        return _not_measured(f"{after} nothing was")
    small = sum(percent < NOISE_PERCENT for percent in percents)
    least, middle, most = (digits.number(of(percents)) for of in (min, statistics.median, max))
    text = (
        f"{after}, the standard deviation of ten steps is {least} to {most}% of their mean, {middle}% in the median; "
        f"it is under {NOISE_PERCENT:g}% in {digits.count(small)} of {digits.count(len(percents))} processes."
    )
    return Statement(text, "measured", f"{len(table)} cases, {len(percents)} processes, whole steps.")


@of_records()
def one_outlier(records: pd.DataFrame, of: Mapping) -> Statement:
    """State the deviation that one long step explains, beside the measured one."""
    first = tidy.one(steady(records), of)
    without = tidy.one(after_warmups(records), {**of, "warmups": 0, "phase": WHOLE})
    if first.empty or without.empty:
        return _not_measured("What the first step alone explains was not")
    times = first["first_ratio"].value
    text = (
        f"One step {digits.number(times)} times as long as nine equal ones would make a deviation of "
        f"{digits.number(outlier_percent(times))}% of the mean; measured is "
        f"{digits.interval(without['deviation_percent'])}%."
    )
    return Statement(text, "derived", "The formula above, with the ratio of the first step to the later ones.")


def outlier_percent(times: float) -> float:
    """Return ten steps' deviation, in percent of the mean, if one is `times` as long."""
    return 100 * math.sqrt(FOLLOWING) * (times - 1) / (FOLLOWING - 1 + times)


@of_records()
def steady_after(records: pd.DataFrame) -> Statement:
    """State how many processes are steady after one, two and five warm-ups, or never."""
    texts = [text for text in steady(records)["steady_from"] if text]
    starts = [start for text in texts for start in text.split(", ")]
    if not starts:
        return _not_measured("From which step a process is steady was not")
    by = {w: sum(start != "never" and int(start) <= w + 1 for start in starts) for w in (1, 2, FULL)}
    never = starts.count("never")
    text = (
        f"Of {len(starts)} processes {by[1]} are steady after one warm-up, {by[2]} after two and {by[FULL]} after "
        f"five; {never or 'none'} never {'is' if never < 2 else 'are'}."
    )
    return Statement(text, "measured", f"Steady from step: {'; '.join(texts)}.")


@of_records()
def where_it_goes(records: pd.DataFrame, of: Mapping) -> Statement:
    """State which phases make the first step longer."""
    row = tidy.one(steady(records), of)
    shares = {name.partition("_")[0]: row[name] for name in row.index if name.endswith("_excess_percent")}
    if not shares:
        return _not_measured("In which phase the first step is longer was not")
    parts = [f"{digits.number(share)}% in the {phase}" for phase, share in shares.items()]
    last = f" and {parts.pop()}" if len(parts) > 1 else ""
    text = f"Of what the first step takes beyond a later one, the data show {', '.join(parts)}{last}."
    return Statement(text, "measured", "First step less the median of the last half of the steps, phase by phase.")


@of_records()
def equivalence(records: pd.DataFrame) -> Statement:
    """State whether one warm-up gives the same mean as five, in each case."""
    table = one_against_five(records)
    if table.empty:
        text = "Whether one warm-up is as good as five cannot be said here, since that takes three fresh processes."
        return Statement(text, NO_DATA, "warmup")
    said = {
        "same": f"is the same within {comparisons.MARGIN:.0%} as",
        "faster": "is less than",
        "slower": "is more than",
        "unclear": "is not shown to be the same as, nor to differ from,",
    }
    every = [
        Statement(
            f"At {where(row)}, the mean of ten steps after one warm-up {said[row['verdict']]} that after five: the "
            f"ratio is {digits.interval(row['ratio'])}.",
            row["verdict"], f"{where(row)}: t test over the logarithms of {row['ratio'].rounds} processes' ratios.",
        )
        for _, row in table.iterrows()
    ]  # fmt: skip
    return sentences.together(*every)


def theory(starts: pd.DataFrame) -> list[Hypothesis]:
    """Predict ten steps after no and one warm-up, if only the first step is long."""
    rows, after, n = [], tidy.select(after_warmups(starts), phase=WHOLE), FOLLOWING
    for _, row in steady(starts).iterrows():
        case = row[starts.attrs["fields"]].to_dict()
        none, one = (tidy.one(after, {**case, "warmups": w}) for w in (0, 1))
        r, to_five = row["first_ratio"].value if row["first_ratio"] else math.nan, "to that after five"
        at = sentences.at(", {size} at {context_length}", case)
        how, percent = "√n (r - 1) / (n - 1 + r), r measured", none.get("deviation_percent")
        rows += [
            (f"deviation without warm-up, %{at}", how, outlier_percent(r), percent),
            (f"mean without warm-up {to_five}{at}", "(n - 1 + r) / n, r measured", (n - 1 + r) / n, none.get("ratio")),
            (f"mean after one warm-up {to_five}{at}", "all is done once, in the first step", 1.0, one.get("ratio")),
        ]
    return [Hypothesis(*row) for row in rows or [("the first step", "all is done once, in it", None, None)]]


def _find_deviations(data: claims.Data, after: int) -> tuple[list[float], tuple[str, ...]]:
    """Return the deviations of ten whole steps by process, in percent of their mean."""
    records = claims.rows(data, "warmup")
    if records.empty or claims.printed(records):
        return list(tidy.select(records, warmups=after).get("deviation_percent", [])), ()
    table = tidy.select(after_warmups(cold(records)), phase=WHOLE, warmups=after)
    return [percent for percents in table["percents"] for percent in percents], claims.names(records)


def spread(data: claims.Data) -> list[Found]:
    """Find the deviations after five warm-ups."""
    values, names = _find_deviations(data, FULL)
    middle = intervals.median([values]) if values else None
    label = f"% of the mean, median of {len(values)} cases and processes"
    return [claims.estimated(label, middle, (0, 1), names)] if middle else []


def cold_spread(data: claims.Data) -> list[Found]:
    """Find the largest deviation without warm-up, in units of the mean."""
    values, names = _find_deviations(data, 0)
    most = max(values, default=0) / 100
    return [claims.exact(f"times the mean at most, of {len(values)}", most, (1.44, math.inf), names)] if values else []


def one_warmup(data: claims.Data) -> list[Found]:
    """Find the mean after one warm-up relative to that after five, in each case."""
    near, label = (1 / (1 + comparisons.MARGIN), 1 + comparisons.MARGIN), claims.SIZED
    records = claims.rows(data, "warmup")
    if records.empty or claims.printed(records):
        rows = tidy.select(records, warmups=1).to_dict("records")
        return [claims.exact(f"{label}, {{phase}}".format(**row), row["ratio"], near) for row in rows]
    records = cold(records)
    return [
        claims.estimated(label.format(**row), row["ratio"], near,
                         sentences.names(records, {name: row[name] for name in records.attrs["fields"]}))
        for row in one_against_five(records).to_dict("records")
    ]  # fmt: skip
