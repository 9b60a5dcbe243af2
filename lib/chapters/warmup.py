"""Turns the first steps of fresh processes into tables and a figure: what warm-ups would have changed; times nothing.

A process's series of first steps is one; what follows so many warm-ups is read from it, so that two numbers of
warm-ups are compared without the noise between processes.
"""

import math
import statistics

import matplotlib as mpl
import matplotlib.pyplot as plt
import pandas as pd
from matplotlib.axes import Axes

from lib.report import plots, tidy
from lib.stats import comparisons, intervals, steady_state

WARMUPS = (0, 1, 2, 5)
FULL = 5  # warm-ups that the others are held against, as in the assignment
FOLLOWING = 10  # steps whose mean and deviation are taken after them, likewise
WHOLE = "whole step"
PHASES = {  # the metrics of a case's phases, forward and backward together as the write-ups timed them
    "forward": "first_forward_ms",
    "forward and backward": "first_forward_backward_ms",
    WHOLE: "first_total_ms",
}


def cold(records: pd.DataFrame) -> pd.DataFrame:
    """The records of processes that had measured nothing before, and those of cases that could not be measured; with
    `first_forward_backward_ms` where both were."""
    earlier = tidy.column(records, "earlier_cases")
    kept = records[(earlier == 0) | (records["status"] != "ok")]
    kept.attrs = records.attrs
    return tidy.with_sum(kept, PHASES["forward and backward"], "first_forward_ms", "first_backward_ms")


def _cases(records: pd.DataFrame):
    """Each case's row of `estimates.medians`, with its records."""
    for _, row in tidy.medians(records).iterrows():
        yield row, tidy.select(records, **row[records.attrs["fields"]].to_dict())


def _windows(times: list[float]) -> dict[int, list[float]]:
    """The steps that follow each number of warm-ups, where the series is long enough."""
    return {w: times[w : w + FOLLOWING] for w in WARMUPS if len(times) >= w + FOLLOWING}


def steady(records: pd.DataFrame) -> pd.DataFrame:
    """One row a case: `first_step_ms`, `later_ms` (the median of the last half of the steps), `first_ratio` between
    them, the shares of the excess of the first step by phase, and in words `steady_from`, the first steady step in
    each process."""
    rows = []
    for row, group in _cases(records):
        totals = tidy.samples(group, "first_total_ms")
        later = {r: statistics.median(times[len(times) // 2 :]) for r, times in totals.items()}
        starts = [steady_state.steady(times) for times in totals.values()]
        found = {
            "first_step_ms": intervals.of_processes([times[0] for times in totals.values()], 1),
            "later_ms": intervals.of_processes(list(later.values()), len(next(iter(totals.values()), [])) // 2),
            "first_ratio": intervals.of_processes([times[0] / later[r] for r, times in totals.items()], 1),
            "steady_from": ", ".join("never" if start is None else str(start + 1) for start in starts) or None,
        }
        rows.append(row.to_dict() | found | excess(group))
    return _frame(rows, records, "first_step_ms later_ms first_ratio steady_from", "Geometric mean")


def excess(group: pd.DataFrame) -> dict[str, float]:
    """Of the time by which a case's first steps exceed the later ones, the percentage in each phase, in the mean over
    the processes: `<phase>_excess_percent`."""
    extra = {}
    for phase in ("forward", "backward", "optimizer"):
        for times in tidy.samples(group, f"first_{phase}_ms").values():
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
            windows = [_windows(times) for times in tidy.samples(group, metric).values()]
            for w in WARMUPS:
                having = [each for each in windows if w in each and FULL in each]
                means = [statistics.mean(each[w]) for each in having]
                stds = [statistics.stdev(each[w]) for each in having]
                full = [statistics.mean(each[FULL]) for each in having]
                percent = [100 * std / mean for std, mean in zip(stds, means, strict=True)]
                found = {
                    "mean_ms": intervals.of_processes(means, FOLLOWING),
                    "std_ms": intervals.of_processes(stds, FOLLOWING),
                    "deviation_percent": intervals.of_processes(percent, FOLLOWING),
                    "ratio": intervals.of_processes([a / b for a, b in zip(means, full, strict=True)], FOLLOWING),
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
        group.iloc[0].to_dict()
        | {f"{value}_after_{w}": found for w, found in zip(group["warmups"], group[value], strict=True)}
        for _, group in table.groupby(keys, sort=False)
    ]  # fmt: skip
    said = {"mean_ms": "Mean", "std_ms": "Standard deviation", "deviation_percent": "Deviation relative to the mean"}
    columns = " ".join(f"{value}_after_{w}" for w in WARMUPS)
    return _frame(
        rows, records, f"phase {columns}", f"{said[value]} of ten steps, as the geometric mean over processes,"
    )


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
        windows = [_windows(times) for times in tidy.samples(group, "first_total_ms").values()]
        ratios = [statistics.mean(each[1]) / statistics.mean(each[FULL]) for each in windows if FULL in each]
        if len(ratios) >= intervals.ENOUGH_ROUNDS:
            found.append(comparisons.across(ratios, FOLLOWING * len(ratios), comparisons.MEDIANS))
            rows.append(row.to_dict() | {"ratio": found[-1].ratio})
    frame = _frame(rows, records, "ratio", "Ratio")
    visible = pd.Series([100 * one.visible(len(found)) for one in found], dtype=float)
    return frame.assign(verdict=comparisons.verdicts(found), visible_percent=visible)


def where(row: pd.Series) -> str:
    """A case in a few words."""
    words = [row["size"], f"context {row['context_length']:,}", row["precision"] if row["precision"] != "fp32" else ""]
    return ", ".join(filter(None, [*words, "compiled" if row["compiled"] else ""]))


def draw(records: pd.DataFrame) -> Axes:
    """Every step in order, a faint line a process and a panel a case, with a mark where the process is steady."""
    measured = [(row, group) for row, group in _cases(records) if tidy.samples(group, "first_total_ms")]
    across = min(2, max(1, len(measured)))
    down = max(1, math.ceil(len(measured) / across))
    with mpl.rc_context(plots.STYLE):
        _, grid = plt.subplots(down, across, figsize=(plots.WIDTH, 0.6 + 2.4 * down), squeeze=False)
        for ax in grid.flat[len(measured) :]:
            ax.set_visible(False)
        for ax, (row, group) in zip(grid.flat, measured, strict=False):
            _panel(ax, list(tidy.samples(group, "first_total_ms").values()))
            ax.set_title(where(row))
    return grid[0][0]


def _panel(ax: Axes, processes: list[list[float]]) -> None:
    for times in processes:
        ax.plot(range(1, len(times) + 1), times, color=plots.BLUE, alpha=0.5, linewidth=1, marker=".", markersize=4)
        start = steady_state.steady(times)
        if start is not None:
            ax.plot(start + 1, times[start], "s", color=plots.ORANGE, markersize=6)
    far = max(max(times) / statistics.median(times) for times in processes)
    if far > 3:
        ax.set_yscale("log")
        ax.minorticks_off()
        plots.round_ticks(ax.yaxis)
    ax.set(xlabel="step", ylabel="time of the step, ms")
    ax.grid(axis="y")


def note(records: pd.DataFrame) -> str:
    """Hardware and number of processes behind the figure; empty where nothing was measured."""
    measured = records[tidy.column(records, "first_total_ms").notna()]
    if measured.empty:
        return ""
    steps = sorted({len(times) for times in measured["first_total_ms"]})
    return (
        f"{', '.join(dict.fromkeys(measured['hardware']))}. {len(measured)} fresh processes of {steps[-1]} steps each."
    )
