"""Fit latency and bandwidth to collectives, and tell the bucket of gradients that follows."""

import math
from collections.abc import Sequence

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from scipy import optimize

from lib.cost.flops import model_shape
from lib.parallel import accounting
from lib.parallel.accounting import Network
from lib.records.frame import Frame
from lib.report import hypotheses, plots, sentences, tables, tidy
from lib.report.hypotheses import Hypothesis
from lib.report.published import published_table
from lib.report.sentences import Statement, of_records
from lib.stats import digits, intervals
from lib.stats.intervals import Interval

KEYS = ["operation", "world", "backend"]  # of one fit
BACKENDS = ("nccl", "gloo")  # the first that was measured is in the figures
HALVES = ("reduce_scatter", "all_gather")  # of an all_reduce
MB, MIB, GB = 1e6, 2**20, 1e9
NO_BUCKET = "the model gives no best bucket, since o is too small to measure"
NOTHING = sentences.missing("Collectives were not measured here.")


def prepared(records: pd.DataFrame) -> pd.DataFrame:
    """Add both bandwidths of nccl-tests in GB/s, that of the algorithm and that of the bus."""
    known = tidy.with_rate(records, "algorithm_gb_per_s", "message_bytes", 1 / GB)
    cases = zip(*(tidy.column(records, name) for name in ("operation", "message_bytes", "world")), strict=True)
    sent = [accounting.bus_bytes(*case) if isinstance(case[0], str) else math.nan for case in cases]
    known = known.assign(sent_bytes=pd.Series(sent, records.index, dtype=float))
    return tidy.with_rate(known, "bus_gb_per_s", "sent_bytes", 1 / GB)


def fitted(message_bytes: Sequence[float], seconds: Sequence[float]) -> tuple[float, float]:
    """Return the overhead o in seconds and the bandwidth w in bytes/s of o + S / w.

    The squares of relative errors are least, so that a small message counts as much as a large one; o and 1 / w are
    not negative."""
    sizes, times = np.array(message_bytes, dtype=float), np.array(seconds)
    (overhead_s, each_s), _ = optimize.nnls(np.column_stack([1 / times, sizes / MB / times]), np.ones(len(times)))
    return float(overhead_s), float(MB / each_s) if each_s > 0 else math.inf


def fits(records: pd.DataFrame) -> pd.DataFrame:
    """Fit the model to each process, one row for each operation, number of ranks and backend.

    Processes with fewer sizes than others are left out. `overhead_us` is o, `algorithm_gb_per_s` w, `bus_gb_per_s` the
    same on the bus, with intervals over processes. `misfit_percent` is the model's largest error among the medians."""
    timed, rows = tidy.select(records, status="ok"), []
    timed = timed.assign(seconds=tidy.column(timed, "total_ms").map(np.median) / 1e3)
    for key, group in timed.groupby(KEYS, sort=False) if len(timed) else ():
        sizes = group.groupby("round")["message_bytes"].transform("nunique")
        if sizes.max() < 2:
            continue
        processes = group[sizes == sizes.max()].groupby("round")
        found = [fitted(one["message_bytes"], one["seconds"]) for _, one in processes]
        overhead, bandwidth = (intervals.of_processes(values) for values in zip(*found, strict=True))
        case, middles = dict(zip(KEYS, key, strict=True)), group.groupby("message_bytes")["seconds"].median()
        off = (overhead.value + middles.index / bandwidth.value) / middles - 1
        bus = accounting.bus_bytes(case["operation"], 1, case["world"])
        row = {"overhead_us": overhead.scaled(1e6), "algorithm_gb_per_s": bandwidth.scaled(1 / GB)}
        row |= {"bus_gb_per_s": bandwidth.scaled(bus / GB), "misfit_percent": 100 * off.abs().max()}
        over = bool(tidy.column(group, "oversubscribed").fillna(0).max())
        rows.append(case | row | {"hardware": group["hardware"].iloc[0], "oversubscribed": over})
    rows.sort(key=lambda row: (row["backend"], list(accounting.PASSES).index(row["operation"]), row["world"]))
    columns = ["overhead_us", "algorithm_gb_per_s", "bus_gb_per_s", "misfit_percent", "hardware", "oversubscribed"]
    return Frame(rows, columns=[*KEYS, *columns]).with_origin(records, what="Value fitted to each process's medians")


def model(fit: pd.Series) -> tuple[float, float]:
    """Return o in seconds and w in bytes/s of a fit."""
    return fit["overhead_us"].value / 1e6, GB * fit["algorithm_gb_per_s"].value


