"""Tell by the formula of peak memory which training steps fit this machine and the write-ups' GPUs."""

import bisect
import itertools
import math
from collections.abc import Callable, Mapping
from functools import partial

import pandas as pd

from lib.config import SIZES
from lib.cost import flops, memory
from lib.report import sentences
from lib.report.published import published_table
from lib.report.sentences import Statement, of_records
from lib.stats import digits

CONTEXTS = (128, 256, 512, 1024)  # the course's context lengths
USABLE = 0.9  # of the memory: a case is tried if its prediction is below that part of what is free
MODES = ("no_grad", "forward", "train_step")
MIB, GIB = 2**20, 2**30


def memory_bytes(environment: Mapping) -> int:
    """Return the bytes of memory of the GPU of a record's environment, or else of its machine."""
    return environment.get("gpu_memory_mib", environment["memory_mib"]) * MIB


def usable_bytes(records: pd.DataFrame) -> float:
    """Return the bytes of memory that a case may take on the records' machine; NaN without records."""
    return USABLE * memory_bytes(records["environment"].iloc[-1]) if len(records) else math.nan


def step_bytes(
    size: str, context_length: int, device: str = "cpu", precision: str = "fp32", mode: str = "train_step"
) -> int:
    """Return the peak of a size's plain training step, or of another mode of it, by formula."""
    shape = flops.model_shape(size, context_length)
    return memory.peak_bytes(shape, precision, "naive", "single_tensor", mode, device)


def most_tokens(limit_bytes: float, needed_bytes: Callable[[int], float]) -> int:
    """Return the most tokens that need no more than the limit; 0 where one does not fit."""
    return bisect.bisect_right(range(1 << 24), limit_bytes, lo=1, key=needed_bytes) - 1


def table(records: pd.DataFrame) -> pd.DataFrame:
    """Return each size's GiB of a step at `CONTEXTS`, and the most tokens that fit this machine."""
    usable, rows = usable_bytes(records), []
    for size in SIZES if len(records) else ():
        needed = partial(step_bytes, size, device=records["device"].iloc[-1])
        gib = {f"{tokens:,} tokens, GiB": needed(tokens) / GIB for tokens in CONTEXTS}
        rows.append({"size": size} | gib | {"most tokens": most_tokens(usable, needed)})
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
        return sentences.missing("The memory of this machine is not on record.")
    size, tokens = found
    gib, usable = step_bytes(size, tokens) / GIB, usable_bytes(records) / GIB
    text = (
        f"The largest step that fits here is {size} at {tokens:,} tokens, which by the formula needs "
        f"{digits.number(gib)} of the {digits.number(usable)} GiB that a step may use."
    )
    return Statement(text, "derived", f"batch 4, fp32, naive attention; {USABLE:.0%} of the memory is used.")


def predictions(sizes: list[str], contexts: list[int]) -> pd.DataFrame:
    """Predict peaks in GiB on a GPU with naive attention, one column per mode."""
    return pd.DataFrame([
        {"size": size, "context_length": tokens, "precision": precision}
        | {f"{mode}_gib": step_bytes(size, tokens, "cuda", precision, mode) / GIB for mode in MODES}
        for size, tokens, precision in itertools.product(sizes, contexts, ("fp32", "bf16"))
    ])  # fmt: skip


def published() -> pd.DataFrame:
    """Return the published peaks in GiB, one row per case."""
    table = published_table("memory").rename(columns={"model": "size", "phase": "mode", "peak_gib": "published_gib"})
    return table.replace({"precision": {"float32": "fp32", "mixed": "bf16"}})


def beside_published() -> pd.DataFrame:
    """Return published peaks and the formula's, also in percent of the GPU's memory."""
    table = published()
    cases = table[["size", "context_length", "precision", "mode"]].itertuples(index=False)
    table["by_formula_gib"] = [step_bytes(*at, "cuda", precision, mode) / GIB for *at, precision, mode in cases]
    whole = table["hardware"].str.extract(r"(\d+)GB")[0].astype(float)
    return table.assign(published_percent=100 * table["published_gib"] / whole)
