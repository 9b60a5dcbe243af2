"""Turns the records of sums, norms and dtypes in narrow types into tables and figures; measures nothing."""

import matplotlib as mpl
import pandas as pd
from matplotlib.axes import Axes

from lib.report import compare, plots, published, tidy
from lib.stats import digits

PRECISIONS = ("fp32", "fp16", "bf16")  # in the assignment's order
TITLES = {"layer_norm": "layer norm", "rms_norm": "RMS norm"}
NORMS = tuple(TITLES)
TERMS, TERM = 1000, 0.01  # the sum of the assignment


def rows(records: pd.DataFrame, metric: str) -> pd.DataFrame:
    """A metric that is a table, of all records below each other, each row with the fields of its case and its hardware;
    of several rounds the last, since nothing here varies."""
    found = []
    for _, record in records.sort_values("round").drop_duplicates(records.attrs["fields"], keep="last").iterrows():
        table = record.get(metric)
        if isinstance(table, dict):
            case = {name: record[name] for name in ("subject", "precision", "device", "hardware")}
            found.append(pd.DataFrame(table).assign(**case))
    every = pd.concat(found, ignore_index=True) if found else pd.DataFrame(columns=["subject", "precision", "device"])
    every = every.sort_values("precision", key=lambda names: names.map(PRECISIONS.index), kind="stable")
    return every.sort_values("subject", key=tidy.in_order, kind="stable", ignore_index=True)


def loops(records: pd.DataFrame) -> pd.DataFrame:
    """The loops of all dtypes, one a row, as `rounding.accumulation` describes them; the sum with all its digits, and
    the loop in fp32 once."""
    table = rows(records, "loops")
    if table.empty:
        return table
    table = table.drop_duplicates("loop", ignore_index=True).assign(number=lambda kept: kept["sum"])
    ended = table["stalls_after"] == table["stalls_after"].max()
    stalls = table["stalls_after"].map(digits.count).mask(ended, "never")
    short = {name: table[name].map(digits.number) for name in ("sum_error", "stored_error", "added_error", "spacing")}
    return table.assign(sum=table["sum"].map(digits.exact), stalls_after=stalls, **short)


def dtypes(records: pd.DataFrame, subject: str) -> pd.DataFrame:
    """One row a tensor of a model, in the order in which they came, with its dtype in a column for each precision."""
    table = rows(records, "dtypes")
    chosen = table[table["subject"] == subject]
    if chosen.empty:
        return pd.DataFrame(columns=["tensor"])
    wide = chosen.pivot_table(index="tensor", columns="precision", values="dtype", aggfunc="last", sort=False)
    order = list(dict.fromkeys(chosen["tensor"]))
    return (
        wide.reindex(order).reset_index().assign(device=chosen["device"].iloc[0], hardware=chosen["hardware"].iloc[0])
    )


def limits(records: pd.DataFrame) -> pd.DataFrame:
    """Where a norm leaves the range of its dtype: one row a norm, precision, offset, step and what happens there, with
    the scales of the inputs in words."""
    table = rows(records, "norm_limits")
    if table.empty:
        return table
    keys = ["subject", "precision", "offset", "step", "what"]
    scales = table.groupby(keys, sort=False)["scale"].agg(lambda found: ", ".join(f"{scale:g}" for scale in found))
    return scales.reset_index().assign(hardware=table["hardware"].iloc[0])


def step_errors(records: pd.DataFrame, subject: str) -> pd.DataFrame:
    """One row a step of a norm: the error of the norm if that step alone is rounded, a column for each precision."""
    table = rows(records, "step_errors")
    chosen = table[table["subject"] == subject]
    if chosen.empty:
        return pd.DataFrame(columns=["step"])
    wide = chosen.pivot_table(index="step", columns="precision", values="relative_error", sort=False)
    wide = wide.map("{:.2g}".format).reindex(dict.fromkeys(chosen["step"])).reset_index()
    return wide.assign(hardware=chosen["hardware"].iloc[0])


def speed(steps: pd.DataFrame, metric: str = "total_ms") -> pd.DataFrame:
    """The rows of `verdicts.against_baselines` of steps in bf16 against fp32, with `parameters`."""
    table = compare.against_baselines(steps, metric)
    table = table[(table["baseline"] == "fp32") & (table["precision"] == "bf16")]
    counts = tidy.column(steps, "parameters").groupby(steps["size"]).max() if len(steps) else {}
    return table.assign(parameters=table["size"].map(counts))


