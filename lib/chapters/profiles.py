"""Turn profiles of steps into shares of kernels, parts of attention and points under the roofline.

A value has one number per process, so its interval, from three or more processes, covers all of them.
"""

import statistics
from collections.abc import Mapping
from dataclasses import replace

import pandas as pd

from lib.instruments import kernel_classes
from lib.instruments.kernel_classes import PRODUCT
from lib.report import roofline, tidy
from lib.stats import intervals
from lib.stats.intervals import Interval

SCOPES = {  # the phases that make up the whole of a share
    "forward": ["forward"],
    "forward and backward": ["forward", "backward"],
    "whole step": ["forward", "backward", "optimizer"],
}
NO_PRODUCT = list(kernel_classes.CLASSES[1:])
COLUMNS = {kind: f"{kind.replace(' ', '_')}_percent" for kind in kernel_classes.CLASSES}  # by class, in a table
TOP_COLUMNS = "phase kernel class share_percent calls total_us mean_us median_us min_us max_us deviation_us"
TIMER_COLUMNS = "phase timed_ms profiled_ms profiled_ratio kernels_ms busy_percent"
PART_COLUMNS = "phase part part_ms product_ms time_percent flops_percent gflops gigabytes"


def headline_case(records: pd.DataFrame) -> dict:
    """Return the fields of the eager fp32 case with the most FLOPs, each None if there is no such case."""
    return tidy.largest(records, "forward_flops", precision="fp32", compiled=False)


def summary(name: str, values: list[float]) -> Interval | None:
    """Return one number per process as an interval; that of a percentage ends at 100."""
    found = intervals.of_processes(values)
    return replace(found, high=min(found.high, 100.0)) if found and found.known and "percent" in name else found


def _sum_us(table: Mapping, **where) -> float:
    """Add the microseconds of the rows of a record's table with these values; of a list, with any."""
    return tidy.select(pd.DataFrame(table), **where)["total_us"].sum()


def _class_percents(records: pd.DataFrame, scope: str, kind: str | list[str]) -> list[float]:
    """Return the percentage of a scope that classes take, by process; empty if unrecorded."""
    found, phases = list(tidy.with_table(records, "classes").get("classes", [])), SCOPES[scope]
    if not found or not set(phases) <= set(found[0]["phase"]):
        return []
    return [100 * _sum_us(table, phase=phases, **{"class": kind}) / _sum_us(table, phase=phases) for table in found]


def share(records: pd.DataFrame, scope: str, kind: str | list[str] = NO_PRODUCT) -> Interval | None:
    """Return the percentage of a scope that classes take in one case, or None."""
    return summary("percent", _class_percents(records, scope, kind))


def kept_share(records: pd.DataFrame) -> Interval | None:
    """Divide matrix products' share of the whole step by that of the forward pass; None if that has none."""
    ends = [_class_percents(records, scope, PRODUCT) for scope in ("whole step", "forward")]
    if not all(ends[1]):
        return None
    return intervals.of_processes([step / forward for step, forward in zip(*ends, strict=False)])


def shares(records: pd.DataFrame) -> pd.DataFrame:
    """Return each class's percentage of the time, one row per case and scope.

    `else_percent` is that of everything but matrix products."""
    rows = []
    for row, group in tidy.by_case(records):
        for scope in SCOPES:
            found = {column: share(group, scope, kind) for kind, column in COLUMNS.items()}
            if all(found.values()):
                rows.append(row | {"scope": scope, "else_percent": share(group, scope)} | found)
    columns = [*records.fields, "scope", "hardware", "else_percent", *COLUMNS.values()]
    return pd.DataFrame(rows, columns=None if rows else columns)


def shorten(shares: pd.DataFrame) -> pd.DataFrame:
    """Shorten the names of scopes so that they fit into a label."""
    return shares.replace({"scope": dict(zip(SCOPES, ("forward", "+ backward", "+ optimizer"), strict=True))})


def present(shares: pd.DataFrame) -> list[str]:
    """List the classes that take any time, by the first part of their columns."""
    return [name.removesuffix("_percent") for name in COLUMNS.values() if any(i.value > 0 for i in shares[name])]


def top(records: pd.DataFrame, case: Mapping, source="kernels", by="phase", most: int = 5) -> pd.DataFrame:
    """Return the kernels that take the most time in each phase of one case.

    Only kernels that every process has among its largest are compared. `total_us` and `share_percent` have
    intervals. With `source` nsys, `by` is the name of its ranges."""
    chosen, rows = tidy.select(records, **{name: case[name] for name in records.fields}), []
    for row, group in tidy.by_case(tidy.with_table(chosen, source)):
        ran = pd.concat([pd.DataFrame(table) for table in group[source]])
        ran = ran[tidy.column(ran, "class") != ""]  # drops the sum of all others
        columns = [name for name in TOP_COLUMNS.split()[3:] if name in ran]
        for scope, part in ran.groupby(by, sort=False):
            found = [(name, of) for name, of in part.groupby("kernel", sort=False) if len(of) == len(group)]
            found.sort(key=lambda pair: -intervals.of_processes(list(pair[1]["total_us"])).value)
            for name, of in found[:most]:
                cells = {column: of[column].median() for column in columns}
                cells |= {c: summary(c, list(of[c])) for c in ("total_us", "share_percent") if c in columns}
                cells["class"] = of["class"].iloc[0] if "class" in of else kernel_classes.classify(name, scope)
                cells["calls"] = f"{cells['calls']:,g}"
                rows.append(row | {by: scope, "kernel": kernel_classes.short(name)} | cells)
    return pd.DataFrame(rows)


