"""Turn records into tidy tables of medians, intervals, rates and shares."""

import functools
import itertools
import math
import statistics
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import replace
from operator import itemgetter

import numpy as np
import pandas as pd

from lib.catalog import CATALOG, MODES, PRECISIONS
from lib.config import SIZES
from lib.records.frame import Frame
from lib.records.staleness import STALE, left_out
from lib.report import quantities
from lib.stats import intervals, steady_state
from lib.stats.intervals import Interval

NOISY = "a noisy machine"
TOO_FAST = "a rate above the ceiling"
MOST_MFU = 1.05  # relative to the measured ceiling, which itself varies a little
LOG_ERROR = "_log_error"  # ends the name of a metric's further relative error, such as that of a ceiling
LAUNCHING = 0.9  # the host's share of a device's time from which on a case is launch-bound
LEAD_MS = 1.0  # a host that is further ahead has filled the queue, about a thousand launches, and waits for room in it
BUSY_PERCENT = 10  # losing a tenth of the cores may slow work on all of them by a tenth; the probe allows that too
STATUS = {
    "ok": "",
    "oom": "ran out of memory",
    "too_large": "predicted not to fit",
    "no_room": "no room at the time",
    "timeout": "took longer than its time limit",
    "crashed": "its process died",
    "failed": "raised an error",
    STALE: STALE,
}


def dicts(table: pd.DataFrame) -> list[dict]:
    """Return the rows as dicts; pandas' own `to_dict` takes five times as long."""
    names = list(table)
    return [dict(zip(names, row, strict=True)) for row in table.astype(object).to_numpy()]


def rounds(records: pd.DataFrame, *more: str) -> dict[tuple, list[dict]]:
    """Return the records of each case by the values of its fields, and of `more` columns."""
    cases: dict[tuple, list[dict]] = {}
    for record in dicts(records):
        cases.setdefault(tuple(record[name] for name in (*records.fields, *more)), []).append(record)
    return cases


def samples(records: pd.DataFrame, metric: str) -> dict[int, list[float]]:
    """Return a metric's samples of one case by round; ValueError for several cases."""
    return by_round(dicts(records[["round", metric]]), metric) if metric in records else {}


def by_round(rounds: Iterable[Mapping], metric: str) -> dict[int, list[float]]:
    """Return a metric's samples by round from the records of one case, which may lack it.

    Raises ValueError for records of several cases."""
    timed = [(each["round"], each[metric]) for each in rounds if isinstance(each.get(metric), list) and each[metric]]
    found = dict(timed)
    if len(found) < len(timed):
        raise ValueError(f"{metric}: got records of more than one case, expected one")
    return found


def median(records: pd.DataFrame, metric: str) -> Interval | None:
    """Return the median of a metric of one case with its interval, or None.

    The interval of a share of a ceiling has the ceiling's error in it; that of a share of a whole ends at 100%."""
    return _median(metric, samples(records, metric), samples(records, metric + LOG_ERROR))


def _median(metric: str, timed: dict[int, list[float]], errors: dict[int, list[float]]) -> Interval | None:
    """Return `median` from the samples of the metric by round, and those of its further relative error."""
    processes = list(timed.values())
    if not processes:
        return None
    found = intervals.median(processes)
    if errors:
        return found.widened(max(each[0] for each in errors.values()))
    if metric.endswith("_percent") and max(map(max, processes)) <= 100 and found.known:
        return replace(found, high=min(found.high, 100.0))
    return found


def medians(records: pd.DataFrame, *metrics: str) -> pd.DataFrame:
    """Return one row per case, with medians and intervals of the metrics.

    `status` is that of the last round and `why` explains missing times. `codes` are digests of the measuring code;
    `noisy` counts the rounds with `disturbances`; if there are any, `throttled` and `launch_bound` count others. A
    metric is an `Interval`, a recorded number or text, or None. A `size` comes with its `d_model`; `quantity` names the
    case (see `quantities`), and `left_out` is set."""
    rows, fields = [], records.fields
    for key, each in rounds(records, "machine").items():
        last = max(each, key=itemgetter("round"))
        row = dict(zip([*fields, "machine"], key, strict=True))
        row |= {"hardware": last["hardware"], "status": last["status"], "why": _missing_reason(last)}
        row["codes"] = frozenset(record["code"] for record in each)
        row["quantity"] = quantities.case(row["machine"], records.experiment, {name: row[name] for name in fields})
        for mark, of in MARKS.items():
            marked = sum(bool(of(record)) for record in each)
            row[mark] = f"{marked} of {len(each)}" if marked else ""
        for metric in metrics:
            found = _median(metric, *(by_round(each, name) for name in (metric, metric + LOG_ERROR)))
            row[metric] = found or _as_scalar(last.get(metric))
        if row.get("size") in SIZES:
            row["d_model"] = SIZES[row["size"]].d_model
        rows.append(row)
    marks = ["noisy", *(mark for mark in MARKS if mark != "noisy" and any(row[mark] for row in rows))]
    columns = [*fields, "machine", "hardware", "status", "why", "codes", "quantity", *marks, *metrics]
    columns += ["d_model"] if "size" in fields and "d_model" not in columns else []
    frame = Frame(rows, columns=columns).with_origin(records, left_out=left_out(records))
    return frame.sort_values(fields, key=in_order, ignore_index=True) if fields else frame