def speed_of_phases(steps: pd.DataFrame) -> pd.DataFrame:
    """The same for each `phase` of a step."""
    found = [speed(steps, f"{phase}_ms").assign(phase=phase) for phase in ("forward", "backward", "optimizer")]
    return pd.concat([table for table in found if len(table)] or found[:1], ignore_index=True)


def published_speed() -> pd.DataFrame:
    """Published passes in bf16 relative to fp32 on the same hardware, one row a source and case: `forward_ratio` and
    `forward_backward_ratio`; what is called fp32 there may have run in TF32."""
    table = published.published_step()
    keys = ["source", "hardware", "compiled", "size", "context_length"]
    wide = table.pivot_table(index=keys, columns="precision", values=["forward_ms", "forward_backward_ms"])
    found = pd.DataFrame(
        {f"{phase}_ratio": wide[f"{phase}_ms"]["bf16"] / wide[f"{phase}_ms"]["fp32"]
         for phase in ("forward", "forward_backward")}
    ).dropna(how="all").reset_index()  # fmt: skip
    return tidy.ordered(found, "source hardware compiled size")


def _style(precision: str) -> dict:
    colour = plots.COLOURS[precision]
    return {"color": colour, "marker": plots.MARKERS[colour], "linestyle": plots.DASHES[colour], "markersize": 4}


def draw_sums(records: pd.DataFrame) -> Axes:
    """The sum against the number of terms, beside what a rounding at its spacing can lose of a term; a line a loop that
    adds in one dtype throughout."""
    table = rows(records, "trace")
    (left, right), ends = plots.axes(2, 3.2), []
    with mpl.rc_context(plots.STYLE):
        for loop, line in table.drop_duplicates(["loop", "terms"]).groupby("loop", sort=False) if len(table) else ():
            total, term = loop.split(" += ")
            if total == term:
                how = _style(term) | {"markevery": 10}
                left.plot(line["terms"], line["sum"], **how)
                right.plot(line["terms"], line["half_percent"], **how)
                ends.append((line["terms"].iloc[-1], line["half_percent"].iloc[-1], term, plots.COLOURS[term]))
        right.axhline(100, color=plots.INK, linewidth=0.8)
        right.set_yscale("log")
        left.set(xlabel="terms of 0.01", ylabel="sum")
        right.set(xlabel="terms of 0.01", ylabel="half a spacing, % of a term")
        for ax in (left, right):
            ax.grid(axis="y")
        plots.label_ends(right, ends)
    return left


def draw_norms(records: pd.DataFrame) -> Axes:
    """The error of each norm against the scale of its inputs, one line a precision, with a gap where it is not finite
    and a cross where it overflows on the way."""
    table, troubles = rows(records, "norm_errors"), rows(records, "norm_limits")
    grid = plots.axes(2, 3.2, sharey=True)
    with mpl.rc_context(plots.STYLE):
        for norm, ax in zip(NORMS, grid, strict=True):
            ends = []
            of = table[(table["subject"] == norm) & (table["offset"] == 0)] if len(table) else table
            for precision, line in of.groupby("precision", sort=False) if len(of) else ():
                ax.plot(line["scale"], line["relative_error"], **_style(precision))
                finite = line[line["relative_error"].notna()]
                if len(finite):
                    scale, error = finite[["scale", "relative_error"]].iloc[-1]
                    ends.append((scale, error, precision, plots.COLOURS[precision]))
                over = overflows(troubles, norm, precision)
                lost = line[line["scale"].isin(over)]
                ax.plot(lost["scale"], lost["relative_error"], "x", color=plots.COLOURS[precision], markersize=10)
            ax.set(xscale="log", yscale="log", xlabel="scale of the inputs", title=TITLES[norm])
            ax.grid(axis="y")
        grid[0].set_ylabel("relative error")
        plots.label_ends(grid[-1], ends)
    return grid[-1]


def overflows(troubles: pd.DataFrame, norm: str, precision: str) -> list[float]:
    """The scales of its inputs at which something in a norm overflows."""
    if troubles.empty:
        return []
    chosen = troubles[(troubles["subject"] == norm) & (troubles["precision"] == precision) & (troubles["offset"] == 0)]
    return list(chosen[chosen["what"] == "overflows"]["scale"])


def note(records: pd.DataFrame, subject: str) -> str:
    """The hardware behind a figure; empty where nothing was computed."""
    done = records[(records["subject"] == subject) & (records["status"] == "ok")]
    return (
        ""
        if done.empty
        else f"{', '.join(dict.fromkeys(done['hardware']))}. Computed once, since nothing in it varies."
    )
