"""Compute scaled dot-product attention in several variants of one signature.

Every variant maps queries (..., T, D), keys (..., S, D) and values (..., S, D) to (..., T, D). With `causal`,
query t sees keys 0 to t.

- `naive` is the formula, and the reference: it holds all scores and their gradients.
- `compiled` is the formula compiled: it still holds the scores, and passes over them half as often.
- `tiled` is FlashAttention-2 in plain PyTorch: a block of scores at a time. `flash_compiled` has its blocks compiled.
- `triton` is our FlashAttention-2 as kernels for NVIDIA's GPUs.
- `sdpa` is PyTorch's own, which picks a kernel; `sdpa_flash`, `sdpa_efficient` and `sdpa_cudnn` allow one kernel each.
- `flex` is PyTorch's flex_attention: a kernel compiled for the mask.

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

    See Vaswani et al. 2017, equation 1. The queries may be some rows of more, from number `first` on."""
    scores_XTS = _masked_scores(q_XTD, k_XSD, causal, first)
    return torch.softmax(scores_XTS, dim=-1) @ v_XSD


def _masked_scores(q_XTD: Tensor, k_XSD: Tensor, causal: bool, first: int = 0) -> Tensor:
    """Compute Q K^T / sqrt(D), with -inf where a key is in the future.

    `first` is the number of the first query, which sees keys 0 to `first`."""
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
    out = torch.nn.functional.scaled_dot_product_attention(*_as_4d(q_XTD, k_XSD, v_XSD), is_causal=causal)
    return out.reshape(*q_XTD.shape[:-1], v_XSD.shape[-1])


def _as_4d(*tensors: Tensor) -> list[Tensor]:
    return [tiles.as_4d(tensor) for tensor in tensors]


def _sdpa_by_kernel(kernel: SDPBackend):
    """Return `sdpa` with one kernel of PyTorch's, and with no other."""

    def attend(q_XTD: Tensor, k_XSD: Tensor, v_XSD: Tensor, causal: bool = True) -> Tensor:
        with sdpa_kernel(kernel):
            return sdpa(q_XTD, k_XSD, v_XSD, causal)

    return attend


def sdpa_backend(q_XTD: Tensor, k_XSD: Tensor, v_XSD: Tensor, causal: bool = True) -> str | None:
    """Name the kernel that `sdpa` picks for these inputs, as `flash` or `math`.

    None where PyTorch does not say."""
    inputs = _as_4d(*_in_autocast_type(q_XTD, k_XSD, v_XSD))
    try:
        number = torch._fused_sdp_choice(*inputs, is_causal=causal)
    except NotImplementedError:  # on MPS
        return None
    names = {backend.value: name for name, backend in SDPBackend.__members__.items()}
    return names[number].lower().removesuffix("_attention")


@functools.cache
def _compiled_naive():
    # at the first call, since importing the compiler takes seconds
    return torch.compile(naive, dynamic=False)


def compiled(q_XTD: Tensor, k_XSD: Tensor, v_XSD: Tensor, causal: bool = True) -> Tensor:
    """Run `naive` through torch.compile, with one graph for each shape."""
    return _compiled_naive()(q_XTD, k_XSD, v_XSD, causal)


@functools.cache
def _compiled_flex():
    # imports the compiler, which takes seconds
    from torch.nn.attention.flex_attention import flex_attention

    return torch.compile(flex_attention, dynamic=False)


@functools.cache
def _causal_blocks(queries: int, keys: int, device: torch.device):
    """Return the mask that lets flex_attention skip blocks of scores in the future."""
    from torch.nn.attention.flex_attention import create_block_mask

    def is_seen(batch, head, query, key):
        return query >= key

    # eager, it would fill a mask of all scores
    compiled_mask = torch.compile(create_block_mask)
    return compiled_mask(is_seen, None, None, queries, keys, device=device)