def _as_scalar(value) -> float | str | None:
    """Return a number or text of a record, or None if it is missing."""
    return value if pd.api.types.is_scalar(value) and not pd.isna(value) else None


def disturbances(record: Mapping) -> str:
    """Describe what disturbed a record's times or makes them doubtful; empty if nothing does.

    The machine is noisy if the noise probe was slower or less steady than it can be here, or if other processes used
    more than `BUSY_PERCENT` of the cores. A training step may be faster than its `known_ceiling` allows. Otherwise the
    samples may have changed over time."""
    probe, times = record.get("noise_probe_ms"), record.get("total_ms")
    best = record.get("quietest_ms", math.nan)
    busy = (record.get("environment") or {}).get("others_percent", 0) > BUSY_PERCENT
    noisy = isinstance(probe, list) and not steady_state.quiet(
        probe, statistics.median(probe) if math.isnan(best) else best
    )
    change = _cached_change(tuple(times)) if isinstance(times, list) else None
    return ", ".join([NOISY] * (busy or noisy) + [TOO_FAST] * _too_fast(record) + [str(change)] * bool(change))


def _too_fast(record: Mapping) -> bool:
    """Tell if the MFU of a training step exceeds `MOST_MFU`, where the ceiling is known."""
    times, flops = record.get("total_ms"), record.get("forward_flops", math.nan)
    if record.get("mode") != "train_step" or not isinstance(times, list):
        return False
    return 3 * flops / (statistics.median(times) / 1e3) > MOST_MFU * record.get("known_ceiling", math.nan)


def throttled(record: Mapping) -> list[str]:
    """Return why the GPU's clock was lowered before or after a record's case."""
    return list(dict.fromkeys((record.get("environment") or {}).get("throttled", [])))


def launch_bound(record: Mapping) -> bool:
    """Return True if a record's times show how fast the host launches.

    The host's time until the last mark is then `LAUNCHING` of the device's or more."""
    host, total = record.get("host_ms"), record.get("total_ms")
    if not isinstance(host, list) or not isinstance(total, list):
        return False
    launching, whole = statistics.median(host), statistics.median(total)
    return launching >= LAUNCHING * whole and whole - launching < LEAD_MS


MARKS = {"noisy": disturbances, "throttled": throttled, "launch_bound": launch_bound}  # of rounds, in tables

_cached_change = functools.cache(steady_state.change)  # every table asks again for the same series


def _missing_reason(record: Mapping) -> str:
    """Explain why a record has no times, with the numbers that it states."""
    text = STATUS[record["status"]]
    if record["status"] == STALE:
        return f"{text}: {record['stale']}"
    if record["status"] == "failed":
        text += f": {record['reason']}"
    if record["status"] in ("too_large", "no_room"):
        needed, available = (record[name] / 2**30 for name in ("predicted_bytes", "available_bytes"))
        text += f" ({needed:,.1f} GiB of {available:,.1f})"
    if record["status"] == "oom" and pd.notna(record.get("shared_memory_bytes")):  # of a multiprocessor
        needed, available = (record[name] / 2**10 for name in ("asked_bytes", "shared_memory_bytes"))
        text = f"ran out of shared memory ({needed:,.0f} KiB of {available:,.0f})"
    return text


ORDER = (  # variants, sizes, precisions and modes, in the order of their introduction
    *itertools.chain.from_iterable(entry.variants for entry in CATALOG.values()),
    *SIZES,
    *PRECISIONS,
    *MODES,
)


def in_order(column: pd.Series) -> pd.Series:
    """Return a sort key: texts in the order of `ORDER`, numbers by value."""
    known = set(column.map(type)) == {str}
    return column.map(lambda value: ORDER.index(value) if value in ORDER else len(ORDER)) if known else column


def column(records: pd.DataFrame, name: str) -> pd.Series:
    """Return a metric of each record, missing where it was not measured."""
    return records[name] if name in records else pd.Series(None, index=records.index, dtype=object)


def derive(records: pd.DataFrame, name: str, formula: Callable, *metrics: str) -> pd.DataFrame:
    """Add a metric, `formula` of others, sample by sample, where all were measured.

    A metric that is one number per record is used for each of its samples."""
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
    """Add a metric: `scale` times one metric over another of the same iteration."""
    return derive(records, name, lambda a, b: scale * a / b, above, below)


