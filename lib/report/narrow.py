"""Compare training steps in narrow types with the same steps in fp32, for the chapter `precision`."""

import pandas as pd

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
    """Return the rows of `compare` in one type and at one number of tokens: where most sizes ran, of several the most.

    Where an interval decides nothing, or there is one process, the ends of `speedup` are those of single pairs, and
    `is_open` is true."""
    count = compared.groupby(["precision", "context_length"])["size"].transform("count")
    most = compared.assign(count=count).sort_values(["count", "context_length"]).tail(1)
    sizes = compared.merge(most[["precision", "context_length", "batch_size"]])
    is_open = (sizes["verdict"] == "unclear") | (sizes["paired_rounds"] < 2)
    low = sizes["speedup_low"].mask(is_open, sizes["lowest_pair"])
    high = sizes["speedup_high"].mask(is_open, sizes["highest_pair"])
    return sizes.assign(speedup_low=low, speedup_high=high, is_open=is_open)


def gain(row: tuple) -> str:
    """Say how a row of `list_sizes` compares: 1.85× (3 pairs of one process, 1.78 to 1.91)."""
    ends = f"{row.speedup_low:.2f} to {row.speedup_high:.2f}"
    if row.is_open:
        ends = f"{row.pairs:.0f} pairs{' of one process' * (row.paired_rounds == 1)}, {ends}"
    return f"{row.speedup:.2f}× ({ends})"
