"""Compare training steps in narrow types with the same steps in fp32, for the chapter `precision`."""

import numpy as np
import pandas as pd

from lib.report.sentences import extremes
from lib.report.steps import split
from lib.stats import spans

SAME = ("size", "context_length", "batch_size", "compiled", "attention", "optimizer", "mode", "device")


def compare(steps: pd.DataFrame) -> pd.DataFrame:
    """Return the training steps that ran in pairs with fp32, by type and size.

    `steps` is the table of the experiment `step`. New columns: `bound_ms`, `forward_ms` and `backward_ms` of fp32 with
    `fp32_` in front, and `bounds_allow`, the ratio of both bounds."""
    fp32 = steps[steps["precision"] == "fp32"].set_index(list(SAME))[["bound_ms", "forward_ms", "backward_ms"]]
    paired = steps[(steps["baseline"] == "fp32") & (steps["mode"] == "train_step")]
    paired = paired.merge(fp32.add_prefix("fp32_"), "left", list(SAME)).sort_values(["precision", "parameters"])
    return paired.assign(bounds_allow=paired["fp32_bound_ms"] / paired["bound_ms"])


def list_sizes(compared: pd.DataFrame) -> pd.DataFrame:
    """Return the rows of `compare` in the type and at the tokens at which most sizes ran."""
    count = compared.groupby(["precision", "context_length"])["size"].transform("count")
    most = compared.assign(count=count).sort_values(["count", "context_length"]).tail(1)
    return compared.merge(most[["precision", "context_length", "batch_size"]])


def allowed_by_default(sizes: pd.DataFrame, steps: pd.DataFrame) -> pd.Series:
    """Return the gain that bounds allow each size over fp32 at the best rate of PyTorch's default library.

    `sizes` are rows of `list_sizes`, and `steps` is the table of the experiment `step`."""
    fp32 = steps[steps["precision"] == "fp32"]
    default_ms = [split(fp32.merge(sizes.loc[[place], list(SAME)]))["default_ms"].sum() for place in sizes.index]
    # it is NaN where there is no bound
    return (pd.Series(default_ms, sizes.index, dtype=float) / sizes["bound_ms"]).where(sizes["bounds_allow"].notna())


def list_all(steps: pd.DataFrame) -> pd.DataFrame:
    """Return all steps in narrow types with `fp32_ms`, `narrow_ms` and `speedup`.

    They are of pairs with fp32, whose `range` is told, or, where none ran, of both timed alone."""
    keys = [*SAME, "parameters"]
    fp32 = steps.loc[steps["precision"] == "fp32", [*keys, "total_ms"]].rename(columns={"total_ms": "fp32_ms"})
    rows = steps[(steps["precision"] != "fp32") & (steps["mode"] == "train_step")].merge(fp32, "left", keys)
    is_alone = rows["baseline"] != "fp32"
    ends = [extremes(ends, ".2f") for ends in rows[["lowest_pair", "highest_pair"]].to_numpy()]
    rows["narrow_ms"] = rows["total_ms"].where(is_alone, rows["paired_ms"])
    rows["fp32_ms"] = rows["fp32_ms"].where(is_alone, rows["baseline_ms"])
    rows = rows.assign(range=np.where(is_alone, "timed alone", ends), verdict=rows["verdict"].mask(is_alone, ""))
    rows[["speedup_low", "speedup_high"]] = rows[["speedup_low", "speedup_high"]].mask(is_alone)
    rows["speedup"] = rows["speedup"].mask(is_alone, rows["fp32_ms"] / rows["narrow_ms"])
    return rows.dropna(subset="speedup").sort_values(["precision", "context_length", "parameters"])


def gain(row: tuple) -> str:
    """Say how a row of `list_sizes` or `list_all` compares: 1.9× (1.7 to 2.1, one process).

    Without an interval it is 1.85× (3 pairs of one process, 0.98 to 1.91)."""
    text, low, high = spans.ratio_between(row.speedup, row.speedup_low, row.speedup_high)
    of = "one process" if row.paired_rounds == 1 else f"{row.paired_rounds:.0f} processes"
    notes = [f"{low} to {high}"] if low else []
    if not row.paired_rounds > 0:
        notes.append("timed alone")
    elif row.verdict != "faster" and row.lowest_pair > 1:
        notes.append(f"unclear, but faster in all {row.pairs:.0f} pairs of {of}")
    elif not low:
        notes.append(f"{row.pairs:.0f} pairs of {of}, {extremes([row.lowest_pair, row.highest_pair], '.2f')}")
    elif row.paired_rounds == 1:
        notes.append(of)
    return f"{text}× ({', '.join(notes)})"


def tell(row: tuple) -> str:
    """Say how a row of `list_sizes` compares: 1.9× (1.7 to 2.1) for tiny, 65 against 124 ms."""
    return f"{gain(row)} for {row.size}, {row.paired_ms:,.0f} against {row.baseline_ms:,.0f} ms"