def with_sum(records: pd.DataFrame, name: str, first: str, second: str) -> pd.DataFrame:
    """Add a metric: the sum of two metrics of the same iteration."""
    return derive(records, name, lambda a, b: a + b, first, second)


def with_moments(records: pd.DataFrame) -> pd.DataFrame:
    """Add `mean_ms`, `deviation_ms` and `deviation_percent` of `total_ms`, one value per process.

    The standard deviation has n - 1; all three are missing for fewer than two samples."""
    found: dict[str, list] = {"mean_ms": [], "deviation_ms": [], "deviation_percent": []}
    for samples in column(records, "total_ms"):
        known = isinstance(samples, list) and len(samples) > 1
        mean, deviation = (statistics.mean(samples), statistics.stdev(samples)) if known else (math.nan, math.nan)
        for values, value in zip(found.values(), (mean, deviation, 100 * deviation / mean), strict=True):
            values.append([value] if known else None)
    return records.assign(**{name: pd.Series(values, records.index, dtype=object) for name, values in found.items()})


def with_rate(records: pd.DataFrame, name: str, amount: str, scale: float = 1) -> pd.DataFrame:
    """Add a metric: `scale` times the fact `amount` per second of the whole iteration."""
    return derive(records, name, lambda total, ms: scale * total * 1e3 / ms, amount, "total_ms")


def with_counted_flops(records: pd.DataFrame) -> pd.DataFrame:
    """Add `counted_flops`: of causal attention those of the scores that a query may see, of others all."""
    causal = column(records, "causal_flops")
    return records.assign(counted_flops=causal.where(causal.notna(), column(records, "forward_flops")))


def with_cold_start(records: pd.DataFrame) -> pd.DataFrame:
    """Add `first_iteration_s` of compiled cases whose process found no compiled graph."""
    cold = records[column(records, "compile_cache_hits") == 0]
    first = derive(cold, "first_iteration_s", lambda ms: ms / 1e3, "first_iteration_ms")["first_iteration_s"]
    return records.assign(first_iteration_s=first.reindex(records.index).astype(object))


def largest(records: pd.DataFrame, by: str, sign: int = 1, **where) -> dict:
    """Return the fields of the selected, timed case with the largest column `by`.

    Cases measured in several processes come first, since their times have intervals. With `sign` -1 the smallest; each
    field is None if there is no such case."""
    fields, chosen = records.fields, select(records, status="ok", **where)
    if "round" in chosen:
        several = chosen.groupby(fields, dropna=False)["round"].transform("nunique") > 1
        chosen = chosen[several] if several.any() else chosen
    return dict.fromkeys(fields) if chosen.empty else chosen.loc[(sign * chosen[by]).idxmax(), fields].to_dict()


def select(records: pd.DataFrame, **where) -> pd.DataFrame:
    """Select the records with these values; a list admits any of its values."""
    kept = np.ones(len(records), dtype=bool)
    for name, value in where.items():
        admitted = value if isinstance(value, list) else [value]
        kept &= records[name].isin(admitted).to_numpy() if name in records else False
    return records[kept]


def one(records: pd.DataFrame, case: Mapping) -> pd.Series:
    """Return the first record of a case, or an empty one."""
    chosen = select(records, **case)
    return chosen.iloc[0] if len(chosen) else pd.Series(dtype=object)


def with_table(records: pd.DataFrame, name: str) -> pd.DataFrame:
    """Select the records that hold the table of that name."""
    return records[column(records, name).map(lambda value: isinstance(value, dict)).astype(bool)]


def by_case(records: pd.DataFrame) -> Iterator[tuple[dict, pd.DataFrame]]:
    """Yield each case as its row of `medians`, with its records."""
    for _, row in medians(records).iterrows():
        yield row.to_dict(), select(records, **row[records.fields])


def current(records: pd.DataFrame) -> pd.DataFrame:
    """Select the records that are not stale."""
    return records[column(records, "status") != STALE]


def labelled(table: pd.DataFrame, fields: list[str], but: str = "") -> pd.DataFrame:
    """Add `label`: the fields that differ between rows, in words, except those in `but`.

    A boolean is shown by its name if it is true."""
    differ = [name for name in fields if name not in but.split() and len(set(table[name])) > 1] or fields[:1]
    words = [[word(*field) for field in zip(differ, row, strict=True)] for row in table[differ].itertuples(index=False)]
    labels = [" ".join(filter(None, row)) or "plain" for row in words]
    return table.assign(label=labels)


def word(name: str, value) -> str:
    """Return a value for a label: a boolean by its name if true, or as nothing."""
    return (name if value else "") if isinstance(value, bool | np.bool_) else str(value)


def ordered(frame: pd.DataFrame, columns: str) -> pd.DataFrame:
    """Sort the rows by the columns named, sizes and variants in the order of `ORDER`."""
    return frame.sort_values(columns.split(), key=in_order, ignore_index=True)
