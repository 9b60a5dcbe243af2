"""Compare machines: their ceilings, common cases and verdicts on variants."""

import math
from collections.abc import Mapping, Sequence

import pandas as pd

from lib import validate
from lib.catalog import CATALOG
from lib.records import results, staleness
from lib.report import compare, published, roofline, sentences, tables, tidy
from lib.report.sentences import Statement
from lib.stats import digits
from lib.stats.intervals import Interval

STEP = {"mode": "train_step", "attention": "naive", "optimizer": "single_tensor"}
COMPARED = [name for name, entry in CATALOG.items() if entry.metric]
CEILINGS = {  # by kind: the recorded amount of work, how often an iteration does it, and words for a caption
    "products": ("counted_flops", 3, ", beside its own ceiling of products"),
    "memory": ("moved_bytes", 1, ", beside its own memory's"),
    "": (None, 0, ""),
}
ATTENTION = {"precision": "fp32", "causal": True, "cold": False}
PAIRS = {  # by name: the experiment, the variant, the cases, and the metric that ranks them by size
    "compiled to eager step": ("step", {"compiled": True}, {**STEP, "precision": "fp32"}, "forward_flops"),
    "bf16 to fp32 step": ("step", {"precision": "bf16"}, {**STEP, "compiled": False}, "forward_flops"),
    "sdpa to naive attention": ("attention", {"variant": "sdpa"}, ATTENTION, "forward_flops"),
    "compiled to naive attention": ("attention", {"variant": "compiled"}, ATTENTION, "forward_flops"),
    "fused to single_tensor": (
        "adam", {"variant": "fused"}, {"shapes": "equal", "amsgrad": True, "cold": False}, "moved_bytes",
    ),
}  # fmt: skip
WHERE = ("machine", "device")  # fields in which the same case may differ between machines


def chosen(machine: str, machines: str) -> list[str]:
    """Return the names of the machines to compare.

    These are the names in `machines`, separated by spaces; if it is empty, this machine and all references. Raises
    ValueError for a machine without records."""
    names = machines.split() or [machine, *results.references()]
    for name in names if machines else ():
        validate.choice("machines", name, results.machines())
    return list(dict.fromkeys(names))


def side_by_side(names: Sequence[str]) -> Statement:
    """Name the machines that are compared; nothing is said of one alone."""
    if len(names) < 2:
        return sentences.missing("One machine has nothing beside it.")
    stale = staleness.left_out(
        *(results.load(experiment, name) for name in names for experiment in ("ceilings", *COMPARED))
    )
    text = f"{len(names)} machines have records here: {sentences.listed(list(names))}. {stale}"
    return Statement(text.strip(), "measured", "machines with records.")


def ceilings(names: Sequence[str]) -> pd.DataFrame:
    """Return the ceilings of each machine, one row per machine; no row for one alone.

    Products by precision in TFLOP/s, memory in GB/s, and the FLOPs per byte at which the two meet in fp32."""
    rows = []
    for name in names if len(names) > 1 else ():
        records = results.load("ceilings", name)
        products, copies = roofline.limits(records)
        row = {"machine": name, "hardware": ", ".join(dict.fromkeys(records["hardware"])) or digits.MISSING}
        row |= {f"{p}, TFLOP/s": products[p] / 1e12 for p in tidy.ORDER if p in products}
        row |= {"memory, GB/s": copies / 1e9, "ridge in fp32, FLOP a byte": products.get("fp32", math.nan) / copies}
        rows.append(row)
    return pd.DataFrame(rows)


