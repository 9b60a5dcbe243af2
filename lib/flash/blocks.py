"""Compute attention in blocks of keys, in plain and in compiled PyTorch.

It is FlashAttention-2 (Dao 2023, algorithms 1 and 2). For the backward pass it keeps Q, K, V, the output, and the
natural log-sum-exp (..., T) of each query's scores: T (4 D + 1) numbers instead of T^2. Shapes in names: X any leading
dimensions, T queries, S keys, N keys of a block, R queries that see any of them, D head size.
"""

import functools
import math

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

BLOCK = 128  # keys of a block in PyTorch
COMPILED_BLOCK = 256  # keys of a compiled block: larger ones, since each call of compiled code takes long


class FlashAttentionTorch(torch.autograd.Function):
    """Compute an online softmax, with at most T x `block` scores a head.

    If `compiled`, torch.compile fuses the work on the scores of a block."""

    @staticmethod
    def forward(ctx, Q, K, V, is_causal=False, block=BLOCK, compiled=False):
        weigh = _compile(_weigh) if compiled else _weigh
        q_XTD = _as_3d(Q)
        k_XSD = _as_3d(K)
        v_XSD = _as_3d(V)
        if is_causal:
            # zero, the weight of a future value, times infinity is no number
            v_XSD = v_XSD.nan_to_num(0.0, 0.0, 0.0)
        out_XTD = torch.zeros_like(q_XTD, dtype=torch.promote_types(q_XTD.dtype, torch.float32))
        largest_XT1 = out_XTD.new_full((*q_XTD.shape[:-1], 1), -math.inf)
        total_XT1 = torch.zeros_like(largest_XT1)
        for keys, rows, future_NN in _blocks(q_XTD, k_XSD, is_causal, block):
            scores_XRN = _scores(q_XTD[..., rows, :], k_XSD[..., keys, :], future_NN)
            shrink_XR1 = weigh(scores_XRN, largest_XT1[..., rows, :], total_XT1[..., rows, :])
            # in place, scores became weights
            weights_XRN = scores_XRN
            _add_product(out_XTD[..., rows, :].mul_(shrink_XR1), weights_XRN, v_XSD[..., keys, :])
            del scores_XRN, weights_XRN  # before the next block has its own
        out_XTD.div_(total_XT1)
        if is_causal:
            # values that are not finite were left out: each query gets the sum of those that it sees
            v_XSD.view(V.shape).neg_().add_(V)
            seen_XSD = v_XSD.cumsum_(-2)
            out_XTD[..., : seen_XSD.shape[-2], :] += seen_XSD[..., : out_XTD.shape[-2], :]
            out_XTD[..., seen_XSD.shape[-2] :, :] += seen_XSD[..., -1:, :]
        out = out_XTD.to(Q.dtype).reshape(Q.shape)
        logsumexp = total_XT1.log_().add_(largest_XT1).reshape(Q.shape[:-1])
        ctx.save_for_backward(Q, K, V, out, logsumexp)
        ctx.causal = is_causal
        ctx.block = block
        ctx.compiled = compiled
        return out

    @staticmethod
    @once_differentiable  # a second derivative would be wrong, since the log-sum-exp would count as a constant
    def backward(ctx, dout):
        weigh_again = _compile(_weigh_again) if ctx.compiled else _weigh_again
        Q, K, V, out, logsumexp = ctx.saved_tensors
        scale = 1 / math.sqrt(Q.shape[-1])
        q_XTD = _as_3d(Q)
        k_XSD = _as_3d(K)
        v_XSD = _as_3d(V)
        dout_XTD = _as_3d(dout)
        logsumexp_XT1 = _as_3d(logsumexp[..., None])
        # mean of dP over the keys, weighted by P; it equals the sum of out * dout over the features
        mean_XT1 = _as_3d((dout.to(logsumexp.dtype) * out).sum(-1, keepdim=True))
        # a sum over blocks: a narrow type would round it at each of them
        dq_XTD = torch.zeros_like(q_XTD, dtype=logsumexp.dtype)
        dk_XSD = torch.zeros_like(k_XSD)
        dv_XSD = torch.zeros_like(v_XSD)
        for keys, rows, future_NN in _blocks(q_XTD, k_XSD, ctx.causal, ctx.block):
            q_XRD = q_XTD[..., rows, :]
            dout_XRD = dout_XTD[..., rows, :]
            k_XND = k_XSD[..., keys, :]
            scores_XRN = _scores(q_XRD, k_XND, future_NN)
            dweights_XRN = _product(dout_XRD, v_XSD[..., keys, :].mT)
            _hide(dweights_XRN, future_NN, 0.0)
            weigh_again(scores_XRN, dweights_XRN, logsumexp_XT1[..., rows, :], mean_XT1[..., rows, :])
            # in place, scores became weights, and gradients of weights those of scores
            weights_XRN = scores_XRN
            dscores_XRN = dweights_XRN
            dv_XSD[..., keys, :] = _product(weights_XRN.mT, dout_XRD)
            dk_XSD[..., keys, :] = _product(dscores_XRN.mT, q_XRD, scale)
            if ctx.causal:
                # as in the forward pass; a query that sees such a key has no finite gradient anyway
                k_XND = k_XND.nan_to_num(0.0, 0.0, 0.0)
            _add_product(dq_XTD[..., rows, :], dscores_XRN, k_XND, scale)
            # before the next block has its own
            del scores_XRN, dweights_XRN, weights_XRN, dscores_XRN
        dQ = dq_XTD.to(Q.dtype).reshape(Q.shape)
        return dQ, dk_XSD.reshape(K.shape), dv_XSD.reshape(V.shape), None, None, None