def flex(q_XTD: Tensor, k_XSD: Tensor, v_XSD: Tensor, causal: bool = True) -> Tensor:
    """Call PyTorch's flex_attention, compiled to a fused kernel for the mask.

    Its backward pass exists on CUDA only (see `unavailable`)."""
    inputs = _as_4d(*_in_autocast_type(q_XTD, k_XSD, v_XSD))
    mask = None
    if causal:
        mask = _causal_blocks(q_XTD.shape[-2], k_XSD.shape[-2], q_XTD.device)
    with torch.autocast(q_XTD.device.type, enabled=False):
        out = _compiled_flex()(*inputs, block_mask=mask)
    return out.reshape(*q_XTD.shape[:-1], v_XSD.shape[-1])


def tiled(q_XTD: Tensor, k_XSD: Tensor, v_XSD: Tensor, causal: bool = True, block: int = blocks.BLOCK) -> Tensor:
    """Compute an online softmax over blocks of keys, and its backward, in PyTorch.

    Both hold at most T x `block` scores for each leading index (Dao 2023, FlashAttention-2, algorithms 1 and 2)."""
    return _without_autocast(blocks.FlashAttentionTorch, q_XTD, k_XSD, v_XSD, causal, block)


def flash_compiled(q_XTD: Tensor, k_XSD: Tensor, v_XSD: Tensor, causal: bool = True) -> Tensor:
    """Run `tiled` with what it does for each block compiled."""
    return _without_autocast(blocks.FlashAttentionTorch, q_XTD, k_XSD, v_XSD, causal, blocks.COMPILED_BLOCK, True)


def triton(q_XTD: Tensor, k_XSD: Tensor, v_XSD: Tensor, causal: bool = True) -> Tensor:
    """Run our FlashAttention-2 in Triton."""
    return _without_autocast(tiles.FlashAttentionTriton, q_XTD, k_XSD, v_XSD, causal)


def _without_autocast(function: type[torch.autograd.Function], q_XTD, k_XSD, v_XSD, *settings) -> Tensor:
    """Run a custom function on cast inputs: autocast does not reach its backward."""
    inputs = _in_autocast_type(q_XTD, k_XSD, v_XSD)
    with torch.autocast(q_XTD.device.type, enabled=False):
        return function.apply(*inputs, *settings)


def _in_autocast_type(*tensors: Tensor) -> list[Tensor]:
    """Cast the tensors to autocast's type for matrix products, if it is on."""
    device = tensors[0].device.type
    if not torch.is_autocast_enabled(device):
        return list(tensors)
    return [tensor.to(torch.get_autocast_dtype(device)) for tensor in tensors]


VARIANTS = {
    "naive": naive,
    "tiled": tiled,
    "sdpa": sdpa,
    "sdpa_flash": _sdpa_by_kernel(SDPBackend.FLASH_ATTENTION),  # on CUDA that of Dao 2023
    "sdpa_efficient": _sdpa_by_kernel(SDPBackend.EFFICIENT_ATTENTION),  # of xFormers
    "sdpa_cudnn": _sdpa_by_kernel(SDPBackend.CUDNN_ATTENTION),
    "flex": flex,
    "compiled": compiled,
    "flash_compiled": flash_compiled,
    "triton": triton,
}
COMPILING = {"flex", "compiled", "flash_compiled"}  # variants that go through torch.compile


def unavailable(
    variant: str, device: str, d_head: int, precision: str, capability: tuple[int, int] | None = None
) -> str | None:
    """Return why the device cannot run a variant and its backward, or None.

    `capability` is that of a CUDA device."""
    if variant == "triton":
        return tiles.missing(d_head, capability)
    if variant in ("sdpa_efficient", "sdpa_cudnn") and device != "cuda":
        return f"{variant} is for CUDA"
    if variant == "sdpa_flash" and device == "mps":
        return "sdpa_flash is for CPUs and CUDA"
    if variant in ("sdpa_flash", "sdpa_cudnn") and device == "cuda" and precision not in ("bf16", "fp16"):
        return f"{variant} needs bf16 or fp16 on CUDA, got {precision}"
    if variant == "flex" and device != "cuda":
        return "flex_attention has a backward pass on CUDA only"
    if variant == "flex" and d_head < 16:
        return f"flex_attention needs heads of at least 16 features, got {d_head}"
    return None
