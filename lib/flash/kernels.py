"""Compute attention and its gradients tile by tile, in Triton.

FlashAttention-2 (Dao 2023, algorithms 1 and 2) with a backward pass in two kernels, each of which owns what it writes:
no atomic addition, so equal inputs give equal bits. Each program takes one head and one tile of queries or keys. Tiles
of scores that no query sees are skipped, except where rows beyond the last query would see them. Of the rest only those
that the diagonal or the end crosses are masked.

Shapes in names: T queries of a tile, S keys of a tile, D head size (HEAD) padded to a power of two (PADDED). Exponents
have base 2: a product q . k times SCALE is such an exponent, so SCALE * LN_2 is 1 / sqrt(HEAD), the scale of the
scores. The log-sum-exp in memory is natural. Import this only where Triton is.
"""

from collections.abc import Callable

import triton
import triton.language as tl

LOG2_E = tl.constexpr(1.4426950408889634)  # turns exponents of e into exponents of 2
LN_2 = tl.constexpr(0.6931471805599453)


def capability() -> tuple[int, int]:
    """Return the compute capability of the GPU that kernels run on."""
    # an architecture of 90 means 9.0
    return divmod(triton.runtime.driver.active.get_current_target().arch, 10)


def current_device() -> int:
    """Return the number of the GPU that kernels run on."""
    return triton.runtime.driver.active.get_current_device()


def launcher(name: str, grid: tuple[int, int, int], tensors: list, numbers: list, **options: int) -> Callable:
    """Compile a kernel; return what launches it on tensors of the same layout.

    The arguments are the tensors and then the numbers. `kernel[grid](...)` would look at each of them again at every
    launch, and at each number of a tuple."""
    # enable_fp_fusion makes score * SCALE - exponent one instruction, whatever Triton's default
    program = globals()[name].warmup(*tensors, *numbers, grid=grid, enable_fp_fusion=True, **options)
    launch = program[grid]
    return lambda *tensors: launch(*tensors, *numbers)


