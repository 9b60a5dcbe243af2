"""Account for the time of a step by products, functions, bytes moved, page faults and calls.

Each part is measured on its own (see `instruments.operators`); the remainder is called unexplained. A value has one
number per process.
"""

import math
import statistics
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import replace

import matplotlib as mpl
import pandas as pd
from matplotlib.axes import Axes

from lib.report import plots, sentences, tidy
from lib.report.sentences import NO_DATA, Statement, of_records
from lib.stats import digits, intervals
from lib.stats.intervals import Interval

STEP = "step"  # the row of all phases together
PARTS = ("products", "attention", "functions", "bytes", "faults", "calls")
KINDS = {"product": "products", "attention": "attention", "function": "functions"}  # timed alone
NAMED = 3  # operators that a sentence names
COLUMNS = "operator operators_percent spent_ms accounted_ms"


def rows_of(table: Mapping) -> Iterator[dict]:
    """Yield the rows of a record's table."""
    return (dict(zip(table, row, strict=True)) for row in zip(*table.values(), strict=True))


def call_ms(ceilings: pd.DataFrame) -> float:
    """Return the milliseconds of a call that computes next to nothing, or NaN."""
    found = tidy.call_us(ceilings)
    return found.value / 1e3 if found else math.nan


def moved_ms(row: Mapping, device: str, bandwidth: float) -> float:
    """Return the time of an operator's bytes at a bandwidth; a CPU fetches what it overwrites first."""
    return 1e3 * (row["moved_bytes"] + row["new_bytes"] * (device == "cpu")) / bandwidth


def parts(record: Mapping, bandwidth: float, call: float) -> dict[str, Counter]:
    """Return the milliseconds of each of `PARTS` by phase, and in the whole step, of one record."""
    found = {phase: Counter() for phase in (*record["phase_faults"]["phase"], STEP)}
    each = statistics.median(record["fault_us"]) / 1e3 if record["fault_us"] else 0.0
    spent = [(row["phase"], "faults", row["faults"] * each) for row in rows_of(record["phase_faults"])]
    spent += [(r["phase"], KINDS[r["kind"]], r["calls"] * r["call_ms"]) for r in rows_of(record["alone"])]
    for row in (row for row in rows_of(record["operators"]) if row["kind"] not in KINDS):
        spent.append((row["phase"], "bytes", moved_ms(row, record["device"], bandwidth)))
        spent.append((row["phase"], "calls", row["calls"] * call))
    for phase, part, ms in spent:
        found[phase][part] += ms
        found[STEP][part] += ms
    return found


def accounts(records: pd.DataFrame, ceilings: pd.DataFrame) -> pd.DataFrame:
    """Return the time measured, its parts and the unexplained rest, one row per case and phase.

    The rest, `unexplained_ms`, may be negative."""
    bandwidth, call, rows = tidy.limits(ceilings)[1], call_ms(ceilings), []
    known = tidy.with_table(records, "operators") if bandwidth > 0 and call > 0 else records.iloc[:0]
    for case, group in tidy.by_case(known):
        found = [parts(record, bandwidth, call) for _, record in group.iterrows()]
        for phase in found[0]:
            measured = tidy.median(group, "total_ms" if phase == STEP else f"{phase}_ms")
            own = {part: intervals.of_processes([one[phase][part] for one in found]) for part in PARTS}
            rest = measured.value - sum(i.value for i in own.values())
            row = case | {"phase": phase, "measured_ms": measured} | {f"{part}_ms": i for part, i in own.items()}
            row |= {"unexplained_ms": Interval(rest, math.nan, math.nan, measured.n, measured.rounds)}
            rows.append(row | {"unexplained_percent": 100 * rest / measured.value})
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
    bandwidth, call, rows = tidy.limits(ceilings)[1], call_ms(ceilings), []
    for row, group in tidy.by_case(tidy.with_table(tidy.select(records, **case), "operators")):
        if "spent_ms" not in group["operators"].iloc[0]:
            continue
        by_process = [_by_operator(record, bandwidth, call) for _, record in group.iterrows()]
        for name in by_process[0]["spent_ms"]:
            spent, accounted = (
                intervals.of_processes([one[key][name] for one in by_process]) for key in ("spent_ms", "accounted_ms")
            )
            percents = (100 * one["spent_ms"][name] / sum(one["spent_ms"].values()) for one in by_process)
            found = {"operator": name, "operators_percent": statistics.median(percents), "spent_ms": spent}
            found |= {"accounted_ms": accounted.value, "excess_ms": spent.value - accounted.value}
            rows.append(row | found)
    columns = [*records.fields, *COLUMNS.split(), "excess_ms"]
    table = pd.DataFrame(rows, columns=None if rows else columns)
    return table.sort_values("spent_ms", key=lambda column: [-i.value for i in column], ignore_index=True)


def _by_operator(record: Mapping, bandwidth: float, call: float) -> dict[str, Counter]:
    """Return time and accounted time of each operator in one record."""
    found = {"spent_ms": Counter(), "accounted_ms": Counter()}
    for row in rows_of(record["operators"]):
        found["spent_ms"][row["operator"]] += row["spent_ms"]
        own = moved_ms(row, record["device"], bandwidth) + row["calls"] * call
        found["accounted_ms"][row["operator"]] += 0 if row["kind"] in KINDS else own
    for row in rows_of(record["alone"]):
        found["accounted_ms"][row["operator"]] += row["calls"] * row["call_ms"]
    return found