def shared(names: Sequence[str], experiment: str) -> pd.DataFrame:
    """List the cases that at least two machines measured, one row per case and machine.

    Columns: `case` in words, `machine`, the catalogue's metric with its interval, and `ceiling_percent`, the share
    of that machine's own ceiling."""
    metric = CATALOG[experiment].metric
    measured = [table for name in names if len(table := _machine_medians(experiment, name))]
    columns = ["case", "machine", "hardware", metric, "ceiling_percent", "noisy", "codes"]
    if len(measured) < 2:
        return pd.DataFrame(columns=columns)
    every = pd.concat([table.astype(object) for table in measured], ignore_index=True)
    keys = [name for name in measured[0].fields if name not in WHERE]
    every = every[every.groupby(keys)["machine"].transform("nunique") > 1]
    differ = [name for name in keys if len(set(every[name])) > 1] or keys[:1]
    every = every.assign(case=[published.case_text(row[differ]) for _, row in every.iterrows()])
    every = every.sort_values(differ, key=tidy.in_order, kind="stable", ignore_index=True)
    return every[columns]


def sheets(names: Sequence[str]) -> list[tables.Table]:
    """Return a table of `shared` per experiment of which two machines measured the same cases."""
    shown = []
    for experiment in COMPARED if len(names) > 1 else ():
        table, entry = shared(names, experiment), CATALOG[experiment]
        caption = f"{entry.title} on each machine{CEILINGS[entry.ceiling][2]}"
        shown += [tables.show(table, f"case machine {entry.metric} ceiling_percent", caption)] if len(table) else []
    return shown


def _machine_medians(experiment: str, name: str) -> pd.DataFrame:
    """Return medians of one machine's cases, with their share of its own ceiling."""
    entry = CATALOG[experiment]
    fact, times, _ = CEILINGS[entry.ceiling]
    records = tidy.select(results.load(experiment, name), **entry.compared)
    if fact and len(records):
        products, copies = roofline.limit_intervals(results.load("ceilings", name))
        known = tidy.with_counted_flops(records)
        cards = tidy.column(known, "world").where(tidy.column(known, "backend") == "nccl", 1)  # with a ceiling each
        known = known.assign(counted_flops=known["counted_flops"] / cards)
        known = known.assign(precision="fp32") if entry.ceiling == "memory" else known
        limit = {"fp32": copies} if entry.ceiling == "memory" else products
        records = roofline.with_percent_of(known, "ceiling_percent", fact, limit, times=times)
    table = tidy.medians(records, entry.metric, "ceiling_percent")
    return table[table[entry.metric].map(lambda found: isinstance(found, Interval)).astype(bool)]


def ratios(names: Sequence[str]) -> pd.DataFrame:
    """Compare pairs of variants, one row per pair and machine; no row for one machine alone.

    The case is the largest that all these machines have in common, or else each machine's own largest. `name` sets
    the colour."""
    rows = []
    for pair, (experiment, of, where, by) in PAIRS.items() if len(names) > 1 else ():
        alike = {"mode": where["mode"]} if "mode" in where else {}  # the table of verdicts is that of the chapter
        loaded = {name: tidy.select(results.load(experiment, name), **alike) for name in names}
        found = {name: _compare_with_baselines(records, of, where, by) for name, records in loaded.items()}
        found = {name: cases for name, cases in found.items() if cases}
        common = set.intersection(*(set(cases) for cases in found.values())) if found else set()
        for name, cases in found.items():
            largest = max((cases[key] for key in common or cases), key=lambda row, by=by: row[by])
            rows.append(largest | {"pair": pair, "label": f"{pair}: {name}", "name": next(iter(of.values()))})
    columns = ["pair", "case", "machine", "ratio", "verdict", "hardware", "codes", "noisy", "label", "name"]
    table = pd.DataFrame(rows, columns=columns)
    return table.replace({"name": {True: "compiled"}})


def _compare_with_baselines(records: pd.DataFrame, of: Mapping, where: Mapping, by: str) -> dict[tuple, dict]:
    """Compare cases with their baselines, keyed by the fields that all machines share."""
    measured, found = tidy.medians(tidy.select(records, **of, **where, status="ok"), by), {}
    compared = compare.beside_baselines(measured, records)
    for row in compared[compared["ratio"].notna()].to_dict("records"):
        rest = {name: row[name] for name in records.fields if name not in (*WHERE, *of)}
        besides = {name: value for name, value in rest.items() if name not in where}
        found[tuple(rest.values())] = row | {"case": published.case_text(besides)}
    return found
