"""Pick tiles for the kernels of `lib.flash.kernels`, and launch them."""

import importlib.util
import math
from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor

WIDEST = 128  # features of a head that the kernels have tiles for


class FlashAttentionTriton(torch.autograd.Function):
    """Compute attention by kernels in Triton, on a GPU of NVIDIA."""

    @staticmethod
    def forward(ctx, Q, K, V, is_causal=False):
        out, logsumexp = torch.ops.flash.attend.default(Q, K, V, is_causal)
        ctx.save_for_backward(Q, K, V, out, logsumexp)
        ctx.causal = is_causal
        return out

    @staticmethod
    def backward(ctx, dout):
        Q, K, V, out, logsumexp = ctx.saved_tensors
        return *torch.ops.flash.differentiate.default(Q, K, V, out, dout, logsumexp, ctx.causal), None


def attend(q: Tensor, k: Tensor, v: Tensor, causal: bool) -> tuple[Tensor, Tensor]:
    """Return the output and the log-sum-exp, by Triton."""
    out, logsumexp = _allocate_attend(q, k, v, causal)
    _launch("flash_forward", [q, k, v, out], [logsumexp], causal)
    return out, logsumexp


def _allocate_attend(q, k, v, causal):
    return _empty_viewable(q), q.new_empty(q.shape[:-1], dtype=torch.promote_types(q.dtype, torch.float32))


def differentiate(
    q: Tensor, k: Tensor, v: Tensor, out: Tensor, dout: Tensor, logsumexp: Tensor, causal: bool
) -> tuple[Tensor, Tensor, Tensor]:
    """Return the gradients of queries, keys and values, by Triton."""
    dq, dk, dv = _allocate_differentiate(q, k, v, out, dout, logsumexp, causal)
    # the log-sum-exp, and room for means that the first kernel writes and the second one reads
    of_queries = [logsumexp, torch.empty_like(logsumexp)]
    _launch("flash_backward_q", [q, k, v, out, dout, dq], of_queries, causal)
    _launch("flash_backward_kv", [q, k, v, dout, dk, dv], of_queries, causal)
    return dq, dk, dv


def _allocate_differentiate(q, k, v, out, dout, logsumexp, causal):
    return _empty_viewable(q), _empty_viewable(k), _empty_viewable(v)


# torch.compile keeps an operator whole. `torch.library.custom_op` would make one too, with checks of its own at every
# call in Python, which a small attention would wait for.
for _compute, _allocate in ((attend, _allocate_attend), (differentiate, _allocate_differentiate)):
    _name = f"flash::{_compute.__name__}"
    _schema = torch.library.infer_schema(_compute, mutates_args=())
    torch.library.define(_name, _schema, tags=torch.Tag.pt2_compliant_tag)
    torch.library.impl(_name, "default", _compute)
    torch.library.register_fake(_name, _allocate)


def _empty_viewable(x):
    """Return an empty tensor that `as_4d` can view, like `x` up to 4-d."""
    return torch.empty_like(x) if x.dim() <= 4 else x.new_empty(x.shape)


def as_4d(x: Tensor) -> Tensor:
    """View a tensor as kernels take it: (batch, heads, rows, features).

    It is copied if its leading dimensions cannot be viewed as one."""
    if x.dim() == 4:
        return x
    if x.dim() < 4:
        return x[(None,) * (4 - x.dim())]
    # all dimensions before the heads become one
    return x.flatten(0, -4)


_launchers: dict[tuple, Callable] = {}  # the key has all that a launch depends on, except addresses and contents


def _launch(name, tensors, of_queries, causal):
    """Start a kernel, one program for each head and tile of the rows that it owns.

    `of_queries` are contiguous, with one number a query."""
    from lib.flash import kernels

    tensors = [*map(as_4d, tensors), *of_queries]
    number_kind = number_kind_of(tensors[0].dtype)
    # Triton compiles other code for addresses that are multiples of 16
    layouts = [(x.dtype, x.shape, x.stride(), x.data_ptr() % 16 == 0) for x in tensors]
    key = (name, number_kind, causal, kernels.current_device(), *layouts)
    launcher = _launchers.get(key)
    if launcher is None:
        launcher = _launchers[key] = _compile(name, number_kind, causal, tensors, len(of_queries))
    launcher(*tensors)


def _compile(name, number_kind, causal, tensors, num_of_queries):
    """Compile a kernel for tensors like these; return what launches it."""
    from lib.flash import kernels

    batch, heads, queries, d_head = tensors[0].shape
    keys = tensors[1].shape[-2]
    tile = tile_of(name, number_kind, d_head, kernels.capability())
    programs = math.ceil(queries / tile.queries)
    if name == "flash_backward_kv":
        programs = math.ceil(keys / tile.keys)
    strides = [x.stride() for x in tensors[:-num_of_queries]]
    numbers = [*strides, heads, queries, keys, *constants(number_kind, d_head, tile, causal).values()]
    grid = (batch * heads, programs, 1)
    return kernels.launcher(name, grid, tensors, numbers, num_warps=tile.warps, num_stages=tile.stages)


