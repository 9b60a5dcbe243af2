"""Tabulate what checkpoints save of a step's peak, by formula, for the chapter on several devices."""

import itertools
from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import pandas as pd

from lib.config import SIZES
from lib.cost import memory
from lib.cost.flops import shape_of


def list_peaks(size: str, batch_size: int, lengths: Sequence[int], groups: Sequence[int]) -> pd.DataFrame:
    """Return the GiB that a step on a GPU needs, by tokens of a sequence and precision.

    Columns: `tokens`, `precision`, `forward_gib` (that pass alone), `step_gib`, and `groups_of_1_gib` and so on, with
    checkpoints of groups of so many layers."""
    rows = []
    for length, precision in itertools.product(lengths, ["fp32", "bf16"]):
        terms = [shape_of(replace(SIZES[size], context_length=length), batch_size), precision, "naive", "single_tensor"]
        forward_bytes = memory.peak_bytes(*terms, "no_grad", "cuda")
        step_bytes = [memory.peak_bytes(*terms, "train_step", "cuda", group) for group in (0, *groups)]
        rows.append([length, precision, *np.divide([forward_bytes, *step_bytes], 2**30).round(1)])
    names = [f"groups_of_{group}_gib" for group in groups]
    return pd.DataFrame(rows, columns=["tokens", "precision", "forward_gib", "step_gib", *names])
