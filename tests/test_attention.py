"""Every variant of attention is the formula, forward and backward, and the tiled one never holds all scores."""

import functools
import math
from unittest.mock import Mock

import pytest
import torch
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.nn.attention.flex_attention import flex_attention
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from lib import attention
from lib.attention import COMPILING, VARIANTS, naive, tiled
from lib.instruments import device, environment

EAGER = [name for name in VARIANTS if name not in COMPILING and not attention.unavailable(name, "cpu", 64, "fp32")]
KERNELS = {"sdpa_flash": "flash", "sdpa_efficient": "efficient", "sdpa_cudnn": "cudnn"}
pytestmark = pytest.mark.usefixtures("forget_graphs")
needs_compiler = pytest.mark.skipif(environment.compiler_missing("cpu") is not None, reason="no C++ compiler")


def draw(leading, queries, keys, d_head, dtype=torch.float32):
    """Queries, keys, values and the gradient of the output."""
    generator = torch.Generator().manual_seed(queries + keys)
    lengths = (queries, keys, keys, queries)
    q, k, v, dout = (torch.randn(*leading, n, d_head, generator=generator, dtype=dtype) for n in lengths)
    return q.requires_grad_(), k.requires_grad_(), v.requires_grad_(), dout


def formula(q, k, v, causal=True):
    """exp(s - log sum exp s) v with s = q . k / sqrt(D), where query t sees keys 0 to t."""
    scores = torch.einsum("...td,...sd->...ts", q, k) / math.sqrt(q.shape[-1])
    if causal:
        t, s = torch.arange(q.shape[-2])[:, None], torch.arange(k.shape[-2])
        scores = torch.where(s <= t, scores, -torch.inf)
    return torch.einsum("...ts,...sd->...td", torch.exp(scores - torch.logsumexp(scores, -1, keepdim=True)), v)


def with_gradients(attend, q, k, v, dout):
    """The output and the gradients of queries, keys and values, in double precision."""
    out = attend(q, k, v)
    return [x.double() for x in (out.detach(), *torch.autograd.grad(out, (q, k, v), dout))]


