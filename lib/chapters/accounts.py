"""Account for the time of a step by products, functions, bytes moved, page faults and calls.

Each part is measured on its own (see `instruments.operators`); the remainder is called unexplained. A value has one
number per process.
"""

import functools
import math
import statistics
from collections.abc import Iterable, Mapping

import matplotlib as mpl
import pandas as pd
from matplotlib.axes import Axes

from lib.report import plots, roofline, sentences, tidy
from lib.report.sentences import Statement, of_records
from lib.stats import digits, intervals
from lib.stats.intervals import Interval

STEP = "step"  # the row of all phases together
PARTS = ("products", "attention", "functions", "bytes", "faults", "calls")
KINDS = {"product": "products", "attention": "attention", "function": "functions"}  # timed alone
NAMED = 3  # operators that a sentence names
COLUMNS = "operator operators_percent spent_ms accounted_ms"


def pieces(record: Mapping, bandwidth: float, call_ms: float) -> pd.DataFrame:
    """Return what accounts for a record's time, one row per piece.

    Columns: `phase`, `operator`, `part` of `PARTS` and `ms`. The bytes of an operator that was not timed alone take
    their time at the bandwidth; a CPU fetches what it overwrites first. Faults have no operator."""
    operators, alone, faults = (pd.DataFrame(record[name]) for name in ("operators", "alone", "phase_faults"))
    others = operators[~operators["kind"].isin(KINDS)]
    moved = others["moved_bytes"] + others["new_bytes"] * (record["device"] == "cpu")
    fault_ms = statistics.median(record["fault_us"]) / 1e3 if record["fault_us"] else 0.0
    every = [
        faults.assign(part="faults", ms=faults["faults"] * fault_ms),
        alone.assign(part=alone["kind"].map(KINDS), ms=alone["calls"] * alone["call_ms"]),
        others.assign(part="bytes", ms=1e3 * moved / bandwidth),
        others.assign(part="calls", ms=others["calls"] * call_ms),
    ]
    return pd.concat(every)[["phase", "operator", "part", "ms"]]


def _of_processes(group: pd.DataFrame, ceilings: pd.DataFrame) -> list[pd.DataFrame]:
    """Return the `pieces` of each record of a case."""
    call, bandwidth = roofline.call_us(ceilings), roofline.limits(ceilings)[1]
    return [pieces(record, bandwidth, call.value / 1e3 if call else math.nan) for _, record in group.iterrows()]


def _sums(tables: Iterable[pd.DataFrame], by: str | list[str], metric: str = "ms") -> pd.DataFrame:
    """Add up a metric of each process's table by other columns, one column per process.

    A sum with an unknown part is unknown."""
    sums = [table.groupby(by, sort=False)[metric].agg(lambda ms: ms.sum(skipna=False)) for table in tables]
    every = functools.reduce(lambda one, other: one.union(other, sort=False), (each.index for each in sums))
    return pd.concat([each.reindex(every, fill_value=0.0) for each in sums], axis=1)


def accounts(records: pd.DataFrame, ceilings: pd.DataFrame) -> pd.DataFrame:
    """Return the time measured, its parts and the unexplained rest, one row per case and phase.

    The rest, `unexplained_ms`, may be negative."""
    known = roofline.limits(ceilings)[1] > 0 and roofline.call_us(ceilings)
    rows = []
    for case, group in tidy.by_case(tidy.with_table(records, "operators") if known else records.iloc[:0]):
        sums = _sums(_of_processes(group, ceilings), ["phase", "part"])
        whole = pd.concat({STEP: sums.groupby("part").sum()})
        for phase, of in pd.concat([sums, whole]).groupby(level=0, sort=False):
            measured = tidy.median(group, "total_ms" if phase == STEP else f"{phase}_ms")
            by_part = of.droplevel(0).reindex(PARTS, fill_value=0.0)
            own = {f"{part}_ms": intervals.of_processes(list(ms)) for part, ms in by_part.iterrows()}
            rest = measured.value - sum(i.value for i in own.values())
            rest_ms = Interval(rest, math.nan, math.nan, measured.n, measured.rounds)
            row = case | {"phase": phase, "measured_ms": measured} | own
            rows.append(row | {"unexplained_ms": rest_ms, "unexplained_percent": 100 * rest / measured.value})
    return pd.DataFrame(rows, columns=None if rows else [*records.fields, "phase", "measured_ms"])


def present(table: pd.DataFrame) -> list[str]:
    """List the parts that take any time, in the order of `PARTS`."""
    return [part for part in PARTS if any(i.value > 0 for i in table.get(f"{part}_ms", ()))]


