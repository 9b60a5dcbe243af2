"""Tell by the formula of peak memory which training steps fit this machine and the write-ups' GPUs."""

import bisect
import itertools
import math

import pandas as pd

from lib.config import SIZES
from lib.cost import flops, memory
from lib.report.published import published_table
from lib.report.sentences import NO_DATA, Statement, of_records
from lib.stats import digits

CONTEXTS = (128, 256, 512, 1024)  # the course's context lengths
USABLE = 0.9  # of the memory: a case is tried if its prediction is below that part of what is free
MIB, GIB = 2**20, 2**30


def usable_bytes(records: pd.DataFrame) -> float:
    """Return the bytes of memory that a case may take on the records' machine; NaN without records."""
    if records.empty:
        return math.nan
    environment = records["environment"].iloc[-1]
    return USABLE * environment.get("gpu_memory_mib", environment["memory_mib"]) * MIB


def step_bytes(size: str, context_length: int, device: str = "cpu") -> int:
    """Return the peak of the plain fp32 training step of a size, by formula."""
    return memory.peak_bytes(
        flops.model_shape(size, context_length), "fp32", "naive", "single_tensor", "train_step", device
    )


def table(records: pd.DataFrame) -> pd.DataFrame:
    """Return each size's GiB of a step at `CONTEXTS`, and the most tokens that fit this machine."""
    usable, device = usable_bytes(records), records["device"].iloc[-1] if len(records) else "cpu"
    rows = []
    for size in SIZES if len(records) else ():
        row = {"size": size} | {
            f"{tokens:,} tokens, GiB": step_bytes(size, tokens, device) / GIB for tokens in CONTEXTS
        }
        most = bisect.bisect_right(
            range(1 << 20), usable, lo=1, key=lambda tokens, of=size: step_bytes(of, tokens, device)
        )
        rows.append(row | {"most tokens": most - 1})
    return pd.DataFrame(rows)


def largest(records: pd.DataFrame) -> tuple[str, int] | None:
    """Return the largest size whose step fits, with the longest of `CONTEXTS`; None for none."""
    sizes = table(records)
    fits = [(row["size"], row["most tokens"]) for _, row in sizes.iterrows() if row["most tokens"] >= CONTEXTS[0]]
    return (fits[-1][0], max(tokens for tokens in CONTEXTS if tokens <= fits[-1][1])) if fits else None


@of_records()
def answer(records: pd.DataFrame) -> Statement:
    """State the largest model and context whose training step fits this machine, by formula."""
    found = largest(records)
    if not found:
        return Statement("The memory of this machine is not on record.", NO_DATA, "memory")
    size, tokens = found
    gib, usable = step_bytes(size, tokens) / GIB, usable_bytes(records) / GIB
    text = (
        f"The largest step that fits here is {size} at {tokens:,} tokens, which by the formula needs "
        f"{digits.number(gib)} of the {digits.number(usable)} GiB that a step may use."
    )
    return Statement(text, "derived", f"batch 4, fp32, naive attention; {USABLE:.0%} of the memory is used.")


def predictions(sizes: list[str], contexts: list[int]) -> pd.DataFrame:
    """Predict peaks in GiB on a GPU with naive attention, one column per mode."""
    rows = []
    for size, context_length, precision in itertools.product(sizes, contexts, ("fp32", "bf16")):
        of, ways = flops.model_shape(size, context_length), (precision, "naive", "single_tensor")
        row = {"size": size, "context_length": context_length, "precision": precision}
        for mode in ("no_grad", "forward", "train_step"):
            row[f"{mode}_gib"] = memory.peak_bytes(of, *ways, mode, "cuda") / GIB
        rows.append(row)
    return pd.DataFrame(rows)


def published() -> pd.DataFrame:
    """Return the published peaks in GiB, one row per case."""
    table = published_table("memory").rename(columns={"model": "size", "phase": "mode", "peak_gib": "published_gib"})
    return table.replace({"precision": {"float32": "fp32", "mixed": "bf16"}})


def beside_published() -> pd.DataFrame:
    """Return published peaks and the formula's, also in percent of the GPU's memory."""
    table = published()
    keys = ["size", "context_length", "precision"]
    known = predictions(["xl"], sorted(table["context_length"].unique().tolist())).set_index(keys)
    table["by_formula_gib"] = [known.loc[tuple(row[keys]), f"{row['mode']}_gib"] for _, row in table.iterrows()]
    whole = table["hardware"].str.extract(r"(\d+)GB")[0].astype(float)
    table["published_percent"] = 100 * table["published_gib"] / whole
    return table
