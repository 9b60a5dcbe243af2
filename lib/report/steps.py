"""Split a training step into its parts, and compare steps of several sizes of model."""

import math
from collections.abc import Sequence

import numpy as np
import pandas as pd

from lib.config import MODES, SIZES
from lib.cost import flops
from lib.report import bounds
from lib.stats import digits

PLAIN = {
    "mode": "train_step", "compiled": False, "attention": "naive", "optimizer": "single_tensor", "precision": "fp32",
}  # fmt: skip
# a parameter's bytes that an eager optimizer moves; fused and compiled ones move 28
BYTES_EACH = {"single_tensor": 104, "foreach": 96}
SHAPE = ["precision", "parameters", "size", "batch_size", "context_length"]
USUAL = PLAIN | {"size": "small", "batch_size": 4}


def describe(table: pd.DataFrame) -> pd.DataFrame:
    """Return rows of the plain table with what a sentence says of a step.

    - `tokens_a_second`; `over_bound` with its ends, the time over its bound.
    - `batch × tokens`; `variant`, its precision and what is not plain in it.
    - `subject`: small (129 M parameters, 4 × 128 tokens, fp32)."""
    variant = table["precision"]
    for field, value in PLAIN.items():
        if field != "precision":
            words = ", " + table[field].astype(str).replace("True", field)
            variant = variant + words.where(table[field] != value, "")
    batch = table["batch_size"].astype(str) + " × " + table["context_length"].astype(str)
    millions = (table["parameters"] / 1e6).map("{:,.0f} M parameters, ".format)
    return table.assign(
        variant=variant,
        tokens_a_second=1e3 * table["tokens"] / table["total_ms"],
        over_bound=100 / table["bound_percent"],
        over_bound_low=100 / table["bound_percent_high"],
        over_bound_high=100 / table["bound_percent_low"],
        subject=table["size"] + " (" + millions + batch + " tokens, " + variant + ")",
        **{"batch × tokens": batch},
    )


def choose(table: pd.DataFrame) -> pd.DataFrame:
    """Return the step that is told: the most usual one, at the length at which most was measured."""
    likeness = (table[list(USUAL)] == pd.Series(USUAL)).sum(axis="columns")
    neighbours = table.groupby(["size", "context_length"])["total_ms"].transform("count")
    ranked = table.assign(likeness=likeness, neighbours=neighbours)[table["total_ms"].notna()]
    return ranked.nlargest(1, ["likeness", "neighbours", "parameters"])


def split(step: pd.DataFrame) -> pd.DataFrame:
    """Return the parts of a step, which is one row of the plain table.

    - `part`, `time_ms` with its ends, `share_percent`.
    - `products_ms`, `memory_ms`: the FLOPs and the bytes at the best rates. The larger one is the part's bound.
    - `usual_ms`, of the optimizer: all bytes that it moves, at the usual rate of memory.
    - `best_tflops`: the best rate of products.
    - `default_tflops`: that of PyTorch's default library for fp32. Another one may be meant by `bf16_products`, and
      round nothing. `default_ms` is the part's bound by this rate."""
    parts = pd.DataFrame({"part": MODES["train_step"]})
    for name in ["time_ms", "time_ms_low", "time_ms_high", "flops", "bytes"]:
        parts[name] = step.reindex(columns=parts["part"] + "_" + name.removeprefix("time_")).mean().to_numpy()
    parts = parts.dropna(subset="time_ms")
    # the optimizer multiplies no matrices, and has no FLOPs here
    part_flops = parts["flops"].fillna(0)
    ceilings = bounds.load_ceilings(next(iter(step["machine"]), "")).merge(step[["device"]])
    products, memory = bounds.best_rates(ceilings)
    default, _ = bounds.best_rates(ceilings[ceilings["precision"] == "fp32"])
    best = products[products.index.isin(step["precision"], level=1)].max()
    memory_ms = 1e3 * parts["bytes"] / memory.max()
    moved_bytes = step["parameters"].sum() * step["optimizer"].astype(object).map(BYTES_EACH).fillna(28).sum()
    return parts.assign(
        share_percent=100 * parts["time_ms"] / parts["time_ms"].sum(),
        products_ms=1e3 * part_flops / best,
        memory_ms=memory_ms,
        usual_ms=np.where(parts["part"] == "optimizer", 1e3 * moved_bytes / bounds.usual_rates(ceilings).max(), np.nan),
        best_tflops=best / 1e12,
        default_tflops=default.max() / 1e12,
        default_ms=(1e3 * part_flops / default.max()).clip(lower=memory_ms),
    )


