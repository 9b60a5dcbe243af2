"""Analyse first steps of fresh processes, and published claims on warm-ups.

Each process gives one series of first steps. The steps after any number of warm-ups are read from it, so two numbers
of warm-ups are compared without the noise between processes.
"""

import math
import statistics
from collections.abc import Callable, Mapping
from dataclasses import replace

import matplotlib as mpl
import numpy as np
import pandas as pd
from matplotlib.axes import Axes

from lib.records.frame import Frame
from lib.report import claims, plots, sentences, tables, tidy
from lib.report.claims import Found
from lib.report.hypotheses import Hypothesis
from lib.report.published import published_table
from lib.report.sentences import Statement, of_records
from lib.stats import comparisons, digits, intervals, steady_state
from lib.stats.intervals import Interval

WARMUPS = (0, 1, 2, 5)
FULL = 5  # warm-ups that the others are compared with, as in the assignment
FOLLOWING = 10  # steps after the warm-ups that give mean and deviation, as in the assignment
WHOLE = "whole step"
PHASES = {  # metrics by phase; the write-ups timed forward and backward together
    "forward": "first_forward_ms",
    "forward and backward": "first_forward_backward_ms",
    WHOLE: "first_total_ms",
}
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


def _steps_after_warmups(group: pd.DataFrame, metric: str) -> dict[int, np.ndarray]:
    """Return ten steps after each number of warm-ups, a row for each process that is long enough.

    Empty if none is."""
    series = [times for times in tidy.samples(group, metric).values() if len(times) >= FULL + FOLLOWING]
    return {w: np.array([times[w : w + FOLLOWING] for times in series]) for w in WARMUPS if series}


def steady(records: pd.DataFrame) -> pd.DataFrame:
    """Compare each case's first step with later ones, and find when it is steady.

    `case` is its size and context, `later_ms` the median of the last half of the steps, and `first_ratio` divides the
    first step by it. `excess_ms` is by how much each phase of the first steps exceeds that, over all processes.
    `starts` has the first steady step of each process or None, and `steady_from` lists them."""
    rows = []
    for row, group in tidy.by_case(records):
        totals = list(tidy.samples(group, PHASES[WHOLE]).values())
        starts = [None if start is None else start + 1 for start in map(steady_state.steady, totals)]
        half = len(totals[0]) // 2 if totals else 0
        by_phase = {name: tidy.samples(group, f"first_{name}_ms") for name in ("forward", "backward", "optimizer")}
        rows.append(row | {
            "case": " ".join([row["size"], str(row["context_length"]), *["compiled"] * row["compiled"]]),
            "first_step_ms": intervals.of_processes([times[0] for times in totals]),
            "later_ms": intervals.of_processes([_late_ms(times) for times in totals], half),
            "first_ratio": intervals.of_processes([times[0] / _late_ms(times) for times in totals]),
            "starts": starts, "steady_from": ", ".join(str(start or "never") for start in starts) or None,
            "excess_ms": {name: sum(times[0] - _late_ms(times) for times in found.values())
                          for name, found in by_phase.items()},
        })  # fmt: skip
    return Frame(rows, columns=None if rows else ["steady_from"]).with_origin(what="Geometric mean")


def after_warmups(records: pd.DataFrame) -> pd.DataFrame:
    """Return statistics of the ten steps after warm-ups, across processes.

    One row per case, phase and number of `warmups`: `mean_ms`, `std_ms`, their quotient `deviation_percent`, and
    `ratio`, the mean relative to that after 5 warm-ups."""
    rows = []
    for row, group in tidy.by_case(records):
        for phase, metric in PHASES.items():
            windows = _steps_after_warmups(group, metric)
            for w, steps in windows.items():
                means, stds = steps.mean(axis=1), steps.std(axis=1, ddof=1)
                percents, ratios = 100 * stds / means, means / windows[FULL].mean(axis=1)
                found = {"mean_ms": means, "std_ms": stds, "deviation_percent": percents, "ratio": ratios}
                found = {name: intervals.of_processes(list(each), FOLLOWING) for name, each in found.items()}
                rows.append(row | {"phase": phase, "warmups": w, "percents": list(percents)} | found)
    columns = [*records.fields, "phase", "warmups", "percents", "ratio", "mean_ms", "std_ms", "deviation_percent"]
    what = "Mean or deviation of ten steps, as the geometric mean over processes,"
    return Frame(rows, columns=None if rows else columns).with_origin(what=what)


def by_warmups(records: pd.DataFrame) -> pd.DataFrame:
    """Return the rows of `after_warmups` for whole steps, with the deviation of each process in words."""
    table = tidy.select(after_warmups(records), phase=WHOLE)
    table["deviation_by_process_percent"] = [", ".join(map(digits.number, found)) for found in table["percents"]]
    return table


