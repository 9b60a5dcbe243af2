"""FlashAttention keeps T (4 D + 1) numbers for its backward pass, and its case is one of attention's."""

import pytest
import torch

from lib.cost import memory
from lib.experiments import flash
from plain import measured, one

T, D, H = 48, 16, 3


def case(**changed):
    return one("flash", seq_len=T, d_head=D, num_heads=H, **changed)


def test_it_is_a_case_of_attention_with_inputs_in_the_type_of_the_products():
    assert case().inner == one("attention", seq_len=T, d_head=D, batch_size=H)
    narrow = case(variant="tiled", precision="bf16")
    assert narrow.inner.native
    assert narrow.predicted_bytes() == narrow.inner.predicted_bytes()
    assert narrow.costs() == narrow.inner.costs()
    assert "CUDA" in case(variant="triton").unavailable()


@pytest.mark.parametrize("precision", ["fp32", "bf16"])
@pytest.mark.parametrize("variant", ["naive", "tiled", "sdpa"])
@pytest.mark.usefixtures("own_results", "one_thread")
def test_what_it_saves_is_by_formula_to_the_byte(variant, precision):
    found = measured(case(variant=variant, precision=precision))["metrics"]
    assert found["saved_mib"] == [memory.attention_saved_bytes(variant, H, T, D, True, precision) / 2**20]
    assert found["causal_flops"] == 4 * H * T * (T + 1) // 2 * D


def test_a_tensor_that_is_saved_twice_counts_once():
    x = torch.ones(8, 8, requires_grad=True)
    with flash.saved() as found:
        (x @ x).sum().backward()
    assert found["saved_mib"] == [8 * 8 * 4 / 2**20]
