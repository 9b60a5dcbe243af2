"""Split peaks of memory into terms, count what fits, and tabulate what checkpoints save."""

import itertools
from collections.abc import Mapping, Sequence
from dataclasses import replace

import numpy as np
import pandas as pd

from lib.config import SIZES
from lib.cost import flops, memory
from lib.report.table import load

OFFERED = 0.9  # of a memory, as to a case that is measured
PRESETS = ("small", "medium", "large", "xl", "2.7B")
LENGTHS = (128, 256, 512, 1024, 2048)
HOW = {
    "memory": "as a step alone", "step": "as a step alone", "kernels": "under the profiler, which takes memory, too",
    "parallel": "on ranks, which share the memory and hold a baseline's model each",
}  # fmt: skip
# precision, and layers in a checkpointed group
WAYS = {"fp32": ("fp32", 0), "bf16": ("bf16", 0), "bf16, checkpoints": ("bf16", 1)}


def most_sequences(memories: Mapping[str, tuple[float, str]]) -> pd.DataFrame:
    """Return the most sequences of a plain step in nine tenths of a memory, by `lib.cost.memory`.

    `memories` has the bytes and the kind of device, `cpu` or `cuda`, of each. Rows are memories, sizes and ways to
    compute, and each length has a column such as `128 tokens`. It is 0 where one sequence is too many."""
    rows = []
    for (name, (limit_bytes, device)), size, way in itertools.product(memories.items(), PRESETS, WAYS):
        models = [replace(SIZES[size], context_length=length) for length in LENGTHS]
        counts = [memory.largest_batch(model, OFFERED * limit_bytes, *WAYS[way], device) for model in models]
        rows.append([name, size, way, *counts])
    return pd.DataFrame(rows, columns=["memory", "size", "arithmetic", *(f"{length:,} tokens" for length in LENGTHS)])


def list_runs(machine: str) -> pd.DataFrame:
    """Return all training steps of a machine, with their `run`, xl at 4 × 128, and `how` they ran."""
    runs = pd.concat([load(name, machine).assign(how=how) for name, how in HOW.items()], ignore_index=True)
    runs = runs[["size", "batch_size", "context_length", "status", "peak_mib", "how"]]
    batch = runs["batch_size"].astype(str) + " × " + runs["context_length"].astype(str)
    return runs.assign(run=runs["size"] + " at " + batch)


def split_peaks(step: pd.DataFrame) -> pd.DataFrame:
    """Return the terms of the formula at each peak of one step, in MiB, their sum, and what was measured.

    `step` is a row of the plain table of memory, or none."""
    terms = pd.DataFrame()
    for row in step.itertuples():
        shape = flops.shape_of(replace(SIZES[row.size], context_length=row.context_length), row.batch_size)
        traits = [row.precision, row.attention, row.optimizer, row.mode, row.device, row.checkpoint]
        terms = pd.DataFrame(memory.peak_terms(shape, *traits)).add_suffix("_peak_mib") / 2**20
        terms.loc["sum, by formula"] = terms.sum()
        terms.loc["measured"] = step.iloc[0][terms.columns].astype(float)
    return terms.reset_index(names="term")


def list_peaks(size: str, batch_size: int, lengths: Sequence[int], groups: Sequence[int]) -> pd.DataFrame:
    """Return the GiB that a step on a GPU needs, by tokens of a sequence and precision.

    Columns: `tokens`, `precision`, `forward_gib` (that pass alone), `step_gib`, and `groups_of_1_gib` and so on, with
    checkpoints of groups of so many layers."""
    rows = []
    for length, precision in itertools.product(lengths, ["fp32", "bf16"]):
        terms = [
            flops.shape_of(replace(SIZES[size], context_length=length), batch_size),
            precision,
            "naive",
            "single_tensor",
        ]
        forward_bytes = memory.peak_bytes(*terms, "no_grad", "cuda")
        step_bytes = [memory.peak_bytes(*terms, "train_step", "cuda", group) for group in (0, *groups)]
        rows.append([length, precision, *np.divide([forward_bytes, *step_bytes], 2**30).round(1)])
    names = [f"groups_of_{group}_gib" for group in groups]
    return pd.DataFrame(rows, columns=["tokens", "precision", "forward_gib", "step_gib", *names])


def recomputing_times(step: tuple) -> float:
    """Return how many times the FLOPs of a step are if it computes all its layers again, but not the head."""
    shape = flops.shape_of(replace(SIZES[step.size], context_length=step.context_length), step.batch_size)
    head_flops = 2 * shape.tokens * SIZES[step.size].vocab_size * SIZES[step.size].d_model
    return 1 + (1 - head_flops / flops.forward_flops(shape)) / 3


def block_gradients_mib(size: str, gradients_mib: float) -> float:
    """Return a block's share of a model's gradients, all but those of embedding, head and last norm."""
    config = SIZES[size]
    outside = 4 * (2 * config.vocab_size + 1) * config.d_model / 2**20
    return (gradients_mib - outside) / config.num_layers