@mpl.rc_context(plots.STYLE)
def draw(table: pd.DataFrame) -> Axes:
    """Draw the parts of each phase as one bar that ends unexplained, and the time measured as a mark."""
    (ax,) = plots.axes(height=1.2 + 0.34 * len(table))
    left = [0.0] * len(table)
    for part in [*present(table), "unexplained"] if len(table) else ():
        widths = [max(0.0, i.value) for i in table[f"{part}_ms"]]
        ax.barh(table["phase"], widths, left=left, label=part, **plots.bar(plots.COLOURS[part]))
        left = [start + width for start, width in zip(left, widths, strict=True)]
    if len(table):
        measured = list(table["measured_ms"])
        style = {"color": plots.INK, "marker": "|", "markersize": 24, "markeredgewidth": 2.4, "linestyle": "none"}
        ends = plots.errors(measured)
        ax.errorbar([i.value for i in measured], table["phase"], xerr=ends, label="measured", capsize=3, **style)
        handles, names = ax.get_legend_handles_labels()
        handles[names.index("measured")] = mpl.lines.Line2D([], [], **style | {"markersize": 9})
        plots.above(ax, handles, names)
        ax.set_xlim(0, 1.1 * max([*left, *(i.value for i in measured)]))  # an interval may reach further
    ax.invert_yaxis()
    ax.set(xlabel="time, ms")
    ax.grid(axis="x")
    return ax


def operators(records: pd.DataFrame, ceilings: pd.DataFrame, case: Mapping) -> pd.DataFrame:
    """Return the operators of a step on a CPU, the longest first.

    `spent_ms` is their time inside the step, `accounted_ms` that of their products and functions alone, or of their
    bytes and calls. `operators_percent` is their share of all operators."""
    rows = []
    for row, group in tidy.by_case(tidy.with_table(tidy.select(records, **case), "operators")):
        tables = [pd.DataFrame(table) for table in group["operators"]]
        if "spent_ms" not in tables[0]:
            continue
        spent = _sums(tables, "operator", "spent_ms")
        accounted, percents = _sums(_of_processes(group, ceilings), "operator"), 100 * spent / spent.sum()
        for name, ms in spent.iterrows():
            inside, own = (intervals.of_processes(list(each)) for each in (ms, accounted.loc[name]))
            found = {"operator": name, "operators_percent": percents.loc[name].median(), "spent_ms": inside}
            rows.append(row | found | {"accounted_ms": own.value, "excess_ms": inside.value - own.value})
    columns = [*records.fields, *COLUMNS.split(), "excess_ms"]
    table = pd.DataFrame(rows, columns=None if rows else columns)
    return table.sort_values("spent_ms", key=lambda column: [-i.value for i in column], ignore_index=True)


def alone(records: pd.DataFrame, case: Mapping) -> pd.DataFrame:
    """Return what was timed alone, by phase and shapes: calls, `own_ms`, and the rate of products."""
    rows = []
    for row, group in tidy.by_case(tidy.with_table(tidy.select(records, **case), "alone")):
        tables = [pd.DataFrame(table) for table in group["alone"]]
        for at, one in tables[0].iterrows():
            each_ms = [table.loc[at, "call_ms"] for table in tables]
            took = intervals.of_processes(each_ms)
            rate = intervals.of_processes([one["flops"] / ms / 1e6 for ms in each_ms]) if one["flops"] else None
            own = {"own_ms": took, "gflops": rate, "all_ms": took.value * one["calls"]}
            rows.append(row | one[["phase", "operator", "shapes", "calls"]].to_dict() | own)
    table = pd.DataFrame(rows, columns=None if rows else [*records.fields, "all_ms"])
    return table.sort_values("all_ms", ascending=False, ignore_index=True)


