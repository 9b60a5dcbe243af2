"""The module with projections is right, its memory is counted to the byte, and its facts follow the formulas."""

from dataclasses import replace

import pytest
import torch

from plain import measured, one

MIB = 2**20
SMALL = one("attention_module", d_model=32, num_heads=2)


@pytest.mark.parametrize("precision", ["fp32", "bf16"])
def test_a_module_gives_both_passes_its_memory_and_pairs_with_fp32(precision):
    metrics = measured(replace(SMALL, precision=precision))
    assert len(metrics["forward_ms"]) == len(metrics["backward_ms"]) >= 3
    tables = 2 * 8 * 16 // 2 * 4  # cosine and sine for each position and pair of features
    assert metrics["module_mib"] == [(4 * 4 * 32**2 + tables) / MIB]
    weights, inputs = 4 * 4 * 32**2, 4 * 2 * 8 * 32
    assert metrics["backward_end_mib"][0] * MIB >= 2 * weights + 2 * inputs
    assert ("paired_ms" in metrics) == (precision == "bf16")


def test_the_reference_is_plain_autograd_on_the_whole_batch():
    torch.manual_seed(0)
    expected = SMALL.setup().expected()
    torch.manual_seed(0)  # draws the same weights, input and gradient again
    module = SMALL.module()
    x_BTC = torch.randn(2, 8, 32, requires_grad=True)
    out_BTC = module(x_BTC)
    out_BTC.backward(torch.randn_like(x_BTC))
    torch.testing.assert_close(expected["out"], out_BTC[0].detach())
    torch.testing.assert_close(expected["gradient"], x_BTC.grad[0])
    torch.testing.assert_close(expected["weight_gradient"], module.q_proj.weight.grad)


def test_facts_follow_the_formulas_and_heads_must_divide_the_width():
    facts = SMALL.setup().facts
    assert facts["projection_flops"] == 8 * 16 * 32**2
    assert facts["forward_flops"] == 8 * 16 * 32**2 + 4 * 16 * 8 * 32
    assert facts["forward_bytes"] + facts["backward_bytes"] == 48 * 32**2 + 5 * 4 * 16 * 32
    with pytest.raises(ValueError, match="d_model: got 32, expected a multiple of num_heads 3"):
        replace(SMALL, num_heads=3)
