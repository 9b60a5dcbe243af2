"""Peaks by formula are those of `lib.cost.memory`."""

from dataclasses import replace

import pytest

from lib.config import SIZES
from lib.cost import memory
from lib.cost.flops import shape_of
from lib.report.checkpoints import list_peaks


def test_each_row_has_the_peaks_of_its_length_and_precision():
    peaks = list_peaks("small", 2, [64, 128], groups=[3])
    assert peaks[["tokens", "precision"]].to_numpy().tolist() == [
        [64, "fp32"],
        [64, "bf16"],
        [128, "fp32"],
        [128, "bf16"],
    ]
    shape = shape_of(replace(SIZES["small"], context_length=128), 2)
    terms = [shape, "bf16", "naive", "single_tensor"]
    assert peaks["step_gib"].iloc[-1] == pytest.approx(
        memory.peak_bytes(*terms, "train_step", "cuda") / 2**30, abs=0.06
    )
    of_3 = memory.peak_bytes(*terms, "train_step", "cuda", 3) / 2**30
    assert peaks["groups_of_3_gib"].iloc[-1] == pytest.approx(of_3, abs=0.06)