def against_timer(records: pd.DataFrame) -> pd.DataFrame:
    """Compare the time with and without the profiler, one row per case and phase.

    `timed_ms` is without, `profiled_ms` under it, and `profiled_ratio` their ratio in each process. `kernels_ms` is
    the sum of the kernels, and `busy_percent` its share of the profiled time."""
    rows = []
    for row, group in tidy.by_case(tidy.with_table(records, "classes")):
        for phase in dict.fromkeys(group["classes"].iloc[0]["phase"]):
            timed, profiled = (
                [statistics.median(samples) for samples in group[f"{prefix}{phase}_ms"]] for prefix in ("", "profiled_")
            )
            ran = [_sum_us(table, phase=phase) / 1e3 for table in group["classes"]]  # means, to compare with means
            whole = [statistics.mean(samples) for samples in group[f"profiled_{phase}_ms"]]
            found = {
                "timed_ms": timed, "profiled_ms": profiled, "kernels_ms": ran,
                "profiled_ratio": [b / a for a, b in zip(timed, profiled, strict=True)],
                "busy_percent": [100 * a / b for a, b in zip(ran, whole, strict=True)],
            }  # fmt: skip
            rows.append(row | {"phase": phase} | {name: summary(name, of) for name, of in found.items()})
    return pd.DataFrame(rows)


def parts(records: pd.DataFrame) -> pd.DataFrame:
    """Return times and rates of attention, one row per case, phase and part.

    `product_ms` is the time of matrix products in `part_ms`. `time_percent` and `flops_percent` are shares of all
    parts of the phase. `gflops` and `gigabytes` are rates in 1e9 per second, for the least bytes."""
    rows = []
    for row, group in tidy.by_case(tidy.with_table(records, "parts")):
        costs = pd.DataFrame(group["part_costs"].iloc[0])
        for cost in costs.to_dict("records"):
            phase, own = {"phase": cost["phase"]}, {"phase": cost["phase"], "part": cost["part"]}
            took, whole, product = (
                [_sum_us(table, **where) for table in group["parts"]]
                for where in (own, phase, own | {"class": PRODUCT})
            )
            if not all(took):
                continue  # nothing was seen in its range
            found = {
                "part_ms": [us / 1e3 for us in took], "product_ms": [us / 1e3 for us in product],
                "time_percent": [100 * a / b for a, b in zip(took, whole, strict=True)],
                "gflops": [cost["flops"] / us / 1e3 for us in took],
                "gigabytes": [cost["bytes"] / us / 1e3 for us in took],
            }  # fmt: skip
            percent = 100 * cost["flops"] / tidy.select(costs, **phase)["flops"].sum()
            summed = {name: summary(name, values) for name, values in found.items()}
            rows.append(row | own | {"flops_percent": percent} | summed)
    return pd.DataFrame(rows)


def points(records: pd.DataFrame, case: Mapping) -> pd.DataFrame:
    """Return a roofline point for each part of attention and phase of one step."""
    return pd.DataFrame([
        {name: row.get(name, "") for name in ("precision", "hardware", "noisy", "gflops")}
        | {"name": row["part"], "label": f"{row['part']}, {row['phase']}"}
        | {"intensity": row["gflops"].value / row["gigabytes"].value}
        for _, row in parts(tidy.select(records, **case)).iterrows()
    ], columns=roofline.COLUMNS)  # fmt: skip


def softmax_to_products(records: pd.DataFrame, phase: str) -> dict | None:
    """Divide softmax by attention's matrix products, in one case; None without parts or products."""
    group = tidy.with_table(records, "parts")
    if group.empty or phase not in group["parts"].iloc[0]["phase"]:
        return None
    costs, both = pd.DataFrame(group["part_costs"].iloc[0]), ["scores", "values"]
    counted = {unit: costs[costs["phase"] == phase].set_index("part")[unit] for unit in ("flops", "bytes")}
    products = [_sum_us(table, phase=phase, part=both, **{"class": PRODUCT}) for table in group["parts"]]
    if not all(products):
        return None
    softmax = [_sum_us(table, phase=phase, part="softmax") for table in group["parts"]]
    times = [one / other for one, other in zip(softmax, products, strict=True)]
    return {"time": intervals.of_processes(times)} | {
        unit: of["softmax"] / of[both].sum() for unit, of in counted.items()
    }


def leaders(records: pd.DataFrame, scope: str) -> pd.DataFrame:
    """Find the kernel that takes the most of a scope, with calls and share, in each process of a case."""
    found = []
    for _, record in tidy.with_table(records, "kernels").iterrows():
        ran = tidy.select(pd.DataFrame(record["kernels"]), phase=SCOPES[scope])
        sums = ran[ran["class"] != ""].groupby("kernel", sort=False)[["calls", "total_us"]].sum()
        name = sums["total_us"].idxmax()
        calls, us = sums.loc[name]
        share = 100 * us / _sum_us(record["classes"], phase=SCOPES[scope])
        found.append((kernel_classes.short(name), calls, share))
    return pd.DataFrame(found, columns=["kernel", "calls", "share_percent"])