def check(variant, inputs, *causal):
    """Compare a variant with the formula in double precision; it is causal if nothing is said."""
    attend = functools.partial(tiled, block=4) if variant == "tiled of 4" else VARIANTS[variant]
    found = with_gradients(lambda q, k, v: attend(q, k, v, *causal), *inputs)
    doubles = [x.detach().double().requires_grad_() for x in inputs]
    expected = with_gradients(lambda q, k, v: formula(q, k, v, *causal), *doubles)
    torch.testing.assert_close(found, expected, atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("causal", [True, False])
@pytest.mark.parametrize(
    ("leading", "queries", "keys", "d_head"),
    [
        ((2, 3), 37, 37, 8), ((2, 1), 129, 129, 16), ((2,), 129, 129, 6), ((), 300, 300, 4), ((2, 1, 3), 5, 5, 6),
        ((2, 2), 1, 1, 8), ((), 1, 1, 1), ((2,), 5, 300, 8), ((2,), 300, 5, 8), ((2,), 1, 37, 8), ((2,), 140, 129, 8),
    ],
)  # fmt: skip
@pytest.mark.parametrize("variant", [*EAGER, "tiled of 4"])
def test_a_variant_is_the_formula_for_as_many_keys_as_queries_or_not(variant, leading, queries, keys, d_head, causal):
    check(variant, draw(leading, queries, keys, d_head), causal)


@needs_compiler
def test_the_compiled_variant_is_the_formula_and_causal_is_the_default():
    check("compiled", draw((2, 3), 37, 37, 8))


@pytest.mark.parametrize("causal", [True, False])
@pytest.mark.parametrize("variant", EAGER)
def test_large_scores_do_not_overflow(variant, causal):
    # whole multiples of 100, and sqrt(D) = 4: all scores are exact in fp32
    generator = torch.Generator().manual_seed(0)
    q, k = (100.0 * torch.randint(-2, 3, (2, 2, 150, 16), generator=generator) for _ in range(2))
    v, dout = (torch.randn(2, 2, 150, 16, generator=generator) for _ in range(2))
    highest = (q @ k.mT / 4).max().item()
    assert highest > 89  # e to that is beyond fp32
    inputs = [q.requires_grad_(), k.requires_grad_(), v.requires_grad_(), dout]
    out, *gradients = with_gradients(lambda q, k, v: VARIANTS[variant](q, k, v, causal=causal), *inputs)
    doubles = [x.detach().double().requires_grad_() for x in inputs]
    expected, *wanted = with_gradients(lambda q, k, v: formula(q, k, v, causal), *doubles)
    torch.testing.assert_close(out, expected, atol=1e-5, rtol=1e-5)
    # flash attention keeps the log-sum-exp only, and its rounding is the relative error of the weights it recomputes
    rounding = torch.finfo(torch.float32).eps * highest
    for gradient, right in zip(gradients, wanted, strict=True):
        torch.testing.assert_close(gradient, right, atol=rounding * right.abs().max().item(), rtol=0)


class Largest(TorchDispatchMode):
    """Remembers the elements of the largest tensor that any operation inside gives."""

    def __init__(self):
        super().__init__()
        self.elements = 0

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        result = function(*args, **(kwargs or {}))
        sizes = [leaf.numel() for leaf in tree_leaves(result) if isinstance(leaf, torch.Tensor)]
        self.elements = max([self.elements, *sizes])
        return result


def largest(attend, inputs):
    """Elements of the largest tensor of the forward and of the backward pass."""
    with Largest() as forward:
        out = attend(*inputs[:3])
    with Largest() as backward:
        torch.autograd.grad(out, inputs[:3], inputs[3])
    return forward.elements, backward.elements


@pytest.mark.parametrize("causal", [True, False])
def test_tiled_holds_no_more_than_a_block_of_scores_a_query(causal):
    heads, length, block = 3, 512, 16
    inputs = draw((heads,), length, length, 8)
    assert largest(lambda q, k, v: tiled(q, k, v, causal, block), inputs) == (heads * length * block,) * 2
    assert largest(lambda q, k, v: naive(q, k, v, causal), inputs) == (heads * length * length,) * 2


@pytest.mark.parametrize("variant", ["tiled", pytest.param("flash_compiled", marks=needs_compiler)])
def test_what_is_our_own_follows_autocast_forward_and_backward(variant):
    q, k, v, dout = draw((2, 3), 40, 40, 16)
    with torch.autocast("cpu", torch.bfloat16):
        out = VARIANTS[variant](q, k, v)
    gradients = torch.autograd.grad(out, (q, k, v), dout.bfloat16())
    assert [x.dtype for x in (out, *gradients)] == [torch.bfloat16, *[torch.float32] * 3]
    expected = with_gradients(formula, q, k, v, dout)
    torch.testing.assert_close([x.double() for x in (out, *gradients)], expected, atol=5e-2, rtol=2e-2)


def test_tiled_sums_narrow_values_in_fp32():
    # equal keys, of which half have the value one: sums kept in bf16 would stop growing at 256, and their ratio be one
    q, k = torch.zeros(1, 8, dtype=torch.bfloat16), torch.zeros(1000, 8, dtype=torch.bfloat16)
    v = (torch.arange(1000) < 500).bfloat16()[:, None].expand(1000, 8)
    assert torch.equal(tiled(q, k, v, causal=False, block=1), torch.full_like(q, 0.5))


@pytest.mark.filterwarnings("ignore:flex_attention called without torch.compile")
@pytest.mark.parametrize(
    ("leading", "queries", "keys", "causal"),
    [((2, 3), 140, 129, True), ((2,), 5, 300, False)],  # three dimensions, as the experiment has them
)
def test_flex_is_the_formula_as_far_as_a_cpu_can_tell_and_follows_autocast(monkeypatch, leading, queries, keys, causal):
    # the same function without its compiler, and forward only, which is what it offers there
    monkeypatch.setattr(attention, "_compiled_flex", lambda: flex_attention)
    q, k, v, _ = (x.detach() for x in draw(leading, queries, keys, 16))
    torch.testing.assert_close(VARIANTS["flex"](q, k, v, causal), formula(q, k, v, causal), atol=1e-5, rtol=1e-5)
    if not causal:
        with torch.autocast("cpu", torch.bfloat16):
            assert VARIANTS["flex"](q, k, v, causal).dtype == torch.bfloat16


def test_flex_is_refused_where_it_has_no_backward_pass_or_too_small_heads_and_nothing_else_is():
    assert "CUDA" in attention.unavailable("flex", "cpu", 64, "fp32")
    assert "CUDA" in attention.unavailable("flex", "mps", 64, "fp32")
    assert "16 features" in attention.unavailable("flex", "cuda", 8, "fp32")
    assert attention.unavailable("flex", "cuda", 16, "fp32") is None
    others = set(VARIANTS) - {"flex", "triton", *KERNELS}
    assert not [name for name in others if attention.unavailable(name, "cpu", 4, "fp32")]


def test_our_kernels_are_refused_where_they_cannot_run(monkeypatch):
    monkeypatch.setattr(attention.tiles.importlib.util, "find_spec", lambda name: object())
    assert attention.unavailable("triton", "cpu", 64, "fp32") == "triton is for CUDA"
    assert "got 7.5" in attention.unavailable("triton", "cuda", 64, "fp32", (7, 5))
    assert attention.unavailable("triton", "cuda", 64, "fp32", (8, 0)) is None
    assert device.on("cpu").capability() is None


def test_a_kernel_of_sdpa_is_refused_where_pytorch_has_none():
    found = {
        (device, precision): {name for name in KERNELS if not attention.unavailable(name, device, 64, precision)}
        for device in ("cpu", "cuda", "mps")
        for precision in ("fp32", "tf32", "bf16", "fp16")
    }
    wide, narrow = ("fp32", "tf32"), ("bf16", "fp16")
    assert all(found["cpu", precision] == {"sdpa_flash"} for precision in (*wide, *narrow))
    assert all(found["mps", precision] == set() for precision in (*wide, *narrow))
    assert all(found["cuda", precision] == {"sdpa_efficient"} for precision in wide)
    assert all(found["cuda", precision] == set(KERNELS) for precision in narrow)
    assert attention.unavailable("sdpa_cudnn", "cuda", 64, "fp32") == "sdpa_cudnn needs bf16 or fp16 on CUDA, got fp32"


@pytest.mark.parametrize("variant", KERNELS)
def test_a_variant_of_sdpa_allows_its_own_kernel_and_no_other(monkeypatch, variant):
    """PyTorch's switches are global, so the call sees which are on, also of kernels that a CPU lacks."""
    on, cuda = [], torch.backends.cuda
    asked = {
        "flash": cuda.flash_sdp_enabled, "efficient": cuda.mem_efficient_sdp_enabled,
        "cudnn": cuda.cudnn_sdp_enabled, "math": cuda.math_sdp_enabled,
    }  # fmt: skip
    monkeypatch.setattr(attention, "sdpa", lambda *_: on.extend(name for name, enabled in asked.items() if enabled()))
    VARIANTS[variant](*(x.detach() for x in draw((2,), 5, 5, 8)[:3]))
    assert on == [KERNELS[variant]]


def test_the_kernel_that_sdpa_picks_is_named_where_pytorch_says_so(monkeypatch):
    inputs = draw((2,), 37, 37, 8)[:3]
    assert attention.sdpa_backend(*inputs) == "flash"
    assert inputs[0].grad_fn is None
    with sdpa_kernel(SDPBackend.MATH):
        assert attention.sdpa_backend(*inputs) == "math"
    seen = []
    monkeypatch.setattr(torch, "_fused_sdp_choice", lambda *x, is_causal: seen.append((x[0].dtype, is_causal)) or 3)
    with torch.autocast("cpu", torch.bfloat16):
        assert attention.sdpa_backend(*inputs, causal=False) == "cudnn"
    assert seen == [(torch.bfloat16, False)]  # autocast casts before PyTorch picks
    missing = Mock(side_effect=NotImplementedError("Could not run 'aten::_fused_sdp_choice' from the 'MPS' backend"))
    monkeypatch.setattr(torch, "_fused_sdp_choice", missing)
    assert attention.sdpa_backend(*inputs) is None
