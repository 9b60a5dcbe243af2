"""Turns records into tidy tables: one row a case, with medians and their intervals, rates and shares;
knows nothing of how a table looks.
"""

import functools
import itertools
import math
import statistics
from collections.abc import Callable, Iterator, Mapping

import numpy as np
import pandas as pd

from lib.catalog import CATALOG, MODES, PRECISIONS
from lib.config import SIZES
from lib.records.staleness import STALE, left_out
from lib.stats import intervals, steady_state

NOISY = "a noisy machine"
BUSY_PERCENT = 10  # with a tenth of all cores gone, what uses them all may take a tenth longer, as the noise probe may
STATUS = {
    "ok": "",
    "oom": "ran out of memory",
    "too_large": "predicted not to fit",
    "timeout": "took longer than its time limit",
    "crashed": "its process died",
    STALE: STALE,
}


def samples(records: pd.DataFrame, metric: str) -> dict[int, list[float]]:
    """The samples of a metric in these records of one case, by round. Raises ValueError for several cases."""
    if metric not in records:
        return {}
    rows = records.loc[records[metric].map(lambda value: isinstance(value, list) and len(value) > 0)]
    if rows["round"].duplicated().any():
        raise ValueError(f"{metric}: the records are of more than one case")
    return dict(zip(rows["round"], rows[metric], strict=True))


def median(records: pd.DataFrame, metric: str) -> intervals.Interval | None:
    """The median of a metric of one case with its interval; None where it was not measured."""
    by_round = samples(records, metric)
    return intervals.median(list(by_round.values())) if by_round else None


def medians(records: pd.DataFrame, *metrics: str) -> pd.DataFrame:
    """One row a case: the fields of the case, `machine, hardware, status` (of the last round), `why` it has no
    times, `codes` (the digests of the code that measured it), `noisy` (in how many of its rounds the machine was,
    as `disturbances` tells), for each metric a column of the same name holding a `stats.Interval`, or None, and for
    each fact (one number or text a record) its value. A model's `size` comes with its `d_model`, and `attrs` tell what
    is `left_out` as stale."""
    rows = []
    fields = records.attrs.get("fields", [])
    for key, group in records.groupby([*fields, "machine"], sort=False) if len(records) else ():
        last = group.sort_values("round").iloc[-1]
        row = dict(zip([*fields, "machine"], key, strict=True))
        row |= {"hardware": last["hardware"], "status": last["status"], "why": _why(last)}
        row["codes"] = frozenset(group["code"])
        disturbed = sum(bool(disturbances(record)) for _, record in group.iterrows())
        row["noisy"] = f"{disturbed} of {len(group)}" if disturbed else ""
        for metric in metrics:
            row[metric] = median(group, metric) or _fact(last.get(metric))
        if row.get("size") in SIZES:
            row["d_model"] = SIZES[row["size"]].d_model
        rows.append(row)
    columns = [*fields, "machine", "hardware", "status", "why", "codes", "noisy", *metrics]
    columns += ["d_model"] if "size" in fields and "d_model" not in columns else []
    frame = pd.DataFrame(rows, columns=columns)
    frame = frame.sort_values(fields, key=in_order, ignore_index=True) if fields else frame
    frame.attrs["left_out"] = left_out(records)
    return frame


def _fact(value) -> float | str | None:
    """A number or text of a record; None for one that is missing."""
    return value if pd.api.types.is_scalar(value) and not pd.isna(value) else None


def disturbances(record: pd.Series) -> str:
    """Say what disturbed a record's times; an empty text where nothing did.

    The machine is noisy where the noise probe was slower or less steady than it can be here, or other processes used
    more than `BUSY_PERCENT` of the cores. Otherwise the samples may have changed as they went on."""
    probe, times = record.get("noise_probe_ms"), record.get("total_ms")
    best = record.get("quietest_ms", math.nan)
    busy = (record.get("environment") or {}).get("others_percent", 0) > BUSY_PERCENT
    noisy = isinstance(probe, list) and not steady_state.quiet(
        probe, statistics.median(probe) if math.isnan(best) else best
    )
    change = _change(tuple(times)) if isinstance(times, list) else None
    return ", ".join([NOISY] * (busy or noisy) + [str(change)] * bool(change))


_change = functools.cache(steady_state.change)  # of a series, which every table of its records asks anew