def alone(records: pd.DataFrame, case: Mapping) -> pd.DataFrame:
    """Return what was timed alone, by phase and shapes: calls, `call_ms`, and the rate of products."""
    rows = []
    for row, group in tidy.by_case(tidy.with_table(tidy.select(records, **case), "alone")):
        every = [list(rows_of(table)) for table in group["alone"]]
        for same in zip(*every, strict=True):
            each = intervals.of_processes([one["call_ms"] for one in same])
            rates = [one["flops"] / one["call_ms"] / 1e6 for one in same]
            own = {name: same[0][name] for name in ("phase", "operator", "shapes", "calls")}
            own |= {"own_ms": each, "gflops": intervals.of_processes(rates) if same[0]["flops"] else None}
            rows.append(row | own | {"all_ms": each.value * own["calls"]})
    table = pd.DataFrame(rows, columns=None if rows else [*records.fields, "all_ms"])
    return table.sort_values("all_ms", ascending=False, ignore_index=True)


@of_records()
def answer(records: pd.DataFrame, case: Mapping, ceilings: pd.DataFrame) -> Statement:
    """Say what share of a step products take, what its other parts take, and what stays unexplained."""
    row = tidy.one(accounts(tidy.select(records, **case), ceilings), {"phase": STEP})
    if row.empty:
        return Statement("The time of a step was not accounted for here.", NO_DATA, "operators of profiled steps")
    measured, rest, own = row["measured_ms"], row["unexplained_ms"].value, {part: row[f"{part}_ms"] for part in PARTS}
    share = replace(own["products"], value=100 * own["products"].value / measured.value, low=math.nan, high=math.nan)
    ms = {part: _milliseconds(i.value, measured.value) for part, i in own.items()}
    named = {
        "bytes": f"the bytes of the other operators take {ms['bytes']} at the memory ceiling",
        "functions": f"softmax, loss and SiLU take {ms['functions']}",
        "attention": f"fused attention takes {ms['attention']}", "faults": f"page faults take {ms['faults']}",
        "calls": f"the calls themselves take {ms['calls']}",
    }  # fmt: skip
    listed = sentences.listed([text for part, text in named.items() if own[part].value > measured.value / 500])
    why = "launches overlap" if case["device"] == "cuda" else "some bytes come from a cache"
    end = "stay unexplained" if rest > 0 else f"more than measured are accounted for, since {why}"
    of = sentences.at("a step of {size} (context {context_length}, {precision})", case)
    text = (
        f"Repeated alone, the matrix products of {of} take {digits.count(share.value)}% of its time: "
        f"{ms['products']} of {_milliseconds(measured.value, measured.value)}. "
        f"{listed[:1].upper()}{listed[1:]}; {_milliseconds(abs(rest), measured.value)} "
        f"({digits.number(abs(row['unexplained_percent']), 0.5)}%) {end}."
        + (f" Noisy processes: {row['noisy']}." if row["noisy"] else "")
    )
    evidence = f"Parts of {sentences.fields(case)}, each measured on its own; 95% interval {measured.scope}."
    number = sentences.quantity(records, case, "products_percent", share, digits.count(share.value))
    return Statement(text, "measured", evidence, (), (number,))


def _milliseconds(ms: float, whole: float) -> str:
    """Format a part of a time to a five hundredth of the whole."""
    return f"{digits.number(ms, whole / 500)} ms"


@of_records()
def excess(records: pd.DataFrame, case: Mapping, ceilings: pd.DataFrame) -> Statement:
    """Name the operators that take longest beyond what is accounted for, and the time of all operators."""
    table = operators(records, ceilings, case)
    if table.empty:
        return Statement("Operators were not timed inside a step.", NO_DATA, "operators of profiled steps")
    measured = tidy.median(tidy.select(records, **case), "total_ms").value
    beyond = table.sort_values("excess_ms", ascending=False)
    longer, faster = beyond[beyond["excess_ms"] > measured / 200], beyond[beyond["excess_ms"] < -measured / 200]
    said = []
    for rows, words in (
        (longer, "Inside the step, these take longer than accounted for"),
        (faster.iloc[::-1], "These take less, since a cache holds what they read"),
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
        return Statement("The optimizer alone was not measured here.", NO_DATA, "adam")
    moved = _milliseconds(bytes_of["bytes_ms"].value, inside.value)
    numbers = (
        sentences.quantity(records, case, "optimizer_ms", inside, digits.interval(inside)),
        sentences.quantity(adam, of, "total_ms", outside, digits.interval(outside)),
    )
    extra = ", where it also keeps amsgrad's maxima," if own["amsgrad"].iloc[0] else ""
    text = (
        f"{case['optimizer']} AdamW takes {numbers[0]} ms inside a step of {case['size']}; alone{extra} on the same "
        f"parameters it takes {numbers[1]} ms. At the memory ceiling its bytes take {moved}."
    )
    names = sentences.names(records, case) + sentences.names(adam, of)
    return Statement(text, "measured", "Medians of both experiments.", names, numbers)
