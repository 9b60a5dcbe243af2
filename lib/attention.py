"""Compute scaled dot-product attention in several variants of one signature.

Every variant maps queries (..., T, D), keys (..., S, D) and values (..., S, D) to (..., T, D). With `causal`,
query t sees keys 0 to t.

- `naive` is the formula, and the reference: it holds all scores and their gradients.
- `compiled` is the formula compiled: it still holds the scores, and passes over them half as often.
- `tiled` is FlashAttention-2 in plain PyTorch: a block of scores at a time. In `flash_compiled` the work on its
  scores is compiled, but not the products.
- `triton` is our FlashAttention-2 as kernels for NVIDIA's GPUs.
- `sdpa` is PyTorch's own, which picks a kernel; `sdpa_flash`, `sdpa_efficient` and `sdpa_cudnn` allow one kernel each.

Shapes in names: X any leading dimensions, T queries, S keys, N keys of one block, D head size.
"""

import functools
import math

import torch
from torch import Tensor
from torch.nn.attention import SDPBackend, sdpa_kernel

from lib.flash import blocks, tiles


def naive(q_XTD: Tensor, k_XSD: Tensor, v_XSD: Tensor, causal: bool = True, first: int = 0) -> Tensor:
    """Compute softmax(Q K^T / sqrt(D)) V, the reference.

    See Vaswani et al. 2017, equation 1. The queries may be a slice of all queries; it begins at number `first`."""
    scores_XTS = _masked_scores(q_XTD, k_XSD, causal, first)
    return torch.softmax(scores_XTS, dim=-1) @ v_XSD


def _masked_scores(q_XTD: Tensor, k_XSD: Tensor, causal: bool, first: int = 0) -> Tensor:
    """Compute Q K^T / sqrt(D), with -inf where a key is in the future."""
    scores_XTS = q_XTD @ k_XSD.mT / math.sqrt(q_XTD.shape[-1])
    if causal:
        future_TS = torch.ones(scores_XTS.shape[-2:], dtype=torch.bool, device=q_XTD.device).triu(1 + first)
        scores_XTS = scores_XTS.masked_fill(future_TS, -math.inf)
    return scores_XTS


PARTS = ("scores", "softmax", "values")


def annotated(q_XTD: Tensor, k_XSD: Tensor, v_XSD: Tensor, causal: bool = True) -> Tensor:
    """Compute the same as `naive`, with each of PARTS marked for a profiler."""
    with torch.profiler.record_function("scores"):
        scores_XTS = _masked_scores(q_XTD, k_XSD, causal)
    with torch.profiler.record_function("softmax"):
        weights_XTS = torch.softmax(scores_XTS, dim=-1)
    with torch.profiler.record_function("values"):
        return weights_XTS @ v_XSD


def sdpa(q_XTD: Tensor, k_XSD: Tensor, v_XSD: Tensor, causal: bool = True) -> Tensor:
    """Call PyTorch's scaled_dot_product_attention, which picks a kernel."""
    # its fused kernels need four dimensions; with others it silently falls back on the formula
    inputs = [tiles.as_4d(tensor) for tensor in (q_XTD, k_XSD, v_XSD)]
    out = torch.nn.functional.scaled_dot_product_attention(*inputs, is_causal=causal)
    return out.reshape(*q_XTD.shape[:-1], v_XSD.shape[-1])


@sdpa_kernel(SDPBackend.FLASH_ATTENTION)
def sdpa_flash(q_XTD: Tensor, k_XSD: Tensor, v_XSD: Tensor, causal: bool = True) -> Tensor:
    """Allow `sdpa` its flash kernel alone: Dao's (2023), or PyTorch's own on a CPU."""
    return sdpa(q_XTD, k_XSD, v_XSD, causal)


@sdpa_kernel(SDPBackend.EFFICIENT_ATTENTION)
def sdpa_efficient(q_XTD: Tensor, k_XSD: Tensor, v_XSD: Tensor, causal: bool = True) -> Tensor:
    """Allow `sdpa` its kernel from xFormers alone."""
    return sdpa(q_XTD, k_XSD, v_XSD, causal)