@functools.cache
def _compile(function):
    return torch.compile(function, dynamic=True, fullgraph=True)  # under a mask each block has its own shape


def _as_3d(x: Tensor) -> Tensor:
    """View or copy a tensor in three dimensions, which batched products take."""
    return x.reshape(-1, *x.shape[-2:])


def _blocks(q_XTD, k_XSD, causal, block):
    """Yield slices of keys, the slice of queries that see any of them, and a mask.

    The mask is for the first queries: True where a key is in a query's future. Later queries see all keys.
    It is None without `causal`. The last slice may reach beyond the end."""
    future_NN = None
    end = k_XSD.shape[-2]
    if causal:
        future_NN = torch.ones(block, block, dtype=torch.bool, device=q_XTD.device).triu_(1)
        # keys after the last query are seen by none
        end = min(end, q_XTD.shape[-2])
    for start in range(0, end, block):
        yield slice(start, start + block), slice(start if causal else 0, None), future_NN


def _scores(q_XRD, k_XND, future_NN):
    """Compute Q K^T / sqrt(D) in at least fp32, with -inf for keys in the future."""
    scores_XRN = _product(q_XRD, k_XND.mT, 1 / math.sqrt(q_XRD.shape[-1]))
    _hide(scores_XRN, future_NN, -math.inf)
    return scores_XRN


def _hide(x_XRN: Tensor, future_NN: Tensor | None, value: float) -> None:
    """Write `value` where a key is in the future, whatever is there."""
    if future_NN is not None:
        first_XNN = x_XRN[..., : len(future_NN), :]
        first_XNN.masked_fill_(future_NN[: first_XNN.shape[-2], : first_XNN.shape[-1]], value)


def _product(a: Tensor, b: Tensor, scale: float = 1.0) -> Tensor:
    """Multiply batches of matrices, and by `scale`, in at least fp32."""
    wide = torch.promote_types(b.dtype, torch.float32)
    if b.is_cuda and b.dtype != wide:
        # tensor cores multiply narrow numbers, and add up in fp32
        return torch.bmm(a.to(b.dtype), b, out_dtype=wide).mul_(scale)
    # beta=0 ignores the first operand
    return torch.baddbmm(b.new_empty((), dtype=wide), a.to(wide), b.to(wide), beta=0, alpha=scale)


def _add_product(total: Tensor, a: Tensor, b: Tensor, scale: float = 1.0) -> None:
    """Add a scaled product in place, in one call if the factors have the sum's type."""
    if total.dtype == b.dtype:
        total.baddbmm_(a, b, alpha=scale)
    else:
        total.add_(_product(a, b, scale))


def _weigh(scores_XRN, largest_XR1, total_XR1):
    """Turn scores into weights before their division; update maximum and total.

    Returns the factor by which earlier sums shrink."""
    new_XR1 = torch.maximum(largest_XR1, scores_XRN.amax(-1, keepdim=True))
    scores_XRN.sub_(new_XR1).exp_()
    shrink_XR1 = torch.exp(largest_XR1 - new_XR1)
    total_XR1.mul_(shrink_XR1).add_(scores_XRN.sum(-1, keepdim=True))
    largest_XR1.copy_(new_XR1)
    return shrink_XR1


def _weigh_again(scores_XRN, dweights_XRN, logsumexp_XR1, mean_XR1):
    """Turn scores into weights, and gradients of weights into those of scores."""
    scores_XRN.sub_(logsumexp_XR1).exp_()
    dweights_XRN.sub_(mean_XR1).mul_(scores_XRN)