@of_records()
def answer(records: pd.DataFrame, case: Mapping, ceilings: pd.DataFrame) -> Statement:
    """Say what share of a step products take, what its other parts take, and what stays unexplained."""
    row = tidy.one(accounts(tidy.select(records, **case), ceilings), {"phase": STEP})
    if row.empty:
        return sentences.missing("The time of a step was not accounted for here.")
    measured, rest = row["measured_ms"], row["unexplained_ms"].value
    own = {part: row[f"{part}_ms"].value for part in PARTS}
    whole = max(measured.value, 500 * measured.reach) if measured.known else measured.value
    ms = {part: _milliseconds(value, whole) for part, value in own.items()}
    named = {
        "bytes": f"the bytes of the other operators take {ms['bytes']} at the memory ceiling",
        "functions": f"softmax, loss and SiLU take {ms['functions']}",
        "attention": f"fused attention takes {ms['attention']}", "faults": f"page faults take {ms['faults']}",
        "calls": f"the calls themselves take {ms['calls']}",
    }  # fmt: skip
    listed = sentences.listed([text for part, text in named.items() if own[part] > measured.value / 500])
    why = "launches overlap" if case["device"] == "cuda" else "some bytes come from a cache"
    end = "stay unexplained" if rest > 0 else f"more than measured are accounted for, perhaps since {why}"
    of = sentences.at("a step of {size} (context {context_length}, {precision})", case)
    share = Interval(100 * own["products"] / measured.value, math.nan, math.nan, measured.n, measured.rounds)
    percent = sentences.quantity(records, case, "products_percent", share, digits.count(share.value))
    text = (
        f"Repeated alone, the matrix products of {of} take {percent}% of its time: "
        f"{ms['products']} of {_milliseconds(measured.value, whole)}. "
        f"{listed[:1].upper()}{listed[1:]}; {_milliseconds(abs(rest), whole)} "
        f"({digits.count(abs(row['unexplained_percent']))}%) {end}."
        + (f" Noisy processes: {row['noisy']}." if row["noisy"] else "")
    )
    evidence = f"Parts of {sentences.fields(case)}, each measured on its own; 95% interval {measured.scope}."
    return Statement(text, "measured", evidence, (), (percent,))


def _milliseconds(ms: float, whole: float) -> str:
    """Format a part of a time to a five hundredth of the whole."""
    return f"{digits.number(ms, whole / 500)} ms"


@of_records()
def excess(records: pd.DataFrame, case: Mapping, ceilings: pd.DataFrame) -> Statement:
    """Name the operators that take longest beyond what is accounted for, and the time of all operators."""
    table = operators(records, ceilings, case)
    if table.empty:
        return sentences.missing("Operators were not timed inside a step.")
    measured = tidy.median(tidy.select(records, **case), "total_ms").value
    beyond = table.sort_values("excess_ms", ascending=False)
    longer, faster = beyond[beyond["excess_ms"] > measured / 200], beyond[beyond["excess_ms"] < -measured / 200]
    said = []
    for rows, words in (
        (longer, "Inside the step, these take longer than accounted for"),
        (faster.iloc[::-1], "These take less, perhaps since a cache holds what they read"),
    ):
        most = rows[["operator", "excess_ms"]][:NAMED].itertuples(index=False)
        named = [f"{operator} {_milliseconds(abs(ms), measured)}" for operator, ms in most]
        said += [f"{words}: {sentences.listed(named)}."] * bool(named)
    every, whole = (_milliseconds(ms, measured) for ms in (sum(i.value for i in table["spent_ms"]), measured))
    said.append(f"All operators together take {every} of {whole}.")
    evidence = f"{sentences.fields(case)}; each operator timed in the step and alone."
    return Statement(" ".join(said), "measured", evidence)


def inside_and_alone(records: pd.DataFrame, case: Mapping, adam: pd.DataFrame, ceilings: pd.DataFrame) -> Statement:
    """Say how long the optimizer takes inside a step, alone on the same parameters, and for its bytes."""
    of = {"shapes": case.get("size"), "variant": case.get("optimizer"), "cold": False}
    chosen, own = tidy.select(records, **case), tidy.select(adam, **of)
    own = tidy.select(own, amsgrad=bool(own["amsgrad"].all())) if len(own) else own
    inside, outside = tidy.median(chosen, "optimizer_ms"), tidy.median(own, "total_ms")
    bytes_of = tidy.one(accounts(chosen, ceilings), {"phase": "optimizer"})
    if inside is None or outside is None or bytes_of.empty:
        return sentences.missing("The optimizer alone was not measured here.")
    moved = _milliseconds(bytes_of["bytes_ms"].value, inside.value)
    numbers = (
        sentences.quantity(records, case, "optimizer_ms", inside, digits.brief(inside)),
        sentences.quantity(adam, of, "total_ms", outside, digits.brief(outside)),
    )
    extra = ", where it also keeps amsgrad's maxima," if own["amsgrad"].iloc[0] else ""
    text = (
        f"{case['optimizer']} AdamW takes {numbers[0]} ms inside a step of {case['size']}; alone{extra} on the same "
        f"parameters it takes {numbers[1]} ms. At the memory ceiling its bytes take {moved}."
    )
    names = sentences.names(records, case) + sentences.names(adam, of)
    return Statement(text, "measured", "Medians of both experiments.", names, numbers)
