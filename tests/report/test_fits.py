"""What fits is by the formula of a step, and a block's gradients are those of its weights."""

from dataclasses import replace
from types import SimpleNamespace

import pytest

from lib.config import SIZES
from lib.cost import flops, memory
from lib.report import fits


def test_one_sequence_more_than_the_most_does_not_fit():
    limit_bytes = 4 * 2**30
    most = fits.most_sequences({"4 GiB": (limit_bytes / fits.OFFERED, "cpu")}).set_index(["size", "arithmetic"])
    count = int(most.loc[("small", "bf16"), "128 tokens"])
    config = replace(SIZES["small"], context_length=128)

    def peak(batch_size):
        shape = flops.shape_of(config, batch_size)
        return memory.peak_bytes(shape, "bf16", "naive", "single_tensor", "train_step", "cpu", 0)

    assert peak(count) <= limit_bytes < peak(count + 1)
    assert most.loc[("xl", "fp32"), "128 tokens"] == 0


def test_gradients_of_blocks_are_those_of_their_weights():
    config = SIZES["small"]
    parameters = flops.shape_of(config, 1).parameters
    weights = 4 * config.d_model**2 + 3 * config.d_model * config.d_ff + 2 * config.d_model
    assert fits.block_gradients_mib("small", 4 * parameters / 2**20) == pytest.approx(4 * weights / 2**20)


def test_each_row_has_the_peaks_of_its_length_and_precision():
    peaks = fits.list_peaks("small", 2, [64, 128], groups=[3])
    assert list(zip(peaks["tokens"], peaks["precision"], strict=True)) == [
        (64, "fp32"), (64, "bf16"), (128, "fp32"), (128, "bf16"),
    ]  # fmt: skip
    shape = flops.shape_of(replace(SIZES["small"], context_length=128), 2)
    of_3 = memory.peak_bytes(shape, "bf16", "naive", "single_tensor", "train_step", "cuda", 3) / 2**30
    assert peaks["groups_of_3_gib"].iloc[-1] == pytest.approx(of_3, abs=0.06)


def test_what_is_computed_again_is_all_but_the_head():
    # a layer of small has 16 d² weights and 4 T d FLOPs a token in attention; its head has 10,000 d weights
    step = SimpleNamespace(size="small", context_length=128, batch_size=4)
    layers, head = 12 * (32 * 768**2 + 4 * 128 * 768), 2 * 10_000 * 768
    assert fits.recomputing_times(step) == pytest.approx(1 + layers / (layers + head) / 3)
