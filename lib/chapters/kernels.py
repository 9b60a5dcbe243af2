"""Records of profiled steps as tidy tables: what takes the time of each phase; measures nothing.

A value is one number a process, so that its interval, given by three or more processes, speaks for all of them.
"""

import statistics
from collections.abc import Iterator, Mapping

import pandas as pd

from lib.instruments import kernel_classes
from lib.report import tidy
from lib.report.published import published_table
from lib.stats import intervals
from lib.stats.intervals import Interval

SCOPES = {  # what shares are formed of
    "forward": ("forward",),
    "forward and backward": ("forward", "backward"),
    "whole step": ("forward", "backward", "optimizer"),
}
NO_PRODUCT = kernel_classes.CLASSES[1:]
SHOWN = 5  # rows of a phase
CALL_COLUMNS = "calls total_us mean_us median_us min_us max_us deviation_us share_percent"
TOP_COLUMNS = "phase kernel class share_percent calls total_us mean_us median_us min_us max_us deviation_us"
TIMER_COLUMNS = "phase timed_ms profiled_ms profiled_ratio kernels_ms busy_percent"
PART_COLUMNS = "phase part part_ms product_ms time_percent flops_percent gflops gigabytes"


def head(records: pd.DataFrame) -> dict:
    """The fields of the case that the chapter speaks of: of those in fp32, eager and measured in the most processes the
    one with the most FLOPs; each None without any."""
    plain = tidy.select(records, status="ok", precision="fp32", compiled=False)
    if plain.empty:
        return dict.fromkeys(records.attrs["fields"])
    rounds = plain.groupby(records.attrs["fields"])["round"].transform("nunique")
    chosen = plain[rounds == rounds.max()]
    chosen.attrs = records.attrs
    return tidy.largest(chosen, "forward_flops")


def _cases(records: pd.DataFrame, table: str) -> Iterator[tuple[dict, pd.DataFrame]]:
    """Each case that has that table: what `estimates.medians` says of it, and its records."""
    for _, row in tidy.medians(records).iterrows():
        group = tidy.select(records, **row[records.attrs["fields"]])
        group = group[tidy.column(group, table).map(lambda value: isinstance(value, dict))]
        if len(group):
            yield row.to_dict(), group


def _sum(table: Mapping, **where) -> float:
    """The total in microseconds of the rows with these values, a tuple admitting any of its own."""
    admitted = {name: value if isinstance(value, tuple) else (value,) for name, value in where.items()}
    rows = (dict(zip(table, row, strict=True)) for row in zip(*table.values(), strict=True))
    return sum(row["total_us"] for row in rows if all(row[name] in of for name, of in admitted.items()))


def share(records: pd.DataFrame, scope: str, kind: str | tuple[str, ...] = NO_PRODUCT) -> Interval | None:
    """What percentage of a scope one or several classes take, in records of one case; None where it is not in them."""
    tables_ = [table for table in tidy.column(records, "classes") if isinstance(table, dict)]
    phases = SCOPES[scope]
    if not tables_ or not set(phases) <= set(tables_[0]["phase"]):
        return None
    return intervals.of_processes(
        [100 * _sum(t, phase=phases, **{"class": kind}) / _sum(t, phase=phases) for t in tables_]
    )


def fall(records: pd.DataFrame) -> Interval | None:
    """The share of matrix products in the whole step relative to that in the forward pass, in records of one case."""
    found = []
    for table in (table for table in tidy.column(records, "classes") if isinstance(table, dict)):
        ends = [SCOPES["whole step"], SCOPES["forward"]]
        step, forward = (
            _sum(table, phase=of, **{"class": kernel_classes.PRODUCT}) / _sum(table, phase=of) for of in ends
        )
        found.append(step / forward)
    return intervals.of_processes(found) if found else None


def shares(records: pd.DataFrame) -> pd.DataFrame:
    """One row a case and `scope`, with `<class>_percent` of all that ran in it, and `else_percent`, what is no matrix
    product."""
    rows = []
    for row, group in _cases(records, "classes"):
        for scope in SCOPES:
            found = {_column(kind): share(group, scope, kind) for kind in kernel_classes.CLASSES}
            if all(found.values()):
                rows.append(row | {"scope": scope, "else_percent": share(group, scope)} | found)
    columns = [*records.attrs["fields"], "scope", "hardware", "else_percent", *map(_column, kernel_classes.CLASSES)]
    return pd.DataFrame(rows, columns=None if rows else columns)