def _why(record: pd.Series) -> str:
    """Why a record holds no times, with the numbers that it gives."""
    text = STATUS[record["status"]]
    if record["status"] == STALE:
        return f"{text}: {record['stale']}"
    if record["status"] == "too_large":
        needed, available = (record[name] / 2**30 for name in ("predicted_bytes", "available_bytes"))
        text += f" ({needed:,.1f} GiB of {available:,.1f})"
    return text


ORDER = (  # in which variants, sizes, precisions and modes are introduced
    *itertools.chain.from_iterable(entry.variants for entry in CATALOG.values()),
    *SIZES,
    *PRECISIONS,
    *MODES,
)


def in_order(column: pd.Series) -> pd.Series:
    """A sort key: sizes, precisions and variants in the order of `ORDER`; numbers by value."""
    known = set(column.map(type)) == {str}
    return column.map(lambda value: ORDER.index(value) if value in ORDER else len(ORDER)) if known else column


def column(records: pd.DataFrame, name: str) -> pd.Series:
    """A metric of each record, missing where it was not measured, also when none has it."""
    return records[name] if name in records else pd.Series(None, index=records.index, dtype=object)


def derive(records: pd.DataFrame, name: str, formula: Callable, *metrics: str) -> pd.DataFrame:
    """The records with one metric more: `formula` of the given metrics, sample by sample, where all were
    measured. A metric that is one number a record takes part in each of its samples."""
    values = []
    for row in zip(*(column(records, metric) for metric in metrics), strict=True):
        lists = [value for value in row if isinstance(value, list)]
        if not lists or any(not isinstance(value, list) and pd.isna(value) for value in row):
            values.append(None)
            continue
        count = len(lists[0])
        samples = (value if isinstance(value, list) else [value] * count for value in row)
        values.append([formula(*sample) for sample in zip(*samples, strict=True)])
    return records.assign(**{name: pd.Series(values, index=records.index, dtype=object)})


def with_quotient(records: pd.DataFrame, name: str, above: str, below: str, scale: float = 1) -> pd.DataFrame:
    """The records with one metric more: `scale` times one metric over another of the same iteration."""
    return derive(records, name, lambda a, b: scale * a / b, above, below)


def with_sum(records: pd.DataFrame, name: str, first: str, second: str) -> pd.DataFrame:
    """The records with one metric more: the sum of two of the same iteration."""
    return derive(records, name, lambda a, b: a + b, first, second)


def with_moments(records: pd.DataFrame, metric: str) -> pd.DataFrame:
    """The records with three metrics more, of one value a process: `mean_ms` and `deviation_ms`, the mean of its
    samples and their standard deviation (with n - 1), and `deviation_percent`, that relative to the mean; missing where
    there are fewer than two samples."""
    found: dict[str, list] = {"mean_ms": [], "deviation_ms": [], "deviation_percent": []}
    for samples in column(records, metric):
        known = isinstance(samples, list) and len(samples) > 1
        mean, deviation = (statistics.mean(samples), statistics.stdev(samples)) if known else (math.nan, math.nan)
        for values, value in zip(found.values(), (mean, deviation, 100 * deviation / mean), strict=True):
            values.append([value] if known else None)
    return records.assign(**{name: pd.Series(values, records.index, dtype=object) for name, values in found.items()})


def with_rate(records: pd.DataFrame, name: str, amount: str, metric: str, scale: float = 1) -> pd.DataFrame:
    """The records with one metric more: `scale` times the fact `amount` a second, by a metric in milliseconds."""
    return derive(records, name, lambda total, ms: scale * total * 1e3 / ms, amount, metric)


def with_percent_of(
    records: pd.DataFrame, name: str, amount: str, limit: dict[str, float], times: float = 1
) -> pd.DataFrame:
    """The records with one metric more: `times` the fact `amount` a second of the whole iteration, in percent of
    the limit of the record's precision; missing where that limit was not measured."""
    known = records.assign(limit=records["precision"].map(limit).astype(float))
    return derive(
        known, name, lambda total, ms, most: 100 * times * total * 1e3 / ms / most, amount, "total_ms", "limit"
    )


def with_least_time(records: pd.DataFrame, flops: dict[str, float], bandwidth: float) -> pd.DataFrame:
    """The records of training steps with two metrics more: `least_ms`, the time that the matrix products take at the
    ceiling of the record's precision and, after them, the least bytes of all else at the ceiling of memory; and
    `least_percent`, that as a share of the time measured. Missing where a ceiling was not measured."""
    known = records.assign(limit=records["precision"].map(flops).astype(float), speed=bandwidth)
    parts = [f"{phase}_{unit}" for unit in ("flops", "bytes") for phase in ("forward", "backward")]

    def least(total_ms, forward_flops, backward_flops, forward_bytes, backward_bytes, optimizer_bytes, limit, speed):
        moved = forward_bytes + backward_bytes + optimizer_bytes
        return 1e3 * ((forward_flops + backward_flops) / limit + moved / speed)

    known = derive(known, "least_ms", least, "total_ms", *parts, "optimizer_bytes", "limit", "speed")
    return with_quotient(known, "least_percent", "least_ms", "total_ms", scale=100)


