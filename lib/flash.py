"""Compute attention by FlashAttention-2: plain PyTorch, compiled PyTorch, Triton.

It follows Dao (2023), algorithms 1 and 2. Each class has `apply(Q, K, V, is_causal=False)` over (..., T, D). For the
backward pass it keeps Q, K, V, the output, and the natural log-sum-exp (..., T) of each query's scores: T (4 D + 1)
numbers instead of T^2. Shapes in names: X any leading dimensions, T queries, S keys, N keys of a block, R queries that
see any of them, D head size.
"""

import functools
import importlib.util
import math
from typing import NamedTuple

import torch
from torch import Tensor

BLOCK = 128  # keys of a block in PyTorch
COMPILED_BLOCK = 256  # of fewer blocks, since a call of compiled code takes long
WIDEST = 128  # features of a head that the kernels have tiles for


class FlashAttentionTorch(torch.autograd.Function):
    """Compute an online softmax over blocks of keys, forward and backward, in plain PyTorch.

    It holds at most T x `block` scores for each leading index, and as many gradients of them."""

    @staticmethod
    def forward(ctx, Q, K, V, is_causal=False, block=BLOCK):
        return _forward(_weigh, ctx, Q, K, V, is_causal, block)

    @staticmethod
    def backward(ctx, dO):
        return _backward(_weigh_again, ctx, dO)


class FlashAttentionCompiled(torch.autograd.Function):
    """Compute the same, with what happens to the scores of a block compiled."""

    @staticmethod
    def forward(ctx, Q, K, V, is_causal=False, block=COMPILED_BLOCK):
        return _forward(_compiled(_weigh), ctx, Q, K, V, is_causal, block)

    @staticmethod
    def backward(ctx, dO):
        return _backward(_compiled(_weigh_again), ctx, dO)


@functools.cache
def _compiled(function):
    return torch.compile(function, dynamic=True, fullgraph=True)  # under a mask each block has its own shape


def _forward(weigh, ctx, Q, K, V, causal, block):
    q_XTD, k_XSD, v_XSD = _scaled(Q), _as_3d(K), _as_3d(V)
    out_XTD = torch.zeros_like(q_XTD, dtype=torch.promote_types(q_XTD.dtype, torch.float32))
    largest_XT1 = out_XTD.new_full((*q_XTD.shape[:-1], 1), -math.inf)
    total_XT1 = torch.zeros_like(largest_XT1)
    for keys, rows, future_NN in _blocks(q_XTD, k_XSD, causal, block):
        weights_XRN = _scores(q_XTD[..., rows, :], k_XSD[..., keys, :], future_NN)
        shrink_XR1 = weigh(weights_XRN, largest_XT1[..., rows, :], total_XT1[..., rows, :])
        _add_product(out_XTD[..., rows, :].mul_(shrink_XR1), weights_XRN.to(V.dtype), v_XSD[..., keys, :])
        del weights_XRN  # before the next block has its own
    out = out_XTD.div_(total_XT1).to(Q.dtype).reshape(Q.shape)
    logsumexp = total_XT1.log_().add_(largest_XT1).reshape(Q.shape[:-1])
    ctx.save_for_backward(Q, K, V, out, logsumexp)
    ctx.causal, ctx.block = causal, block
    return out