def backend(table: pd.DataFrame) -> str | None:
    """Return the backend that the figures show; None without any."""
    return next((name for name in BACKENDS if name in set(tidy.column(table, "backend"))), None)


def headline_fit(found: pd.DataFrame) -> pd.Series:
    """Return the fit of all_reduce with the most ranks that have a core or a GPU each; empty without one."""
    chosen = tidy.select(found, operation="all_reduce", backend=backend(found))
    alone = chosen[~chosen["oversubscribed"].astype(bool)]
    chosen = (alone if len(alone) else chosen).sort_values("world")
    return chosen.iloc[-1] if len(chosen) else pd.Series(dtype=object)


def network(found: pd.DataFrame) -> Network | None:
    """Return the network of `headline_fit`: the latency of a ring's step and the bandwidth of its bus."""
    row = headline_fit(found)
    return None if row.empty else accounting.network("all_reduce", int(row["world"]), *model(row))


def curves(records: pd.DataFrame, found: pd.DataFrame) -> pd.DataFrame:
    """Return medians of the head backend's all-reduces, a line for each number of ranks, and the model."""
    table = tidy.medians(tidy.select(records, operation="all_reduce", status="ok"), "algorithm_gb_per_s")
    table = tidy.select(table, backend=backend(records)) if len(table) else table
    modelled = []
    for _, row in table.iterrows():
        of, size = tidy.one(found, row[KEYS]), MB * row["megabytes"]
        overhead_s, bandwidth = (math.nan, math.nan) if of.empty else model(of)
        modelled.append(tables.as_interval(size / (overhead_s + size / bandwidth) / GB))
    names = [f"n={world}" for world in tidy.column(table, "world")]
    return table.assign(line=names, model_gb_per_s=pd.Series(modelled, table.index, dtype=object))


def draw(table: pd.DataFrame) -> Axes:
    """Draw the bandwidth against the size of the message, dashed what the model says."""
    (ax,) = plots.axes(height=3.4)
    plots.models(ax, table, "megabytes", "model_gb_per_s", "line")
    return plots.lines(ax, table, "megabytes", "algorithm_gb_per_s", "line")


@of_records()
def answer(records: pd.DataFrame, found: pd.DataFrame) -> Statement:
    """State what the largest all-reduce takes, and the latency and bandwidth that all sizes show."""
    row = headline_fit(found)
    if row.empty:
        return NOTHING
    case = tidy.largest(records, "megabytes", **{name: row[name] for name in KEYS})
    total, bus = (tidy.median(tidy.select(records, **case), name) for name in ("total_ms", "bus_gb_per_s"))
    number = sentences.quantity(records, case, "total_ms", total, digits.brief(total))
    crowd = ", more than there are cores," if row["oversubscribed"] else ""
    call, rate = row["overhead_us"], row["algorithm_gb_per_s"]
    latency = f"the latency is {digits.brief(call)} µs" if call.value > 0 else "the latency is too small to measure"
    text = (
        f"An all-reduce of {case['megabytes']:g} MB between {case['world']} ranks{crowd} by {case['backend']} takes "
        f"{number} ms, a bus bandwidth of {digits.value(bus)} GB/s. Fitted to all sizes, {latency} and the algorithm "
        f"bandwidth {digits.brief(rate)} GB/s; the fit is off by at most {digits.bound(row['misfit_percent'])}%."
    )
    return Statement(text, "measured", "Medians of the slowest rank; o + S / w fitted to each process.", (), (number,))


def buckets(found: pd.DataFrame, steps: pd.DataFrame) -> pd.DataFrame:
    """Return the best bucket by the model beside the best measured, one row for each bucketed case.

    `total_ms` is a step with the best bucket measured, of those in `tried`."""
    rows, bucketed = [], tidy.select(steps, variant="bucketed", status="ok")
    keys = [name for name in steps.fields if name not in ("variant", "bucket_mib")]
    for key, group in bucketed.groupby(keys, sort=False) if len(bucketed) else ():
        case = dict(zip(keys, key, strict=True))
        of = tidy.one(found, {"operation": "all_reduce", "world": case["world"], "backend": case["backend"]})
        times = {row["bucket_mib"]: row["total_ms"] for _, row in tidy.medians(group, "total_ms").iterrows()}
        if of.empty or len(times) < 2:
            continue
        best = min(times, key=lambda mib, of=times: of[mib].value)
        gradient = 4 * model_shape(case["size"], case["context_length"]).parameters
        overhead_s, bandwidth = model(of)
        formula = accounting.optimal_bucket_bytes(gradient, bandwidth, overhead_s)
        row = {"gradient_mib": gradient / MIB, "by_formula": formula / MIB or math.nan, "bucket_mib": best}
        row |= {"tried": ", ".join(f"{mib:g}" for mib in sorted(times)), "total_ms": times[best]}
        rows.append(case | row | {"hardware": group["hardware"].iloc[0], "noisy": ""})
    columns = [*keys, "gradient_mib", "by_formula", "bucket_mib", "tried", "total_ms", "hardware", "noisy"]
    return Frame(rows, columns=columns).with_origin(steps)


