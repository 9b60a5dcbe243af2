"""Every variant of attention is the formula, forward and backward, or is refused with the reason."""

import pytest
import torch
from torch.nn.attention import SDPBackend

from flash_checks import check, draw, expected
from lib import attention
from lib.attention import VARIANTS, tiled
from lib.catalog import CATALOG
from lib.instruments import environment

COMPILING = [name for name, variant in CATALOG["attention"].variants.items() if variant.compiles]
EAGER = [name for name in VARIANTS if name not in COMPILING and not attention.unavailable(name, "cpu", 64, "fp32")]
KERNELS = {
    "sdpa_flash": SDPBackend.FLASH_ATTENTION, "sdpa_efficient": SDPBackend.EFFICIENT_ATTENTION,
    "sdpa_cudnn": SDPBackend.CUDNN_ATTENTION,
}  # fmt: skip
pytestmark = pytest.mark.usefixtures("forget_graphs")
needs_compiler = pytest.mark.skipif(environment.compiler_missing("cpu") is not None, reason="no C++ compiler")


def results(variant, inputs, dout, *causal):
    """The output and the gradients of queries, keys and values; it is causal if nothing is said."""
    out = VARIANTS[variant](*inputs, *causal)
    return out.detach(), *torch.autograd.grad(out, inputs, dout)


def formula(inputs, dout, *causal):
    out, _, *gradients = expected(inputs, dout, *causal)
    return out, *gradients


@pytest.mark.parametrize("causal", [True, False])
@pytest.mark.parametrize(
    ("leading", "queries", "keys", "d_head"),
    [
        ((2, 1), 129, 129, 16), ((), 1, 1, 1), ((2,), 5, 300, 8), ((2,), 140, 129, 8),
    ],
)  # fmt: skip
@pytest.mark.parametrize("variant", EAGER)
def test_a_variant_is_the_formula_for_as_many_keys_as_queries_or_not(variant, leading, queries, keys, d_head, causal):
    drawn = draw(queries, keys, d_head, leading=leading)
    check(results(variant, *drawn, causal), formula(*drawn, causal))


@needs_compiler
def test_the_compiled_variant_is_the_formula_and_causal_is_the_default():
    drawn = draw(37, 37, 8, leading=(2, 3))
    check(results("compiled", *drawn), formula(*drawn))


@pytest.mark.parametrize("causal", [True, False])
@pytest.mark.parametrize("variant", EAGER)
def test_large_scores_do_not_overflow(variant, causal):
    # whole multiples of 100, and sqrt(D) = 4: all scores are exact in fp32
    generator = torch.Generator().manual_seed(0)
    q, k = (100.0 * torch.randint(-2, 3, (2, 2, 150, 16), generator=generator) for _ in range(2))
    v, dout = (torch.randn(2, 2, 150, 16, generator=generator) for _ in range(2))
    highest = (q @ k.mT / 4).max().item()
    assert highest > 89  # e to that is beyond fp32
    drawn = [x.requires_grad_() for x in (q, k, v)], dout
    (out, *gradients), (right, *wanted) = results(variant, *drawn, causal), formula(*drawn, causal)
    check([out], [right])
    # flash attention keeps the log-sum-exp only, and its rounding is the relative error of the weights it recomputes
    check(gradients, wanted, torch.finfo(torch.float32).eps * highest)


@pytest.mark.parametrize("variant", ["tiled", "flash_compiled"])
def test_what_is_our_own_follows_autocast_forward_and_backward(monkeypatch, variant):
    monkeypatch.setattr(attention.blocks, "_compile", lambda function: function)
    inputs, dout = draw(40, 40, 16, leading=(2, 3))
    with torch.autocast("cpu", torch.bfloat16):
        out = VARIANTS[variant](*inputs)
    results = out.detach(), *torch.autograd.grad(out, inputs, dout.bfloat16())
    assert [x.dtype for x in results] == [torch.bfloat16, *[torch.float32] * 3]
    check(results, formula(inputs, dout), 5e-2)


def test_tiled_sums_narrow_values_in_fp32():
    # equal keys, of which half have the value one: sums kept in bf16 would stop growing at 256, and their ratio be one
    q, k = torch.zeros(1, 8, dtype=torch.bfloat16), torch.zeros(1000, 8, dtype=torch.bfloat16)
    v = (torch.arange(1000) < 500).bfloat16()[:, None].expand(1000, 8)
    assert torch.equal(tiled(q, k, v, causal=False, block=1), torch.full_like(q, 0.5))


@pytest.mark.parametrize(
    ("variants", "device", "d_head", "precision", "reason"),
    [
        ("naive tiled sdpa sdpa_flash compiled flash_compiled", "cpu", 4, "fp32", None),
        ("sdpa_efficient sdpa_cudnn triton", "cpu", 64, "bf16", "{variant} is for CUDA"),
        ("sdpa_flash", "mps", 64, "bf16", "{variant} is for CPUs and CUDA"),
        ("sdpa_flash sdpa_cudnn", "cuda", 64, "fp32", "{variant} needs bf16 or fp16 on CUDA, got fp32"),
        ("sdpa_flash sdpa_efficient sdpa_cudnn triton", "cuda", 64, "bf16", None),
        ("triton", "cuda", 256, "bf16", "triton has tiles for heads of at most 128 features, got 256"),
        ("triton", "old cuda", 64, "bf16", "triton needs compute capability 8.0 or more, got 7.5"),
    ],
)
def test_a_variant_is_refused_where_it_cannot_run_with_the_reason(
    monkeypatch, variants, device, d_head, precision, reason
):
    monkeypatch.setattr(attention.tiles.importlib.util, "find_spec", lambda name: object())
    capability = {"cuda": (9, 0), "old cuda": (7, 5)}.get(device)
    for variant in variants.split():
        refusal = attention.unavailable(variant, device.split()[-1], d_head, precision, capability)
        assert refusal == (reason and reason.format(variant=variant))


@pytest.mark.parametrize("variant", KERNELS)
def test_a_variant_of_sdpa_allows_its_own_kernel_and_no_other(monkeypatch, variant):
    allowed = []

    def attend(q, *_, **__):
        allowed.extend(torch.nn.attention._cur_sdpa_kernel_backends())
        return q

    monkeypatch.setattr(torch.nn.functional, "scaled_dot_product_attention", attend)
    VARIANTS[variant](*draw(5, 5, 8)[0])
    assert allowed == [KERNELS[variant]]