def _backward(weigh_again, ctx, dO):
    Q, K, V, out, logsumexp = ctx.saved_tensors
    k_XSD, v_XSD, dout_XTD, logsumexp_XT1 = (_as_3d(x) for x in (K, V, dO, logsumexp[..., None]))
    q_XTD, mean_XT1 = _scaled(Q), _as_3d((dO * out).sum(-1, keepdim=True))
    dq_XTD, dk_XSD, dv_XSD = (torch.zeros_like(x) for x in (q_XTD, k_XSD, v_XSD))
    for keys, rows, future_NN in _blocks(q_XTD, k_XSD, ctx.causal, ctx.block):
        q_XRD, dout_XRD, k_XND = q_XTD[..., rows, :], dout_XTD[..., rows, :], k_XSD[..., keys, :]
        weights_XRN = _scores(q_XRD, k_XND, future_NN)
        dscores_XRN = (dout_XRD @ v_XSD[..., keys, :].mT).to(weights_XRN.dtype)
        weigh_again(weights_XRN, dscores_XRN, logsumexp_XT1[..., rows, :], mean_XT1[..., rows, :])
        dscores_XRN = dscores_XRN.to(Q.dtype)
        dv_XSD[..., keys, :] = weights_XRN.to(Q.dtype).mT @ dout_XRD
        dk_XSD[..., keys, :] = dscores_XRN.mT @ q_XRD
        _add_product(dq_XTD[..., rows, :], dscores_XRN, k_XND)
        del weights_XRN, dscores_XRN
    dq_XTD.mul_(_scale(Q))
    return *(x.reshape(like.shape) for x, like in ((dq_XTD, Q), (dk_XSD, K), (dv_XSD, V))), None, None


def _scale(Q):
    return 1 / math.sqrt(Q.shape[-1])


def _scaled(Q):
    """Return the queries over sqrt(D) in three dimensions, so that their products with keys are scores."""
    return _as_3d(Q) * _scale(Q)


def _as_3d(x: Tensor) -> Tensor:
    """View or copy a tensor in three dimensions, which batched products take."""
    return x.reshape(-1, *x.shape[-2:])


def _blocks(q_XTD, k_XSD, causal, block):
    """Yield slices of keys, each with the slice of the queries that see any of them, and a mask.

    It is -inf where a key is in the future of one of the first queries, else 0; the others see all keys of the block.
    """
    future_NN = q_XTD.new_full((block, block), -math.inf).triu_(1) if causal else None
    for start in range(0, k_XSD.shape[-2], block):
        if causal and start >= q_XTD.shape[-2]:
            return
        yield slice(start, start + block), slice(start if causal else 0, None), future_NN


def _scores(q_XRD, k_XND, future_NN):
    """Compute scores in at least fp32 from scaled queries, -inf where a key is in the future."""
    scores_XRN = q_XRD @ k_XND.mT
    if future_NN is not None:
        first_XNN = scores_XRN[..., : len(future_NN), :]
        first_XNN.add_(future_NN[: first_XNN.shape[-2], : first_XNN.shape[-1]])
    return scores_XRN.to(torch.promote_types(scores_XRN.dtype, torch.float32))


def _add_product(sum: Tensor, a: Tensor, b: Tensor) -> None:
    """Add a product to a sum in place, in one call where all have one type."""
    if sum.dtype == a.dtype:
        sum.baddbmm_(a, b)
    else:
        sum.add_(a @ b)


def _weigh(scores_XRN, largest_XR1, total_XR1):
    """Turn scores into weights, and take them into the running largest score and sum of weights.

    All is done in place. Returns the factor by which earlier weights shrink."""
    new_XR1 = torch.maximum(largest_XR1, scores_XRN.amax(-1, keepdim=True))
    scores_XRN.sub_(new_XR1).exp_()
    shrink_XR1 = torch.exp(largest_XR1 - new_XR1)
    total_XR1.mul_(shrink_XR1).add_(scores_XRN.sum(-1, keepdim=True))
    largest_XR1.copy_(new_XR1)
    return shrink_XR1


def _weigh_again(scores_XRN, dweights_XRN, logsumexp_XR1, mean_XR1):
    """Turn scores into weights, and the weights' gradients into those of the scores, in place."""
    scores_XRN.sub_(logsumexp_XR1).exp_()
    dweights_XRN.sub_(mean_XR1).mul_(scores_XRN)


class FlashAttentionTriton(torch.autograd.Function):
    """Compute the same by the kernels of `lib.flash_kernels`, on a GPU of NVIDIA."""

    @staticmethod
    def forward(ctx, Q, K, V, is_causal=False):
        out, logsumexp = attend(Q, K, V, is_causal)
        ctx.save_for_backward(Q, K, V, out, logsumexp)
        ctx.causal = is_causal
        return out

    @staticmethod
    def backward(ctx, dO):
        return _gradients(ctx, dO)