def tell_library(step: pd.DataFrame) -> str:
    """Say what a step's products lose by the choice of library, or return an empty text."""
    parts = split(step)
    lost_ms = (parts["default_ms"] - parts[["products_ms", "memory_ms"]].max(axis="columns")).sum()
    if set(step["precision"]) != {"fp32"} or not lost_ms > 0.03 * parts["time_ms"].sum():
        return ""
    line = '`torch.set_float32_matmul_precision("medium")` calls a faster library'
    return (
        f" In fp32 {line}: at the best rates it saves {lost_ms:,.0f} ms; [What to switch on](#ladder) gives the gain."
    )


def list_sizes(table: pd.DataFrame) -> pd.DataFrame:
    """Return the shape of each size of model in a table, with its `parameters`."""
    shapes = pd.DataFrame(list(SIZES.values())).assign(size=list(SIZES))
    shapes["parameters"] = [flops.shape_of(config, 1).parameters for config in SIZES.values()]
    columns = ["size", "parameters", "num_layers", "d_model", "d_ff", "num_heads", "vocab_size"]
    return table.drop_duplicates("size")[["size"]].merge(shapes)[columns]


def list_deviations(records: pd.DataFrame) -> pd.DataFrame:
    """Return mean and standard deviation of the times of each plain step's parts, in one process.

    Cells read 11.4 ± 0.7; a part that did not run is none. Of several processes it is the one whose forward pass is
    nearest to the median of all, then the one of most `samples`, and then the fastest. `largest_percent` is the largest
    deviation of a part, and the last column is the quotient of two means. Records of other machines than that of the
    first are left out."""
    parts = [f"{part}_ms" for part in MODES["train_step"]]
    is_plain = records["mode"].isin(["train_step", "forward_backward"])
    for field in ("compiled", "attention", "optimizer"):
        is_plain &= records[field] == PLAIN[field]
    is_here = records["machine"] == next(iter(records["machine"]), "")
    runs = records[is_plain & is_here & (records["status"] == "ok")].reindex(columns=[*SHAPE, *parts])
    runs = runs.dropna(subset=parts[:2])
    medians = runs["forward_ms"].map(np.median).astype(float)
    off = (medians - medians.groupby([runs[name] for name in SHAPE]).transform("median")).abs()
    runs = runs.assign(samples=runs["forward_ms"].map(len).astype(int), off=-off, early=-medians)
    # a whole step goes before passes alone
    runs["is_whole"] = runs["optimizer_ms"].notna()
    runs = runs.sort_values([*SHAPE, "is_whole", "off", "samples", "early"]).drop_duplicates(SHAPE, keep="last")
    for part in parts:
        spreads = runs[part].map(_tell_spread, na_action="ignore").astype(object).fillna("none")
        runs[part.removesuffix("_ms")] = spreads.where(runs["samples"] > 1, "")
    runs["batch × tokens"] = runs["batch_size"].astype(str) + " × " + runs["context_length"].astype(str)
    relative = runs[parts].map(lambda times: 100 * np.std(times, ddof=1) / np.mean(times), na_action="ignore")
    runs["largest_percent"] = relative.astype(float).max(axis="columns")
    both_ms = [runs[name].map(np.mean).astype(float) for name in ("backward_ms", "forward_ms")]
    runs["backward over forward"] = both_ms[0] / both_ms[1]
    about = ["size", "batch × tokens", "precision", "samples", "largest_percent"]
    return runs[[*about, *MODES["train_step"], "backward over forward"]]


def _tell_spread(times: Sequence[float]) -> str:
    """Return mean and standard deviation with the last digit of the deviation's two: 1,610 ± 290."""
    mean, deviation = np.mean(times), np.std(times, ddof=1)
    place = digits.last_place(deviation or mean, math.nan) + 1
    return f"{digits.rounded(mean, place)} ± {digits.rounded(deviation, place)}"