def _column(kind: str) -> str:
    return f"{kind.replace(' ', '_')}_percent"


def in_short(shares: pd.DataFrame) -> pd.DataFrame:
    """A table of `shares` whose scopes are in the few characters that a label has room for."""
    return shares.replace({"scope": dict(zip(SCOPES, ("forward", "+ backward", "+ optimizer"), strict=True))})


def present(shares: pd.DataFrame) -> list[str]:
    """The classes that take any time in a table of `shares`, as the first part of their columns."""
    columns = [_column(kind) for kind in kernel_classes.CLASSES]
    return [name.removesuffix("_percent") for name in columns if any(i.value > 0 for i in shares[name])]


def top(
    records: pd.DataFrame, case: Mapping, source: str = "kernels", by: str = "phase", most: int = SHOWN
) -> pd.DataFrame:
    """What takes most of each phase of one case: the columns of the record's table, `total_us` and `share_percent` with
    intervals, of what every process has among its largest. With `source` nsys, by its ranges."""
    fields = records.attrs["fields"]
    rows = []
    for row, group in _cases(tidy.select(records, **{name: case[name] for name in fields}), source):
        all_of_it = pd.concat([pd.DataFrame(table).assign(process=i) for i, table in enumerate(group[source])])
        if "class" in all_of_it:
            all_of_it = all_of_it[all_of_it["class"] != ""]  # all others together
        for place, part in all_of_it.groupby(by, sort=False):
            found = [(name, rest) for name, rest in part.groupby("kernel", sort=False) if len(rest) == len(group)]
            found.sort(key=lambda pair: -intervals.of_processes(list(pair[1]["total_us"])).value)
            for name, of in found[:most]:
                cells = {c: of[c].median() for c in CALL_COLUMNS.split() if c in of}
                cells |= {c: intervals.of_processes(list(of[c])) for c in ("total_us", "share_percent") if c in of}
                cells["class"] = of["class"].iloc[0] if "class" in of else kernel_classes.classify(name, place)
                cells["calls"] = f"{cells['calls']:,g}"
                rows.append(row | {by: place, "kernel": kernel_classes.short(name)} | cells)
    return pd.DataFrame(rows, columns=None if rows else [*fields, by, *TOP_COLUMNS.split()[1:], "hardware"])


def against_timer(records: pd.DataFrame) -> pd.DataFrame:
    """One row a case and phase: `timed_ms` without the profiler, `profiled_ms` under it, their ratio process by
    process, the sum of what ran, `kernels_ms`, and what part of the profiled time that is."""
    rows = []
    for row, group in _cases(records, "classes"):
        for phase in dict.fromkeys(group["classes"].iloc[0]["phase"]):
            timed, profiled = (
                [statistics.median(samples) for samples in group[f"{prefix}{phase}_ms"]] for prefix in ("", "profiled_")
            )
            ran = [_sum(table, phase=phase) / 1e3 for table in group["classes"]]  # means, as what they are set beside
            whole = [statistics.mean(samples) for samples in group[f"profiled_{phase}_ms"]]
            rows.append(
                row | {
                    "phase": phase, "timed_ms": intervals.of_processes(timed),
                    "profiled_ms": intervals.of_processes(profiled),
                    "profiled_ratio": intervals.of_processes([b / a for a, b in zip(timed, profiled, strict=True)]),
                    "kernels_ms": intervals.of_processes(ran),
                    "busy_percent": intervals.of_processes([100 * a / b for a, b in zip(ran, whole, strict=True)]),
                }
            )  # fmt: skip
    columns = [*records.attrs["fields"], *TIMER_COLUMNS.split(), "hardware"]
    return pd.DataFrame(rows, columns=None if rows else columns)