@torch.library.custom_op("flash::attend", mutates_args=())
def attend(q: Tensor, k: Tensor, v: Tensor, causal: bool) -> tuple[Tensor, Tensor]:
    """Return the output and the log-sum-exp (not differentiable), by Triton."""
    out, logsumexp = _like_attend(q, k, v, causal)
    _launch("flash_forward", [q, k, v, out], [logsumexp], causal)
    return out, logsumexp


@attend.register_fake
def _like_attend(q, k, v, causal):
    return _like(q), q.new_empty(q.shape[:-1], dtype=torch.promote_types(q.dtype, torch.float32))


@torch.library.custom_op("flash::differentiate", mutates_args=())
def differentiate(
    q: Tensor, k: Tensor, v: Tensor, out: Tensor, dout: Tensor, logsumexp: Tensor, causal: bool
) -> tuple[Tensor, Tensor, Tensor]:
    """Return the gradients of queries, keys and values, by Triton."""
    dq, dk, dv = _like_differentiate(q, k, v, out, dout, logsumexp, causal)
    sums = [logsumexp, torch.empty_like(logsumexp)]
    _launch("flash_backward_q", [q, k, v, out, dout, dq], sums, causal)
    _launch("flash_backward_kv", [q, k, v, dout, dk, dv], sums, causal)
    return dq, dk, dv


@differentiate.register_fake
def _like_differentiate(q, k, v, out, dout, logsumexp, causal):
    return _like(q), _like(k), _like(v)


def _setup_context(ctx, inputs, output):
    *tensors, ctx.causal = inputs
    ctx.save_for_backward(*tensors, *output)
    ctx.mark_non_differentiable(output[1])


def _gradients(ctx, dout, *_):
    q, k, v, out, logsumexp = ctx.saved_tensors
    return *differentiate(q, k, v, out, dout, logsumexp, ctx.causal), None


attend.register_autograd(_gradients, setup_context=_setup_context)


def _like(x):
    """Return an empty tensor whose strides let `as_4d` view it."""
    return torch.empty_like(x) if x.dim() <= 4 else x.new_empty(x.shape)


def as_4d(x: Tensor) -> Tensor:
    """View a tensor in four dimensions, (batch, heads, rows, features), which kernels take."""
    return x[(None,) * (4 - x.dim())].flatten(0, max(0, x.dim() - 4))