def constants(number_kind: str, d_head: int, tile: "Tile", causal: bool) -> dict[str, object]:
    """Return a kernel's compile-time arguments by name, in their order."""
    return {
        "SCALE": math.log2(math.e) / math.sqrt(d_head), "CAUSAL": causal, "HEAD": d_head, "PADDED": padded(d_head),
        "PRECISION": "tf32" if number_kind == "tf32" else "ieee", "TILE_T": tile.queries, "TILE_S": tile.keys,
    }  # fmt: skip


class Tile(NamedTuple):
    """Hold how many queries, keys, warps and load stages a tile has."""

    queries: int
    keys: int
    warps: int
    stages: int


# KiB of shared memory of a program, by compute capability (CUDA C++ Programming Guide 13.0, table 30)
SHARED_KIB = {(8, 0): 163, (8, 7): 163, (9, 0): 227, (10, 0): 227, (10, 3): 227, (11, 0): 227}
LEAST_KIB = 99  # 8.6, 8.9, 12.0, 12.1

# By kernel, kind of numbers and padded head size: the tile for programs with at least so many KiB. For narrow numbers
# and 227 KiB it is the fastest of nine or ten tried on an H100 (Triton 3.6; 16 heads, 16,384 tokens, bf16, causal). The
# others have met no GPU: those of narrow numbers are PyTorch's choices for flex_attention (version 2.13,
# torch/_inductor/template_heuristics/triton.py), with more warps or fewer rows where these kernels would spill
# registers. Exact products of fp32 hold whole rows in registers.
TILES = {
    ("flash_forward", "narrow", 64): {227: Tile(128, 64, 8, 3), 99: Tile(128, 64, 4, 3)},
    ("flash_forward", "narrow", 128): {227: Tile(128, 128, 8, 3), 163: Tile(128, 64, 8, 3), 99: Tile(128, 64, 8, 2)},
    ("flash_forward", "tf32", 64): {99: Tile(128, 32, 4, 3)},
    ("flash_forward", "tf32", 128): {163: Tile(64, 32, 4, 3), 99: Tile(64, 32, 4, 2)},
    ("flash_forward", "ieee", 64): {99: Tile(32, 16, 4, 2)},
    ("flash_forward", "ieee", 128): {99: Tile(32, 16, 8, 2)},
    ("flash_backward_q", "narrow", 64): {227: Tile(128, 64, 8, 3), 99: Tile(64, 64, 4, 2)},
    ("flash_backward_q", "narrow", 128): {227: Tile(128, 128, 8, 2), 99: Tile(64, 64, 8, 2)},
    ("flash_backward_q", "tf32", 64): {99: Tile(64, 32, 4, 2)},
    ("flash_backward_q", "tf32", 128): {227: Tile(64, 32, 4, 2), 99: Tile(32, 32, 4, 2)},
    ("flash_backward_q", "ieee", 64): {99: Tile(32, 16, 4, 2)},
    ("flash_backward_q", "ieee", 128): {99: Tile(32, 16, 8, 1)},
    ("flash_backward_kv", "narrow", 64): {227: Tile(64, 128, 4, 2), 99: Tile(64, 64, 4, 2)},
    ("flash_backward_kv", "narrow", 128): {227: Tile(64, 128, 8, 3), 99: Tile(64, 64, 8, 2)},
    ("flash_backward_kv", "tf32", 64): {99: Tile(32, 64, 4, 2)},
    ("flash_backward_kv", "tf32", 128): {99: Tile(32, 32, 4, 2)},
    ("flash_backward_kv", "ieee", 64): {99: Tile(16, 32, 4, 2)},
    ("flash_backward_kv", "ieee", 128): {99: Tile(16, 32, 8, 1)},
}


def tile_of(kernel: str, number_kind: str, d_head: int, capability: tuple[int, int]) -> Tile:
    """Return the tile of a kernel for a kind of numbers on a GPU."""
    shared_kib = SHARED_KIB.get(capability, LEAST_KIB)
    tiles_by_kib = TILES[kernel, number_kind, max(64, padded(d_head))]  # the largest first
    return next(tile for kib, tile in tiles_by_kib.items() if kib <= shared_kib)


def number_kind_of(dtype: torch.dtype) -> str:
    """Return how numbers are multiplied: as narrow ones, as tf32, or as they are.

    `torch.set_float32_matmul_precision` decides about fp32. PyTorch's newer `fp32_precision` is not read; where it
    turns tf32 on against the older setting, PyTorch raises RuntimeError."""
    if dtype.itemsize == 2:
        return "narrow"
    if dtype == torch.float32 and torch.get_float32_matmul_precision() != "highest":
        return "tf32"
    return "ieee"


def padded(d_head: int) -> int:
    """Pad to a power of two, for tl.arange, and at least 16, for tl.dot."""
    return max(16, 1 << (d_head - 1).bit_length())


def missing(d_head: int, capability: tuple[int, int] | None) -> str | None:
    """Return why the kernels cannot run here for heads of this size, or None.

    The capability is None without CUDA."""
    if capability is None:
        return "triton is for CUDA"
    if capability < (8, 0):
        return f"triton needs compute capability 8.0 or more, got {capability[0]}.{capability[1]}"
    if d_head > WIDEST:
        return f"triton has tiles for heads of at most {WIDEST} features, got {d_head}"
    if importlib.util.find_spec("triton") is None:
        return "triton is not installed"
    return None