def one_against_five(records: pd.DataFrame) -> pd.DataFrame:
    """Compare one warm-up with five by the mean of ten whole steps, case by case.

    `ratio` is taken in each process. A case needs 3 processes."""
    rows, found = [], []
    for row, group in tidy.by_case(records):
        means = {w: steps.mean(axis=1) for w, steps in _steps_after_warmups(group, PHASES[WHOLE]).items()}
        if means and len(means[1]) >= intervals.ENOUGH_ROUNDS:
            logs = tuple(np.log(means[1] / means[FULL]))
            found.append(comparisons.moderated(comparisons.Measured(logs, comparisons.MEDIANS, FOLLOWING * len(logs))))
            rows.append(row | {"ratio": found[-1].ratio})
    return Frame(rows).assign(verdict=comparisons.verdicts(found))


def where(case: Mapping) -> str:
    """Name a case in a few words."""
    precision = case["precision"] if case["precision"] != "fp32" else ""
    words = [case["size"], f"context {case['context_length']:,}", precision, "compiled" if case["compiled"] else ""]
    return ", ".join(filter(None, words))


@mpl.rc_context(plots.STYLE)
def draw(records: pd.DataFrame) -> Axes:
    """Draw every step in order, one panel per case, and mark where processes are steady."""
    measured = [(row, list(tidy.samples(group, PHASES[WHOLE]).values())) for row, group in tidy.by_case(records)]
    measured = [(row, processes) for row, processes in measured if processes]
    grid = plots.axes(max(1, len(measured)), 2.6)
    for number, (ax, (row, processes)) in enumerate(zip(grid, measured, strict=False)):
        for times in processes:
            ax.plot(range(1, len(times) + 1), times, color=plots.BLUE, linewidth=1, marker=".", markersize=4)
            start = steady_state.steady(times)
            if start is not None:
                ax.plot(start + 1, times[start], "s", color=plots.ORANGE, markersize=6)
        if max(max(times) / statistics.median(times) for times in processes) > 3:
            ax.set_yscale("log")
            ax.minorticks_off()
            plots.round_ticks(ax.yaxis)
        ax.set(xlabel="step", title=where(row), ylabel="" if number % 2 else "time of the step, ms")
        ax.grid(axis="y")
    return grid[0]


def note(records: pd.DataFrame) -> str:
    """Return the hardware and number of processes behind the figure, if any."""
    measured = records[tidy.column(records, PHASES[WHOLE]).notna()]
    steps = max(map(len, tidy.column(measured, PHASES[WHOLE])), default=0)
    return tables.hardware(measured, f"Fresh processes: {len(measured)}, of {steps} steps each.")


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


def published_medians() -> pd.DataFrame:
    """Summarise the published means by source, phase and warm-ups, as medians over their `cases`."""
    table = published()
    table["warmups"] = table["warmups"].map(lambda count: "not stated" if math.isinf(count) else f"{count:.0f}")
    groups = table.groupby(["source", "phase", "warmups"], sort=False)
    medians = {f"{name}_median": (name, "median") for name in ("ratio", "deviation_percent")}
    return groups.agg(cases=("source", "size"), **medians).reset_index()


def _not_measured(what: str) -> Statement:
    return sentences.missing(f"{what} measured here.")


def headline_case(records: pd.DataFrame) -> dict:
    """Return the largest eager case in fp32."""
    return tidy.largest(records, "forward_flops", precision="fp32", compiled=False)


def first_line(records: pd.DataFrame) -> Statement:
    """Say in one sentence how long the first step is, when times are steady, and what to discard."""
    case = headline_case(records)
    found = tidy.one(steady(records), case)
    if not found.get("first_ratio"):
        return _not_measured("The first steps of a fresh process were not")
    times = sentences.times(found["first_ratio"])
    number = sentences.quantity(records, case, "first_ratio", found["first_ratio"], times)
    said = f"At {where(found)}, the first step takes {number} as long as later ones, {_settled(found['starts'])}."
    evidence = f"Steady from step, by process: {found['steady_from']}; later is the last half of the steps."
    return Statement(said, "measured", evidence, sentences.names(records, case), (number,))


def answer(records: pd.DataFrame) -> Statement:
    """Say what `first_line` does, and how much noise remains."""
    return sentences.together(first_line(records), noise(records, headline_case(records)))


def _settled(starts: list[int | None]) -> str:
    """Say from which steps processes are steady, how many are, and how many steps to leave out.

    Those are all before the middle process is steady, at least five."""
    found = sorted(filter(None, starts))
    middle = statistics.median_low(start or math.inf for start in starts)
    steps = max(FULL, middle - 1) if math.isfinite(middle) else FULL
    discard = f"discard {'five' if steps == FULL else digits.count(steps)}"
    if not found:
        return f"and times never settle: {discard}"
    said = f"steady from step {digits.count(found[0])}"
    said += f" at the earliest and {digits.count(found[-1])} at the latest" * (found[0] < found[-1])
    some = f" in {digits.count(len(found))} of {digits.count(len(starts))} processes" * (len(found) < len(starts))
    return f"{said}{some}: {discard}"