@triton.jit
def _of_head(tensor, strides, heads):
    """Return where this program's head begins."""
    # offsets are wide, since a batch can exceed 2^31 numbers
    head = tl.program_id(0)
    return tensor + (head // heads).to(tl.int64) * strides[0] + (head % heads).to(tl.int64) * strides[1]


@triton.jit
def _pointers(tensor, strides, start, ROWS: tl.constexpr, PADDED: tl.constexpr):
    """Return pointers to a tile that begins at row `start` of a head."""
    rows = tl.arange(0, ROWS)
    columns = tl.arange(0, PADDED)
    return tensor + tl.cast(start, tl.int64) * strides[2] + rows[:, None] * strides[2] + columns[None, :] * strides[3]


@triton.jit
def _inside(start, length, ROWS: tl.constexpr, PADDED: tl.constexpr, HEAD: tl.constexpr):
    """Return True for what of a tile lies within `length` rows of HEAD features."""
    return (start + tl.arange(0, ROWS) < length)[:, None] & (tl.arange(0, PADDED) < HEAD)[None, :]


@triton.jit
def _load(
    tensor, strides, start, length, ROWS: tl.constexpr, PADDED: tl.constexpr, HEAD: tl.constexpr, RAGGED: tl.constexpr
):
    """Load a tile, with zeros for padding and, if RAGGED, beyond the last row."""
    pointers = _pointers(tensor, strides, start, ROWS, PADDED)
    if RAGGED:
        tile = tl.load(pointers, mask=_inside(start, length, ROWS, PADDED, HEAD), other=0.0)
    elif HEAD < PADDED:
        tile = tl.load(pointers, mask=(tl.arange(0, PADDED) < HEAD)[None, :], other=0.0)
    else:
        tile = tl.load(pointers)
    return tile


@triton.jit
def _store(tensor, strides, start, length, tile, ROWS: tl.constexpr, PADDED: tl.constexpr, HEAD: tl.constexpr):
    """Store what of a tile lies within the tensor, in the tensor's type."""
    pointers = _pointers(tensor, strides, start, ROWS, PADDED)
    tl.store(pointers, tile.to(tensor.dtype.element_ty), mask=_inside(start, length, ROWS, PADDED, HEAD))


@triton.jit
def _seen(t_T, s_S, keys, CAUSAL: tl.constexpr):
    """Return True where a query sees a key that exists.

    The shape is (T, S), or (1, S) without CAUSAL."""
    seen_TS = (s_S < keys)[None, :]
    if CAUSAL:
        seen_TS = seen_TS & (s_S[None, :] <= t_T[:, None])
    return seen_TS


@triton.jit
def _bounds_of_keys(start, keys, CAUSAL: tl.constexpr, TILE_T: tl.constexpr, TILE_S: tl.constexpr):
    """Return `begin`, `unmasked_end` and `end` of the keys of a tile of queries.

    The tile's first query is `start`. Every query of the tile sees all keys from `begin` to `unmasked_end`. From `end`
    on, none sees any."""
    common_end = keys
    end = keys
    if CAUSAL:
        common_end = tl.minimum(keys, start + 1)
        end = tl.minimum(keys, start + TILE_T)
    unmasked_end = common_end // TILE_S * TILE_S
    return 0, unmasked_end, end


@triton.jit
def _finite(tile):
    """Return zeros in place of infinities and of what is no number."""
    return tl.where(tl.abs(tile) < float("inf"), tile, 0.0)


@triton.jit
def flash_forward(
    Q, K, V, OUT, LOGSUMEXP, q_strides, k_strides, v_strides, out_strides, heads, queries, keys,
    SCALE: tl.constexpr, CAUSAL: tl.constexpr, HEAD: tl.constexpr, PADDED: tl.constexpr,
    PRECISION: tl.constexpr, TILE_T: tl.constexpr, TILE_S: tl.constexpr,
):  # fmt: skip
    """Compute output and log-sum-exp of a tile of queries."""
    # the last tiles come first: under a mask they take longest, and would end last
    start_t = (tl.num_programs(1) - 1 - tl.program_id(1)) * TILE_T
    t_T = start_t + tl.arange(0, TILE_T)
    Q = _of_head(Q, q_strides, heads)
    K = _of_head(K, k_strides, heads)
    V = _of_head(V, v_strides, heads)
    OUT = _of_head(OUT, out_strides, heads)
    q_TD = _load(Q, q_strides, start_t, queries, TILE_T, PADDED, HEAD, True)
    sum_type = LOGSUMEXP.dtype.element_ty
    out_TD = tl.zeros((TILE_T, PADDED), sum_type)
    total_T = tl.zeros((TILE_T,), sum_type)
    largest_T = tl.full((TILE_T,), -float("inf"), sum_type)
    # tiles that every query sees whole need no mask; those on the diagonal or at the end do
    bounds = _bounds_of_keys(start_t, keys, CAUSAL, TILE_T, TILE_S)
    for MASKED in tl.static_range(2):
        for start_s in tl.range(bounds[MASKED], bounds[MASKED + 1], TILE_S):
            k_SD = _load(K, k_strides, start_s, keys, TILE_S, PADDED, HEAD, MASKED)
            scores_TS = tl.dot(q_TD, k_SD.T, input_precision=PRECISION, out_dtype=sum_type)
            if MASKED:
                scores_TS = tl.where(_seen(t_T, start_s + tl.arange(0, TILE_S), keys, CAUSAL), scores_TS, -float("inf"))
            # earlier sums are relative to an older, smaller maximum: they shrink
            new_T = tl.maximum(largest_T, tl.max(scores_TS, 1) * SCALE)
            weights_TS = tl.exp2(scores_TS * SCALE - new_T[:, None])
            shrink_T = tl.exp2(largest_T - new_T)
            total_T = total_T * shrink_T + tl.sum(weights_TS, 1)
            v_SD = _load(V, v_strides, start_s, keys, TILE_S, PADDED, HEAD, MASKED)
            out_TD = out_TD * shrink_T[:, None]
            if MASKED and CAUSAL:
                # zero, the weight of a future value, times infinity is no number
                v_SD = _finite(v_SD)
            out_TD = tl.dot(weights_TS.to(v_SD.dtype), v_SD, out_TD, input_precision=PRECISION, out_dtype=sum_type)
            largest_T = new_T
    out_TD = out_TD / total_T[:, None]
    if CAUSAL:
        # each query gets what it sees of values that are not finite: looked for here, where registers are free
        for start_s in tl.range(bounds[1], bounds[2], TILE_S):
            v_SD = _load(V, v_strides, start_s, keys, TILE_S, PADDED, HEAD, True)
            if tl.sum((v_SD != _finite(v_SD)).to(tl.int32)) > 0:
                for s in range(start_s, tl.minimum(start_s + TILE_S, keys)):
                    v_1D = _load(V, v_strides, s, keys, 1, PADDED, HEAD, True)
                    v_1D = tl.where(v_1D == _finite(v_1D), 0.0, v_1D)
                    out_TD += tl.where((s <= t_T)[:, None], v_1D, 0.0)
    _store(OUT, out_strides, start_t, queries, out_TD, TILE_T, PADDED, HEAD)
    row = tl.program_id(0).to(tl.int64) * queries
    tl.store(LOGSUMEXP + row + t_T, largest_T * LN_2 + tl.log(total_T), mask=t_T < queries)


@triton.jit
def flash_backward_q(
    Q, K, V, OUT, DOUT, DQ, LOGSUMEXP, MEAN, q_strides, k_strides, v_strides, out_strides, dout_strides, dq_strides,
    heads, queries, keys,
    SCALE: tl.constexpr, CAUSAL: tl.constexpr, HEAD: tl.constexpr, PADDED: tl.constexpr,
    PRECISION: tl.constexpr, TILE_T: tl.constexpr, TILE_S: tl.constexpr,
):  # fmt: skip
    """Compute the gradient of a tile of queries.

    Also writes MEAN, which `flash_backward_kv` reads. It is the paper's D: the means of dP over the keys, weighted by
    P, which equal the sums of dO * O over the features."""
    # the last tiles come first: under a mask they take longest, and would end last
    start_t = (tl.num_programs(1) - 1 - tl.program_id(1)) * TILE_T
    t_T = start_t + tl.arange(0, TILE_T)
    row = tl.program_id(0).to(tl.int64) * queries
    Q = _of_head(Q, q_strides, heads)
    K = _of_head(K, k_strides, heads)
    V = _of_head(V, v_strides, heads)
    DQ = _of_head(DQ, dq_strides, heads)
    out_TD = _load(_of_head(OUT, out_strides, heads), out_strides, start_t, queries, TILE_T, PADDED, HEAD, True)
    dout_TD = _load(_of_head(DOUT, dout_strides, heads), dout_strides, start_t, queries, TILE_T, PADDED, HEAD, True)
    sum_type = LOGSUMEXP.dtype.element_ty
    mean_T = tl.sum(out_TD.to(sum_type) * dout_TD.to(sum_type), 1)
    tl.store(MEAN + row + t_T, mean_T, mask=t_T < queries)
    q_TD = _load(Q, q_strides, start_t, queries, TILE_T, PADDED, HEAD, True)
    exponent_T = tl.load(LOGSUMEXP + row + t_T, mask=t_T < queries, other=float("inf")) * LOG2_E
    dq_TD = tl.zeros((TILE_T, PADDED), sum_type)
    bounds = _bounds_of_keys(start_t, keys, CAUSAL, TILE_T, TILE_S)
    for MASKED in tl.static_range(2):
        for start_s in tl.range(bounds[MASKED], bounds[MASKED + 1], TILE_S):
            k_SD = _load(K, k_strides, start_s, keys, TILE_S, PADDED, HEAD, MASKED)
            v_SD = _load(V, v_strides, start_s, keys, TILE_S, PADDED, HEAD, MASKED)
            scores_TS = tl.dot(q_TD, k_SD.T, input_precision=PRECISION, out_dtype=sum_type)
            weights_TS = tl.exp2(scores_TS * SCALE - exponent_T[:, None])
            dweights_TS = tl.dot(dout_TD, v_SD.T, input_precision=PRECISION, out_dtype=sum_type)
            dscores_TS = weights_TS * (dweights_TS - mean_T[:, None])
            if MASKED:
                dscores_TS = tl.where(_seen(t_T, start_s + tl.arange(0, TILE_S), keys, CAUSAL), dscores_TS, 0.0)
                # as in the forward pass; a query that sees such a key has no finite gradient anyway
                k_SD = _finite(k_SD)
            dq_TD = tl.dot(dscores_TS.to(k_SD.dtype), k_SD, dq_TD, input_precision=PRECISION, out_dtype=sum_type)
    _store(DQ, dq_strides, start_t, queries, dq_TD * (SCALE * LN_2), TILE_T, PADDED, HEAD)


@triton.jit
def flash_backward_kv(
    Q, K, V, DOUT, DK, DV, LOGSUMEXP, MEAN, q_strides, k_strides, v_strides, dout_strides, dk_strides, dv_strides,
    heads, queries, keys,
    SCALE: tl.constexpr, CAUSAL: tl.constexpr, HEAD: tl.constexpr, PADDED: tl.constexpr,
    PRECISION: tl.constexpr, TILE_T: tl.constexpr, TILE_S: tl.constexpr,
):  # fmt: skip
    """Compute the gradients of a tile of keys and of its values."""
    # tiles keep their order: under a mask the first take longest, and so start first
    start_s = tl.program_id(1) * TILE_S
    s_S = start_s + tl.arange(0, TILE_S)
    row = tl.program_id(0).to(tl.int64) * queries
    Q = _of_head(Q, q_strides, heads)
    DOUT = _of_head(DOUT, dout_strides, heads)
    k_SD = _load(_of_head(K, k_strides, heads), k_strides, start_s, keys, TILE_S, PADDED, HEAD, True)
    v_SD = _load(_of_head(V, v_strides, heads), v_strides, start_s, keys, TILE_S, PADDED, HEAD, True)
    sum_type = LOGSUMEXP.dtype.element_ty
    dk_SD = tl.zeros((TILE_S, PADDED), sum_type)
    dv_SD = tl.zeros((TILE_S, PADDED), sum_type)
    first = 0  # the first query of the first tile that sees any of the keys
    whole = 0  # the first query of the first tile that sees all of them
    if CAUSAL:
        first = start_s // TILE_T * TILE_T
        whole = tl.minimum(tl.cdiv(start_s + TILE_S - 1, TILE_T) * TILE_T, queries)
    # tiles on the diagonal (part 0), tiles seen whole, which need no mask (1), and a last tile that is not full (2)
    WHOLE: tl.constexpr = 1
    bounds = first, whole, tl.maximum(whole, queries // TILE_T * TILE_T), queries
    for part in tl.static_range(3):
        for start_t in tl.range(bounds[part], bounds[part + 1], TILE_T):
            t_T = start_t + tl.arange(0, TILE_T)
            q_TD = _load(Q, q_strides, start_t, queries, TILE_T, PADDED, HEAD, part != WHOLE)
            dout_TD = _load(DOUT, dout_strides, start_t, queries, TILE_T, PADDED, HEAD, part != WHOLE)
            if part != WHOLE:
                # beyond the last query an infinite log-sum-exp makes the weights zero
                exponent_T = tl.load(LOGSUMEXP + row + t_T, mask=t_T < queries, other=float("inf")) * LOG2_E
                mean_T = tl.load(MEAN + row + t_T, mask=t_T < queries, other=0.0)
            else:
                exponent_T = tl.load(LOGSUMEXP + row + t_T) * LOG2_E
                mean_T = tl.load(MEAN + row + t_T)
            scores_ST = tl.dot(k_SD, q_TD.T, input_precision=PRECISION, out_dtype=sum_type)
            weights_ST = tl.exp2(scores_ST * SCALE - exponent_T[None, :])
            # keys beyond the last need no mask: they reach only rows of the gradients that are not stored
            if part != WHOLE and CAUSAL:
                weights_ST = tl.where(s_S[:, None] <= t_T[None, :], weights_ST, 0.0)
            dv_SD = tl.dot(weights_ST.to(dout_TD.dtype), dout_TD, dv_SD, input_precision=PRECISION, out_dtype=sum_type)
            dweights_ST = tl.dot(v_SD, dout_TD.T, input_precision=PRECISION, out_dtype=sum_type)
            dscores_ST = weights_ST * (dweights_ST - mean_T[None, :])
            dk_SD = tl.dot(dscores_ST.to(q_TD.dtype), q_TD, dk_SD, input_precision=PRECISION, out_dtype=sum_type)
    _store(_of_head(DK, dk_strides, heads), dk_strides, start_s, keys, dk_SD * (SCALE * LN_2), TILE_S, PADDED, HEAD)
    _store(_of_head(DV, dv_strides, heads), dv_strides, start_s, keys, dv_SD, TILE_S, PADDED, HEAD)
