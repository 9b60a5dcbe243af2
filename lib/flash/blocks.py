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
COMPILED_BLOCK = 256  # where compiled: fewer and larger, since each call of compiled code takes long


class FlashAttentionTorch(torch.autograd.Function):
    """Compute an online softmax, with at most T x `block` scores a head.

    If `compiled`, torch.compile fuses the work on the scores of a block."""

    @staticmethod
    def forward(ctx, Q, K, V, is_causal=False, block=BLOCK, compiled=False):
        weigh = _compiled(_weigh) if compiled else _weigh
        q_XTD = _as_3d(Q) / math.sqrt(Q.shape[-1])  # so that products with keys are scores
        k_XSD = _as_3d(K)
        v_XSD = _as_3d(V)
        out_XTD = torch.zeros_like(q_XTD, dtype=torch.promote_types(q_XTD.dtype, torch.float32))
        largest_XT1 = out_XTD.new_full((*q_XTD.shape[:-1], 1), -math.inf)
        total_XT1 = torch.zeros_like(largest_XT1)
        for keys, rows, future_NN in _blocks(q_XTD, k_XSD, is_causal, block):
            scores_XRN = _scores(q_XTD[..., rows, :], k_XSD[..., keys, :], future_NN)
            shrink_XR1 = weigh(scores_XRN, largest_XT1[..., rows, :], total_XT1[..., rows, :])
            # in place, scores became weights
            weights_XRN = scores_XRN
            _add_product(out_XTD[..., rows, :].mul_(shrink_XR1), weights_XRN.to(V.dtype), v_XSD[..., keys, :])
            del scores_XRN, weights_XRN  # before the next block has its own
        out = out_XTD.div_(total_XT1).to(Q.dtype).reshape(Q.shape)
        logsumexp = total_XT1.log_().add_(largest_XT1).reshape(Q.shape[:-1])
        ctx.save_for_backward(Q, K, V, out, logsumexp)
        ctx.causal = is_causal
        ctx.block = block
        ctx.compiled = compiled
        return out

    @staticmethod
    @once_differentiable  # a second derivative would be wrong, since the log-sum-exp would count as a constant
    def backward(ctx, dO):
        weigh_again = _compiled(_weigh_again) if ctx.compiled else _weigh_again
        Q, K, V, out, logsumexp = ctx.saved_tensors
        q_XTD = _as_3d(Q) / math.sqrt(Q.shape[-1])  # so that products with keys are scores
        k_XSD = _as_3d(K)
        v_XSD = _as_3d(V)
        dout_XTD = _as_3d(dO)
        logsumexp_XT1 = _as_3d(logsumexp[..., None])
        # mean of dP over the keys, weighted by P; it equals the sum of O * dO over the features
        mean_XT1 = _as_3d((dO.to(logsumexp.dtype) * out).sum(-1, keepdim=True))
        # a sum over blocks, which a narrow type would round at each of them
        dq_XTD = torch.zeros_like(q_XTD, dtype=logsumexp.dtype)
        dk_XSD = torch.zeros_like(k_XSD)
        dv_XSD = torch.zeros_like(v_XSD)
        for keys, rows, future_NN in _blocks(q_XTD, k_XSD, ctx.causal, ctx.block):
            q_XRD = q_XTD[..., rows, :]
            dout_XRD = dout_XTD[..., rows, :]
            k_XND = k_XSD[..., keys, :]
            scores_XRN = _scores(q_XRD, k_XND, future_NN)
            dweights_XRN = (dout_XRD @ v_XSD[..., keys, :].mT).to(scores_XRN.dtype)
            weigh_again(scores_XRN, dweights_XRN, logsumexp_XT1[..., rows, :], mean_XT1[..., rows, :])
            # in place, scores became weights, and gradients of weights those of scores
            weights_XRN = scores_XRN
            dscores_XRN = dweights_XRN.to(Q.dtype)
            del scores_XRN, dweights_XRN  # under a narrow type, `to` made a copy: the wide gradients go
            dv_XSD[..., keys, :] = weights_XRN.to(Q.dtype).mT @ dout_XRD
            dk_XSD[..., keys, :] = dscores_XRN.mT @ q_XRD
            _add_product(dq_XTD[..., rows, :], dscores_XRN, k_XND)
            del weights_XRN, dscores_XRN  # before the next block has its own
        dQ = dq_XTD.div_(math.sqrt(Q.shape[-1])).to(Q.dtype).reshape(Q.shape)
        return dQ, dk_XSD.reshape(K.shape), dv_XSD.reshape(V.shape), None, None, None


@functools.cache
def _compiled(function):
    return torch.compile(function, dynamic=True, fullgraph=True)  # under a mask each block has its own shape


def _as_3d(x: Tensor) -> Tensor:
    """View or copy a tensor in three dimensions, which batched products take."""
    return x.reshape(-1, *x.shape[-2:])


def _blocks(q_XTD, k_XSD, causal, block):
    """Yield slices of keys, the slice of queries that see any of them, and a mask.

    The mask is for the first queries: -inf where a key is in a query's future, else 0. Later queries see all keys.
    It is None without `causal`. The last slice may reach beyond the end."""
    future_NN = None
    end = k_XSD.shape[-2]
    if causal:
        future_NN = q_XTD.new_full((block, block), -math.inf).triu_(1)
        # keys after the last query are seen by none
        end = min(end, q_XTD.shape[-2])
    for start in range(0, end, block):
        yield slice(start, start + block), slice(start if causal else 0, None), future_NN


def _scores(q_XRD, k_XND, future_NN):
    """Compute scores in the inputs' type; return them in at least fp32.

    They are -inf where a key is in the future, or NaN if that score overflowed, as it can in fp16."""
    scores_XRN = q_XRD @ k_XND.mT
    if future_NN is not None:
        first_XNN = scores_XRN[..., : len(future_NN), :]
        first_XNN.add_(future_NN[: first_XNN.shape[-2], : first_XNN.shape[-1]])
    return scores_XRN.to(torch.promote_types(scores_XRN.dtype, torch.float32))


def _add_product(sum: Tensor, a: Tensor, b: Tensor) -> None:
    """Add a product to a sum in place, in one call if the factors have its type."""
    if sum.dtype == a.dtype:
        sum.baddbmm_(a, b)
    else:
        sum.add_(a @ b)


def _weigh(scores_XRN, largest_XR1, total_XR1):
    """Turn scores into weights not yet divided by their total; update maximum and total.

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