@of_records()
def noise(records: pd.DataFrame, of: Mapping) -> Statement:
    """State how much ten steps vary after five warm-ups, and if the last ten vary as much."""
    row = tidy.one(by_warmups(records), {**of, "warmups": FULL})
    if row.empty:
        return _not_measured("Ten steps after five warm-ups were not")
    series = tidy.samples(tidy.select(records, **of), PHASES[WHOLE]).values()
    ends = [times[-FOLLOWING:] for times in series if len(times) >= FULL + 2 * FOLLOWING]
    middle = statistics.median(row["percents"])
    least, most = (digits.number(end) for end in (min(row["percents"]), max(row["percents"])))
    vary = f"five warm-up steps, times vary by {digits.number(middle)}%"
    vary += f" ({least} to {most}% by process)" if least != most else ""
    if not ends:
        return Statement(f"After {vary}.", "measured", "Standard deviation in percent of the mean.")
    late = statistics.median(100 * statistics.stdev(times) / statistics.mean(times) for times in ends)
    if middle < NOISE_PERCENT:
        text = f"After {vary}."
    else:
        start, end = ("Even after", "that is noise") if late > middle / 2 else ("After", "the start lasts longer here")
        text = f"{start} {vary}, and by {digits.number(late)}% at the end: {end}."
    return Statement(text, "measured", f"The last {FOLLOWING} steps vary by {digits.number(late)}% in the median.")


@of_records()
def without(records: pd.DataFrame, of: Mapping) -> Statement:
    """State how much ten steps vary after each number of warm-ups."""
    table = tidy.select(by_warmups(records), **of)
    if table.empty:
        return _not_measured("Ten steps after warm-ups were not")
    called = {0: "without a warm-up", 1: "after one", 2: "after two", FULL: "after five"}
    found = [f"{digits.number(statistics.median(row['percents']))}% {called[row['warmups']]}"
             for _, row in table.iterrows()]  # fmt: skip
    text = f"The times of ten steps vary by {sentences.listed(found)}."
    return Statement(text, "measured", "Standard deviation in percent of the mean, median over processes.")


def _through(growing: Callable[[float], float], of: Interval | None) -> Interval | None:
    """Return what a growing function makes of a value and of its interval."""
    return of and replace(of, value=growing(of.value), low=growing(of.low), high=growing(of.high))


def outlier_percent(times: float) -> float:
    """Return ten steps' deviation, in percent of the mean, if one is `times` as long."""
    return 100 * math.sqrt(FOLLOWING) * (times - 1) / (FOLLOWING - 1 + times)


@of_records()
def where_it_goes(records: pd.DataFrame, of: Mapping) -> Statement:
    """State which phases make the first step longer."""
    excess_ms = tidy.one(steady(records), of).get("excess_ms", {})
    longer = {phase: ms for phase, ms in excess_ms.items() if ms > 0}
    if sum(excess_ms.values()) <= 0:
        return _not_measured("In which phase the first step is longer was not")
    named = {"forward": "forward pass", "backward": "backward pass", "optimizer": "optimizer"}
    whole = sum(longer.values())
    parts = [f"{digits.number(100 * ms / whole)}% is in the {named[phase]}" for phase, ms in longer.items()]
    text = f"Of the first step's extra time, {sentences.listed(parts)}."
    return Statement(text, "measured", "First step less the median of the last half of the steps, phase by phase.")


@of_records()
def equivalence(records: pd.DataFrame) -> Statement:
    """Compare the mean after one warm-up with that after five, in each case."""
    table = one_against_five(records)
    if table.empty:
        text = "One warm-up against five takes three fresh processes."
        return sentences.missing(text)
    said = {
        "same": "the same within 3%",
        "faster": "shorter",
        "slower": "longer",
        "unclear": "unclear which is longer",
    }
    every = [
        Statement(
            f"At {where(row)}, the mean step after one warm-up takes {sentences.times(row['ratio'])} as long as "
            f"after five ({said[row['verdict']]}).",
            row["verdict"], f"{where(row)}: t test over the logarithms of {row['ratio'].rounds} processes' ratios.",
        )
        for _, row in table.iterrows()
    ]  # fmt: skip
    return sentences.together(*every)


def theory(starts: pd.DataFrame) -> list[Hypothesis]:
    """Predict ten steps after no and one warm-up, if only the first step is long."""
    rows, after, n = [], tidy.select(after_warmups(starts), phase=WHOLE), FOLLOWING
    for _, row in steady(starts).iterrows():
        case = row[starts.fields].to_dict()
        none, one = (tidy.one(after, {**case, "warmups": w}) for w in (0, 1))
        r, to_five = row["first_ratio"], "to that after five"
        at = sentences.at(", {size} at {context_length}", case)
        how, percent = "√n (r - 1) / (n - 1 + r), r measured", none.get("deviation_percent")
        rows += [
            (f"deviation without warm-up, %{at}", how, _through(outlier_percent, r), percent),
            (f"mean without warm-up {to_five}{at}", "(n - 1 + r) / n, r measured",
             _through(lambda r: (n - 1 + r) / n, r), none.get("ratio")),
            (f"mean after one warm-up {to_five}{at}", "all is done once, in the first step", 1.0, one.get("ratio")),
        ]  # fmt: skip
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
                         sentences.names(records, {name: row[name] for name in records.fields}))
        for row in one_against_five(records).to_dict("records")
    ]  # fmt: skip