def _launch(name, tensors, sums, causal):
    """Start a kernel, one program for each head and tile of the rows that it owns."""
    from lib import flash_kernels

    q, k, *_ = tensors = [as_4d(x) for x in tensors]
    (batch, heads, queries, d_head), keys = q.shape, k.shape[-2]
    numbers = numbers_of(q.dtype)
    tile = tile_of(name, numbers, d_head, flash_kernels.capability())
    programs = -(-keys // tile.keys) if name == "flash_backward_kv" else -(-queries // tile.queries)
    getattr(flash_kernels, name)[batch * heads, programs](
        *tensors, *sums, *(x.stride() for x in tensors), heads, queries, keys,
        **constants(numbers, d_head, tile, causal), num_warps=tile.warps, num_stages=tile.stages,
        enable_fp_fusion=True,  # an exponent is one multiplication with addition; not the default from Triton 3.10 on
    )  # fmt: skip


def constants(numbers: str, d_head: int, tile: "Tile", causal: bool) -> dict[str, object]:
    """Return what a kernel is compiled for."""
    return {
        "SCALE": math.log2(math.e) / math.sqrt(d_head), "CAUSAL": causal, "HEAD": d_head, "WIDE": padded(d_head),
        "PRECISION": "tf32" if numbers == "tf32" else "ieee", "TILE_T": tile.queries, "TILE_S": tile.keys,
    }  # fmt: skip


class Tile(NamedTuple):
    """Hold the queries and keys of a tile, warps, and stages of its loads."""

    queries: int
    keys: int
    warps: int
    stages: int


# KiB of shared memory of a program, by compute capability (CUDA C++ Programming Guide 13.0, table 30)
SHARED_KIB = {(8, 0): 163, (8, 7): 163, (9, 0): 227, (10, 0): 227, (10, 3): 227, (11, 0): 227}
LEAST_KIB = 99  # 8.6, 8.9, 12.0, 12.1

# By kernel, kind of numbers and padded head size: the tile for programs with so many KiB. Those of narrow numbers are
# PyTorch's choices for flex_attention (version 2.13, torch/_inductor/template_heuristics/triton.py), with more warps or
# less rows where these kernels would spill registers. Exact products of fp32 hold whole rows in registers.
TILES = {
    ("flash_forward", "narrow", 64): {227: Tile(128, 128, 8, 3), 99: Tile(128, 64, 4, 3)},
    ("flash_forward", "narrow", 128): {163: Tile(128, 64, 8, 3), 99: Tile(128, 64, 8, 2)},
    ("flash_forward", "tf32", 64): {99: Tile(128, 32, 4, 3)},
    ("flash_forward", "tf32", 128): {163: Tile(64, 32, 4, 3), 99: Tile(64, 32, 4, 2)},
    ("flash_forward", "ieee", 64): {99: Tile(32, 16, 4, 2)},
    ("flash_forward", "ieee", 128): {99: Tile(32, 16, 8, 2)},
    ("flash_backward_q", "narrow", 64): {227: Tile(128, 64, 8, 3), 99: Tile(64, 64, 4, 2)},
    ("flash_backward_q", "narrow", 128): {227: Tile(128, 64, 8, 3), 99: Tile(64, 64, 8, 2)},
    ("flash_backward_q", "tf32", 64): {99: Tile(64, 32, 4, 2)},
    ("flash_backward_q", "tf32", 128): {227: Tile(64, 32, 4, 2), 99: Tile(32, 32, 4, 2)},
    ("flash_backward_q", "ieee", 64): {99: Tile(32, 16, 4, 2)},
    ("flash_backward_q", "ieee", 128): {99: Tile(32, 16, 8, 1)},
    ("flash_backward_kv", "narrow", 64): {227: Tile(64, 128, 8, 3), 99: Tile(64, 64, 4, 2)},
    ("flash_backward_kv", "narrow", 128): {227: Tile(32, 128, 8, 3), 99: Tile(64, 64, 8, 2)},
    ("flash_backward_kv", "tf32", 64): {99: Tile(32, 64, 4, 2)},
    ("flash_backward_kv", "tf32", 128): {99: Tile(32, 32, 4, 2)},
    ("flash_backward_kv", "ieee", 64): {99: Tile(16, 32, 4, 2)},
    ("flash_backward_kv", "ieee", 128): {99: Tile(16, 32, 8, 1)},
}


def tile_of(kernel: str, numbers: str, d_head: int, capability: tuple[int, int]) -> Tile:
    """Return the tile of a kernel for a kind of numbers on a GPU."""
    shared = SHARED_KIB.get(capability, LEAST_KIB)
    return next(tile for kib, tile in TILES[kernel, numbers, max(64, padded(d_head))].items() if kib <= shared)


def numbers_of(dtype: torch.dtype) -> str:
    """Return how numbers are multiplied: as narrow ones, as tf32, or as they are."""
    if dtype.itemsize == 2:
        return "narrow"
    return "tf32" if dtype == torch.float32 and torch.get_float32_matmul_precision() != "highest" else "ieee"


def padded(d_head: int) -> int:
    """Return the features of a tile's row: a power of two, at least 16, which products need."""
    return max(16, 1 << (d_head - 1).bit_length())


def missing(d_head: int, capability: tuple[int, int] | None) -> str | None:
    """Return why a GPU cannot run the kernels, or None.

    `capability` is its compute capability; None stands for a device that is no GPU of NVIDIA."""
    if capability is None:
        return "triton is for CUDA"
    if capability < (8, 0):
        return f"triton needs compute capability 8.0 or more, got {capability[0]}.{capability[1]}"
    if d_head > WIDEST:
        return f"triton has tiles for heads of at most {WIDEST} features, got {d_head}"
    if importlib.util.find_spec("triton") is None:
        return "triton is not installed"
    return None
