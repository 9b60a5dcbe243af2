"""Compare training steps in narrow types with the same steps in fp32, for the chapter `precision`."""

import pandas as pd

from lib.report.steps import split

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
    """Return the rows of `compare` in the type and at the tokens at which most sizes ran.

    Where an interval decides nothing, or there is one process, the ends of `speedup` are those of single pairs, and
    `is_open` is true."""
    count = compared.groupby(["precision", "context_length"])["size"].transform("count")
    most = compared.assign(count=count).sort_values(["count", "context_length"]).tail(1)
    sizes = compared.merge(most[["precision", "context_length", "batch_size"]])
    is_open = (sizes["verdict"] == "unclear") | (sizes["paired_rounds"] < 2)
    low = sizes["speedup_low"].mask(is_open, sizes["lowest_pair"])
    high = sizes["speedup_high"].mask(is_open, sizes["highest_pair"])
    return sizes.assign(speedup_low=low, speedup_high=high, is_open=is_open)


def allowed_by_default(sizes: pd.DataFrame, steps: pd.DataFrame) -> float:
    """Return the largest gain that bounds allow over fp32 at the best rate of PyTorch's default library.

    `sizes` are rows of `list_sizes`, and `steps` is the table of the experiment `step`."""
    largest = sizes.nlargest(1, "bounds_allow")
    fp32 = steps[steps["precision"] == "fp32"].merge(largest[list(SAME)])
    return split(fp32)["default_ms"].sum() / largest["bound_ms"].sum()


def list_all(steps: pd.DataFrame) -> pd.DataFrame:
    """Return all steps in narrow types with `fp32_ms`, `narrow_ms` and `speedup`.

    They are of pairs with fp32, whose `range` is told, or, where none ran, of both timed alone."""
    keys = [*SAME, "parameters"]
    fp32 = steps.loc[steps["precision"] == "fp32", [*keys, "total_ms"]].rename(columns={"total_ms": "fp32_ms"})
    rows = steps[(steps["precision"] != "fp32") & (steps["mode"] == "train_step")].merge(fp32, "left", keys)
    is_alone = rows["baseline"] != "fp32"
    ends = rows["lowest_pair"].map("{:.2f} to ".format) + rows["highest_pair"].map("{:.2f}".format)
    rows["narrow_ms"] = rows["total_ms"].where(is_alone, rows["paired_ms"])
    rows["fp32_ms"] = rows["fp32_ms"].where(is_alone, rows["baseline_ms"])
    rows = rows.assign(range=ends.mask(is_alone, "timed alone"), verdict=rows["verdict"].mask(is_alone, ""))
    rows[["speedup_low", "speedup_high"]] = rows[["speedup_low", "speedup_high"]].mask(is_alone)
    rows["speedup"] = rows["speedup"].mask(is_alone, rows["fp32_ms"] / rows["narrow_ms"])
    return rows.dropna(subset="speedup").sort_values(["precision", "context_length", "parameters"])


def gain(row: tuple) -> str:
    """Say how a row of `list_sizes` compares: 1.85× (3 pairs of one process, 1.78 to 1.91)."""
    ends = f"{row.speedup_low:.2f} to {row.speedup_high:.2f}"
    if row.is_open:
        ends = f"{row.pairs:.0f} pairs{' of one process' * (row.paired_rounds == 1)}, {ends}"
    return f"{row.speedup:.2f}× ({ends})"