@sdpa_kernel(SDPBackend.CUDNN_ATTENTION)
def sdpa_cudnn(q_XTD: Tensor, k_XSD: Tensor, v_XSD: Tensor, causal: bool = True) -> Tensor:
    """Allow `sdpa` its kernel from cuDNN alone."""
    return sdpa(q_XTD, k_XSD, v_XSD, causal)


def chosen_kernel(q_XTD: Tensor, k_XSD: Tensor, v_XSD: Tensor, causal: bool = True) -> str:
    """Name the kernel that `sdpa` takes for these inputs.

    The name is that of torch.nn.attention.SDPBackend, in lower case."""
    inputs = [tiles.as_4d(tensor) for tensor in (q_XTD, k_XSD, v_XSD)]
    device = q_XTD.device.type
    if torch.is_autocast_enabled(device):
        inputs = [tensor.to(torch.get_autocast_dtype(device)) for tensor in inputs]
    return SDPBackend(torch._fused_sdp_choice(*inputs, is_causal=causal)).name.lower()


@functools.cache
def _compiled_naive():
    # at the first call, since importing the compiler takes seconds
    return torch.compile(naive, dynamic=False)


def compiled(q_XTD: Tensor, k_XSD: Tensor, v_XSD: Tensor, causal: bool = True) -> Tensor:
    """Run `naive` through torch.compile, with one graph for each shape."""
    return _compiled_naive()(q_XTD, k_XSD, v_XSD, causal)


def tiled(q_XTD: Tensor, k_XSD: Tensor, v_XSD: Tensor, causal: bool = True, block: int = blocks.BLOCK) -> Tensor:
    """Compute an online softmax over blocks of keys, and its backward, in PyTorch.

    Both hold at most T x `block` scores for each leading index (Dao 2023, FlashAttention-2, algorithms 1 and 2)."""
    return _without_autocast(blocks.FlashAttentionTorch, q_XTD, k_XSD, v_XSD, causal, block)


def flash_compiled(q_XTD: Tensor, k_XSD: Tensor, v_XSD: Tensor, causal: bool = True) -> Tensor:
    """Run `tiled` in larger blocks, and compile the work on a block's scores."""
    return _without_autocast(blocks.FlashAttentionTorch, q_XTD, k_XSD, v_XSD, causal, blocks.COMPILED_BLOCK, True)


def triton(q_XTD: Tensor, k_XSD: Tensor, v_XSD: Tensor, causal: bool = True) -> Tensor:
    """Run our FlashAttention-2 in Triton."""
    return _without_autocast(tiles.FlashAttentionTriton, q_XTD, k_XSD, v_XSD, causal)


def _without_autocast(function: type[torch.autograd.Function], q_XTD, k_XSD, v_XSD, *settings) -> Tensor:
    """Run a custom function on inputs that are cast: autocast does not reach its backward pass."""
    device = q_XTD.device.type
    inputs = [q_XTD, k_XSD, v_XSD]
    if not torch.is_autocast_enabled(device):
        return function.apply(*inputs, *settings)
    inputs = [tensor.to(torch.get_autocast_dtype(device)) for tensor in inputs]
    with torch.autocast(device, enabled=False):
        return function.apply(*inputs, *settings)


VARIANTS = {
    "naive": naive,
    "tiled": tiled,
    "sdpa": sdpa,
    "sdpa_flash": sdpa_flash,
    "sdpa_efficient": sdpa_efficient,
    "sdpa_cudnn": sdpa_cudnn,
    "compiled": compiled,
    "flash_compiled": flash_compiled,
    "triton": triton,
}


def unavailable(
    variant: str, device: str, d_head: int, precision: str, capability: tuple[int, int] | None = None
) -> str | None:
    """Return why the device cannot run a variant and its backward, or None.

    `capability` is that of a CUDA device. It and `d_head` matter to `triton` alone. PyTorch's kernels have further
    limits, which are known only from a run."""
    if variant == "triton":
        return tiles.missing(d_head, capability)
    if variant in ("sdpa_efficient", "sdpa_cudnn") and device != "cuda":
        return f"{variant} is for CUDA"
    if variant == "sdpa_flash" and device == "mps":
        return "sdpa_flash is for CPUs and CUDA"
    if variant in ("sdpa_flash", "sdpa_cudnn") and device == "cuda" and precision not in ("bf16", "fp16"):
        return f"{variant} needs bf16 or fp16 on CUDA, got {precision}"
    return None
