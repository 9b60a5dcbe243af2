"""Turn records into tidy tables: one row a case, medians with intervals.

A frame is what `records.load` returns: one row a record, samples as lists. Functions that look something up raise
NotMeasured where there is nothing, which a notebook shows as one line.
"""

import statistics
from collections.abc import Mapping, Sequence

import pandas as pd

from lib import catalog
from lib.records import STATUSES, NotMeasured
from lib.stats import intervals, steady_state


def fields(frame: pd.DataFrame) -> list[str]:
    """List the fields of a case of a frame's experiment that are among its columns."""
    if frame.empty:
        raise NotMeasured("this experiment, on this machine")
    return [name for name in catalog.CATALOG[frame["experiment"].iloc[0]].fields if name in frame]


def told(frame: pd.DataFrame) -> pd.DataFrame:
    """Return the records of the machine that is loaded first. Raises NotMeasured without any."""
    if not frame.empty:
        # records just measured by hand have no such attribute, and are all of this machine
        machine = frame.attrs.get("machine", frame["machine"].iloc[0])
        frame = frame[frame["machine"] == machine]
    if frame.empty:
        raise NotMeasured("this experiment, on this machine")
    return frame


def ok(frame: pd.DataFrame) -> pd.DataFrame:
    """Return the records that were measured, of each case the fresh if it has any."""
    measured = frame[frame["status"] == "ok"]
    if measured.empty:
        raise NotMeasured("any case of this kind")
    case = [*fields(measured), "machine"]
    has_only_stale = measured.groupby(case, dropna=False)["stale"].transform("all")
    return measured[~measured["stale"] | has_only_stale]


def only(frame: pd.DataFrame, **values) -> pd.DataFrame:
    """Return the rows with these values; a list names several.

    Raises NotMeasured without any, or without the column."""
    rows = frame
    for name, value in values.items():
        if name not in rows:
            raise NotMeasured(name.replace("_", " "))
        rows = rows[rows[name].isin(value if isinstance(value, list) else [value])]
    if rows.empty:
        words = ", ".join(f"{name} {value}" for name, value in values.items())
        raise NotMeasured(f"a case with {words}")
    return rows


def prefer(frame: pd.DataFrame, **values) -> pd.DataFrame:
    """Return the rows with these values, narrowed down field by field.

    If no row left has the value of a field, the value of the first of them is taken instead."""
    for name, value in values.items():
        if len(frame) and value not in list(frame[name]):
            value = frame[name].iloc[0]
        frame = frame[frame[name] == value]
    return frame


def rounds(frame: pd.DataFrame, metric: str) -> list[list[float]]:
    """Return the samples of a metric in each record that has them."""
    samples = []
    for value in frame.get(metric, []):
        if isinstance(value, list) and value:
            samples.append(value)
        # NaN, which a missing value became, is not equal to itself
        elif isinstance(value, int | float) and value == value:
            samples.append([value])
    return samples


def medians(frame: pd.DataFrame, metrics: Sequence[str], keep: Sequence[str] = ()) -> pd.DataFrame:
    """Return one row a case and machine, with the medians of its metrics.

    Columns: its fields, `machine`, `keep`, the metrics as Intervals, `rounds` and `status` in words. A metric without
    samples is missing. A case without any record that is ok has no metrics and its worst status. Raises NotMeasured
    where no record has a fact that is to be kept, as when all ran out of memory."""
    unknown = [name for name in keep if name not in frame or frame[name].isna().all()]
    if unknown:
        raise NotMeasured(unknown[0].replace("_", " "))
    rows = []
    for values, records in cases(frame):
        measured = records[records["status"] == "ok"]
        status = STATUSES[max(records["status"], key=list(STATUSES).index)]
        if len(measured):
            measured = ok(measured)
            records = measured
            status = ""
        row = {**values, "machine": records["machine"].iloc[0]}
        for name in keep:
            row[name] = records[name].iloc[0]
        for metric in metrics:
            samples = rounds(measured, metric)
            row[metric] = intervals.median(samples) if samples else None
        rows.append({**row, "rounds": len(measured), "status": status})
    return pd.DataFrame(rows)


def cases(frame: pd.DataFrame) -> list[tuple[Mapping, pd.DataFrame]]:
    """Return the fields of each case on each machine, with its records."""
    names = fields(frame)
    grouped = frame.groupby([*names, "machine"], sort=False, dropna=False)
    # the key ends in the machine, which is no field
    return [(dict(zip(names, key, strict=False)), records) for key, records in grouped]


def values(cells: pd.Series) -> pd.Series:
    """Return Intervals and numbers as numbers, what is none as NaN."""
    return pd.to_numeric(cells.astype(object).map(lambda cell: getattr(cell, "value", cell)), errors="coerce")


def filled(view: pd.DataFrame) -> pd.DataFrame:
    """Return a table without the columns in which no row has anything."""
    is_filled = (view.notna() & (view != "")).any()
    return view.loc[:, is_filled]


def noisy(frame: pd.DataFrame) -> pd.Series:
    """Tell of each record if the noise probe beside it was slow or unsteady.

    Slow is relative to the first decile of the machine's medians: the smallest may be a moment at a higher clock."""
    probes = frame.get("noise_probe_ms", pd.Series(index=frame.index, dtype=object))
    medians = probes.map(statistics.median, na_action="ignore").astype(float)
    quietest = medians.groupby(frame["machine"]).transform("quantile", 0.1)
    is_noisy = []
    for samples, best in zip(probes, quietest, strict=True):
        is_noisy.append(isinstance(samples, list) and not steady_state.quiet(samples, best))
    return pd.Series(is_noisy, index=frame.index)