@of_records()
def bucket(steps: pd.DataFrame, found: pd.DataFrame) -> Statement:
    """State the best bucket by the model and the best measured, for the largest gradients."""
    table = buckets(found, steps).sort_values("gradient_mib")
    if table.empty:
        return sentences.missing("Buckets of gradients were not measured here.")
    row = table.iloc[-1]
    known = not math.isnan(row["by_formula"])
    follows = f"the model's best bucket is {digits.number(row['by_formula'])} MiB" if known else NO_BUCKET
    fastest = "one for all of them" if row["bucket_mib"] >= row["gradient_mib"] else f"{row['bucket_mib']:g} MiB"
    text = (
        f"For the {digits.number(row['gradient_mib'])} MiB of gradients of {row['size']}, {follows}; of the "
        f"buckets measured ({row['tried']} MiB), {fastest} had the least median."
    )
    return Statement(text, "measured", "Medians of bucketed steps; o and w of all-reduces between as many ranks.")


def published() -> pd.DataFrame:
    """Return the write-ups' all-reduces in the columns of records, one process each."""
    table = published_table("collectives").assign(status="ok", round=1)
    table["message_bytes"], table["megabytes"] = MIB * table["message_mib"], table["message_mib"]
    table["total_ms"] = [[ms] for ms in table["total_ms"]]
    return prepared(table)


def published_fits() -> pd.DataFrame:
    """Fit the model to the all-reduces of each write-up, as plain numbers; `source` names it."""
    table = published()
    every = [fits(own).assign(source=name) for name, own in table.groupby("source", sort=False)]
    return pd.concat(every, ignore_index=True).map(lambda of: of.value if isinstance(of, Interval) else of)


def beside_published(records: pd.DataFrame) -> pd.DataFrame:
    """Return bandwidths of all-reduces here and in write-ups, a row for each backend, ranks and source.

    A column is a size; write-ups count 2^20 bytes in a MB, so bandwidths are compared and not times."""
    own = tidy.medians(tidy.select(records, operation="all_reduce", status="ok"), "algorithm_gb_per_s")
    own["algorithm_gb_per_s"] = [found.value for found in own["algorithm_gb_per_s"]]
    theirs = published().explode("algorithm_gb_per_s").astype({"algorithm_gb_per_s": float})
    table = pd.concat([own.assign(source="this report"), theirs], ignore_index=True)
    table["size"] = table["megabytes"].map("{:g} MB".format)
    keys = ["backend", "world", "source", "hardware"]
    wide = table.pivot_table(index=keys, columns="size", values="algorithm_gb_per_s", aggfunc="last")
    wide = wide.reindex(pd.MultiIndex.from_frame(table[keys].drop_duplicates()), columns=table["size"].unique())
    return tidy.ordered(wide.rename_axis(columns=None).reset_index(), "backend world")


def theory(records: pd.DataFrame) -> list[Hypothesis]:
    """Predict an all-reduce by its two halves, and its growth with the ranks by the ring."""
    case = tidy.largest(tidy.select(records, operation="all_reduce"), "megabytes", backend=backend(records))
    halves = [hypotheses.median(records, "total_ms", {**case, "operation": name}) for name in HALVES]
    at = sentences.at(", {megabytes:g} MB, {world} ranks, {backend}", case)
    few, many = hypotheses.ends(records, "world", case, longest=False)
    ranks = sentences.at(f", {{megabytes:g}} MB, {few['world']} to {{world}} ranks, {{backend}}", many)
    less, more = (accounting.bus_bytes("all_reduce", 1, each["world"] or math.nan) for each in (few, many))
    return [
        Hypothesis(
            f"all_reduce, ms{at}", "a reduce_scatter and an all_gather",
            None if None in halves else sum(one.value for one in halves),
            hypotheses.median(records, "total_ms", case),
        ),
        Hypothesis(
            f"growth of all_reduce{ranks}", "bytes in a ring, 2 (n − 1) / n", more / less,
            hypotheses.ratio(records, "total_ms", many, few),
        ),
    ]  # fmt: skip