def parts(records: pd.DataFrame) -> pd.DataFrame:
    """One row a case, phase and part of attention: `part_ms`, what of it is matrix products, the part's share of the
    time and of the FLOPs of all parts of the phase, and its FLOPs and least bytes by its time, in 1e9 a second."""
    rows = []
    for row, group in _cases(records, "parts"):
        costs = pd.DataFrame(group["part_costs"].iloc[0])
        for _, cost in costs.iterrows():
            phase, part = cost["phase"], cost["part"]
            took = [_sum(table, phase=phase, part=part) for table in group["parts"]]
            whole = [_sum(table, phase=phase) for table in group["parts"]]
            product = [_sum(t, phase=phase, part=part, **{"class": kernel_classes.PRODUCT}) for t in group["parts"]]
            rows.append(
                row | {
                    "phase": phase, "part": part, "part_ms": intervals.of_processes([us / 1e3 for us in took]),
                    "product_ms": intervals.of_processes([us / 1e3 for us in product]),
                    "time_percent": intervals.of_processes([100 * a / b for a, b in zip(took, whole, strict=True)]),
                    "flops_percent": 100 * cost["flops"] / costs.loc[costs["phase"] == phase, "flops"].sum(),
                    "gflops": intervals.of_processes([cost["flops"] / us / 1e3 for us in took]),
                    "gigabytes": intervals.of_processes([cost["bytes"] / us / 1e3 for us in took]),
                }
            )  # fmt: skip
    return pd.DataFrame(rows, columns=None if rows else [*records.attrs["fields"], *PART_COLUMNS.split(), "hardware"])


def softmax_to_products(records: pd.DataFrame, phase: str) -> dict | None:
    """Softmax to the matrix products of attention in a phase, in records of one case: the ratios of their `time`, of
    their `flops` and of their least `bytes`; None without parts."""
    group = records[tidy.column(records, "parts").map(lambda value: isinstance(value, dict))]
    if group.empty or phase not in group["parts"].iloc[0]["phase"]:
        return None
    costs = pd.DataFrame(group["part_costs"].iloc[0]).query("phase == @phase").set_index("part")
    product = {"part": ("scores", "values"), "class": kernel_classes.PRODUCT}
    times = [_sum(t, phase=phase, part="softmax") / _sum(t, phase=phase, **product) for t in group["parts"]]
    counted = {
        unit: costs.loc["softmax", unit] / costs.loc[["scores", "values"], unit].sum() for unit in ("flops", "bytes")
    }
    return {"time": intervals.of_processes(times)} | counted


def leaders(records: pd.DataFrame, scope: str) -> list[dict]:
    """In each process of one case what takes the most of a scope: `kernel`, `calls`, `share_percent`."""
    found = []
    for _, record in records[tidy.column(records, "kernels").map(lambda value: isinstance(value, dict))].iterrows():
        ran = pd.DataFrame(record["kernels"])
        ran = ran[ran["phase"].isin(SCOPES[scope]) & (ran["class"] != "")]
        sums = ran.groupby("kernel", sort=False)[["calls", "total_us"]].sum()
        name = sums["total_us"].idxmax()
        whole = _sum(record["classes"], phase=SCOPES[scope])
        part = 100 * sums.loc[name, "total_us"] / whole
        found.append({"kernel": kernel_classes.short(name), "calls": sums.loc[name, "calls"], "share_percent": part})
    return found


def published_shares() -> pd.DataFrame:
    """The published tables of kernels by class, one row a `scope`: what percentage matrix products and all else that is
    printed take, `matrix_product_percent` and `else_percent`. Only the largest kernels are printed, so that both are
    the least that they can be; a whole step does not tell which of them the optimizer launched."""
    table = published_table("kernels")
    scopes = {"forward": "forward", "forward_backward": "forward and backward", "train_step": "whole step"}
    table = table.assign(
        scope=table["phase"].map(scopes), product=table["kernel"].map(kernel_classes.classify)
    ).dropna()
    rows = []
    for scope in SCOPES:
        part = table[table["scope"] == scope]
        products = part["product"] == kernel_classes.PRODUCT
        first = part.iloc[0]
        rows.append(
            {
                "case": f"{first['model']}, context {first['context_length']}", "scope": scope,
                "hardware": first["hardware"], "source": first["source"],
                "matrix_product_percent": part.loc[products, "share_percent"].sum(),
                "else_percent": part.loc[~products, "share_percent"].sum(),
            }
        )  # fmt: skip
    return pd.DataFrame(rows)


def beside_published(records: pd.DataFrame, case: Mapping) -> pd.DataFrame:
    """This machine's shares of one case above the published ones of `published_shares`, scope by scope."""
    own = shares(tidy.select(records, **case)).assign(source="this report")
    own["case"] = [f"{size}, context {length}" for size, length in zip(own["size"], own["context_length"], strict=True)]
    rows = pd.concat([own.astype(object), published_shares().assign(restless="").astype(object)], ignore_index=True)
    return rows.sort_values("scope", key=lambda column: column.map(list(SCOPES).index), kind="stable")
