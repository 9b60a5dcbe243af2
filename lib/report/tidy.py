"""Look up records of a frame that `records.load` returns: one row a record, samples as lists.

Functions that look something up raise NotMeasured where there is nothing, which a notebook shows as one line.
"""

import statistics

import pandas as pd

from lib import catalog
from lib.records import NotMeasured
from lib.stats import steady_state


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


def values(cells: pd.Series) -> pd.Series:
    """Return Intervals and numbers as numbers, what is none as NaN."""
    return pd.to_numeric(cells.astype(object).map(lambda cell: getattr(cell, "value", cell)), errors="coerce")


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