def with_cold_start(records: pd.DataFrame) -> pd.DataFrame:
    """The records with `first_iteration_s`: that of a compiled case in a process that found no graph of it compiled
    before."""
    cold = records[column(records, "compile_cache_hits") == 0]
    first = derive(cold, "first_iteration_s", lambda ms: ms / 1e3, "first_iteration_ms")["first_iteration_s"]
    return records.assign(first_iteration_s=first.reindex(records.index).astype(object))


def ceiling(ceilings: pd.DataFrame, operation: str | list[str], fact: str) -> dict[str, float]:
    """The most that an operation reached on this machine over all its sizes and processes, by precision: `fact`
    (flops or moved_bytes) a second at the median time of the process."""
    chosen = with_rate(select(ceilings, operation=operation, status="ok"), "rate", fact, "total_ms")
    best: dict[str, float] = {}
    for precision, rates in zip(chosen["precision"], chosen["rate"], strict=True):
        best[precision] = max(statistics.median(rates), best.get(precision, 0))
    return best


def limits(ceilings: pd.DataFrame) -> tuple[dict[str, float], float]:
    """Give FLOP/s of matrix products by precision, and bytes/s of memory, NaN where it was not measured."""
    copies = ceiling(ceilings, ["copy", "triad", "add"], "moved_bytes")
    return ceiling(ceilings, "matmul", "flops"), max(copies.values(), default=math.nan)


def largest(records: pd.DataFrame, by: str, sign: int = 1, **where) -> dict:
    """The fields of the case with times for which the column `by` is largest, of those selected, or smallest
    with the sign -1; each field None where there is none."""
    fields, chosen = records.attrs["fields"], select(records, status="ok", **where)
    return dict.fromkeys(fields) if chosen.empty else chosen.loc[(sign * chosen[by]).idxmax(), fields].to_dict()


def select(records: pd.DataFrame, **where) -> pd.DataFrame:
    """The records whose columns have these values; a list admits any of its values."""
    kept = pd.Series(True, index=records.index)
    for name, value in where.items():
        admitted = value if isinstance(value, list) else [value]
        kept &= records[name].isin(admitted) if name in records else False
    return records[kept]


def one(records: pd.DataFrame, case: Mapping) -> pd.Series:
    """Give the first record of a case, or one that holds nothing."""
    chosen = select(records, **case)
    return chosen.iloc[0] if len(chosen) else pd.Series(dtype=object)


def with_table(records: pd.DataFrame, name: str) -> pd.DataFrame:
    """Select the records that hold the table of that name."""
    return records[column(records, name).map(lambda value: isinstance(value, dict)).astype(bool)]


def by_case(records: pd.DataFrame) -> Iterator[tuple[dict, pd.DataFrame]]:
    """Give each case as its row of `medians`, and its records."""
    for _, row in medians(records).iterrows():
        yield row.to_dict(), select(records, **row[records.attrs["fields"]])


def current(records: pd.DataFrame) -> pd.DataFrame:
    """The records that are not stale."""
    return records[column(records, "status") != STALE]


def labelled(table: pd.DataFrame, fields: list[str], but: str = "") -> pd.DataFrame:
    """The table with a column `label`: those of the fields that differ between its rows, in words, a boolean by
    its name where it is true; those in `but` are left to an axis."""
    differ = [name for name in fields if name not in but.split() and len(set(table[name])) > 1] or fields[:1]
    words = [[word(*field) for field in zip(differ, row, strict=True)] for row in table[differ].itertuples(index=False)]
    labels = [" ".join(filter(None, row)) or "plain" for row in words]
    return table.assign(label=labels)


def word(name: str, value) -> str:
    """A value in a label: a boolean by its name where it is true, or not at all."""
    return (name if value else "") if isinstance(value, bool | np.bool_) else str(value)


def ordered(frame: pd.DataFrame, columns: str) -> pd.DataFrame:
    """The rows by the columns named, sizes and variants in their order of introduction."""
    return frame.sort_values(columns.split(), key=in_order, ignore_index=True)
