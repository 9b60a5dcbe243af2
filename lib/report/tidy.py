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
from lib.stats.intervals import Interval
from lib.validate import BadInput


def fields(frame: pd.DataFrame) -> list[str]:
    """List the fields of a case of a frame's experiment that are among its columns."""
    if frame.empty:
        raise NotMeasured("this experiment, on this machine")
    return [name for name in catalog.CATALOG[frame["experiment"].iloc[0]].fields if name in frame]


def told(frame: pd.DataFrame, how: str = NotMeasured.HOW) -> pd.DataFrame:
    """Return the records of the machine that is loaded first.

    Without any, raises NotMeasured, which tells `how` they are measured."""
    if not frame.empty:
        # records just measured by hand have no such attribute, and are all of this machine
        machine = frame.attrs.get("machine", frame["machine"].iloc[0])
        frame = frame[frame["machine"] == machine]
    if frame.empty:
        raise NotMeasured("this experiment, on this machine", how)
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


def largest(frame: pd.DataFrame, name: str) -> pd.DataFrame:
    """Return the measured rows with the largest value of a field or fact."""
    rows = ok(frame)
    if name not in rows or rows[name].isna().all():
        raise NotMeasured(name.replace("_", " "))
    return rows[rows[name] == rows[name].max()]


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


def median(frame: pd.DataFrame, metric: str, **values) -> Interval:
    """Return the median of a metric of the one case with these values.

    Raises NotMeasured without samples, and BadInput for several cases or machines."""
    rows = ok(only(frame, **values))
    count = len(cases(rows))
    if count > 1:
        raise BadInput(f"{metric}: got records of {count} cases, expected one of one machine")
    samples = rounds(rows, metric)
    if not samples:
        raise NotMeasured(metric.replace("_", " "))
    return intervals.median(samples)


def in_pairs(frame: pd.DataFrame) -> pd.DataFrame:
    """Return the records with the times of their pairs in place of those taken alone.

    Records without pairs keep theirs. Milliseconds beside a ratio of pairs are then of the same runs."""
    frame = frame.copy()
    for name in frame.filter(regex="^paired_.*ms$"):
        alone = name.removeprefix("paired_")
        if alone == "ms":
            alone = "total_ms"
        frame[alone] = frame[name].where(frame[name].notna(), frame.get(alone))
    return frame


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


def by_machine(table: pd.DataFrame, column: str) -> pd.DataFrame:
    """Return the cases that several machines have measured, with a column for each machine.

    `table` is one of `medians` or of `compare.comparisons`; `column` is told of each machine. It is empty for one
    machine. The first column tells the fields of a case, but for the device, which differs between machines."""
    fields = list(table.columns[: table.columns.get_loc("machine")].drop("device", errors="ignore"))
    wide = table.pivot_table(index=fields, columns="machine", values=column, aggfunc="first", sort=False)
    wide = wide.dropna(thresh=2)
    names = [", ".join(map(str, case)) for case in wide.index.to_frame().itertuples(index=False)]
    wide.insert(0, ", ".join(fields).replace("_", " "), names)
    return wide.reset_index(drop=True).rename_axis(columns=None)


def inner(record: Mapping, name: str) -> pd.DataFrame:
    """Return a table that one record holds, such as `kernels`."""
    table = record.get(name)
    if not isinstance(table, dict) or pd.DataFrame(table).empty:
        raise NotMeasured(f"the table {name!r} of this case")
    return pd.DataFrame(table)


def cases(frame: pd.DataFrame) -> list[tuple[Mapping, pd.DataFrame]]:
    """Return the fields of each case on each machine, with its records."""
    names = fields(frame)
    grouped = frame.groupby([*names, "machine"], sort=False, dropna=False)
    # the key ends in the machine, which is no field
    return [(dict(zip(names, key, strict=False)), records) for key, records in grouped]


def values(cells: pd.Series) -> pd.Series:
    """Return Intervals and numbers as numbers, what is none as NaN."""
    return pd.to_numeric(cells.astype(object).map(lambda cell: getattr(cell, "value", cell)), errors="coerce")


def worst(frame: pd.DataFrame, errors: Sequence[str], by: Sequence[str]) -> pd.DataFrame:
    """Return the largest of each error in any record, as text, for each value of the fields `by`."""
    rows = []
    for key, records in ok(frame).groupby(list(by), sort=False):
        row = dict(zip(by, key, strict=True))
        for error in errors:
            largest = [max(samples) for samples in rounds(records, error)]
            row[error.replace("_", " ")] = f"{max(largest):.1e}" if largest else ""
        rows.append(row)
    return filled(pd.DataFrame(rows))


def filled(view: pd.DataFrame) -> pd.DataFrame:
    """Return a table without the columns in which no row has anything."""
    is_filled = (view.notna() & (view != "")).any()
    return view.loc[:, is_filled]


def shape(row: Mapping) -> str:
    """Name the model and the batch of a training step: small at 4 × 128 tokens."""
    return f"{row['size']} at {row['batch_size']} × {row['context_length']} tokens"


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


def note(frame: pd.DataFrame) -> str:
    """Return a table's note: rounds, hardware, and what is noisy or stale."""
    if not (frame["status"] == "ok").any():
        return ""
    measured = ok(frame)
    counts = sorted({len(records) for _, records in cases(measured)})
    words = " to ".join(str(count) for count in dict.fromkeys((counts[0], counts[-1])))
    parts = [f"{words} round{'s' if counts[-1] > 1 else ''} a case", "; ".join(measured["hardware"].unique())]
    noisy_count = int(noisy(measured).sum())
    if noisy_count:
        parts.append(f"{noisy_count} of {len(measured)} records noisy")
    if measured["stale"].any():
        parts.append("Some records are stale")
    return ". ".join(parts) + "."
