"""Compute references that hold less memory than what they check: in double on the CPU, in blocks of queries."""

import torch
from torch import Tensor
from torch.utils.checkpoint import checkpoint

from lib import attention

SCORES = 2**22  # of a block of queries
CHECKED = 64  # rows of a large result that are compared


def double(tensor: Tensor) -> Tensor:
    """Copy a tensor to the CPU in double precision, which not every device has."""
    return tensor.detach().cpu().to(torch.float64, copy=True)


def checked(matrix: Tensor) -> Tensor:
    """Copy at most CHECKED rows of a matrix, evenly spaced, to the CPU."""
    return matrix.detach()[:: -(-len(matrix) // CHECKED)].to("cpu", copy=True)


def by_rows(q_XTD: Tensor, k_XSD: Tensor, v_XSD: Tensor, causal: bool = True) -> Tensor:
    """Compute `attention.naive` for a block of queries at a time.

    A block holds at most SCORES scores, or those of one query, until its end; the backward pass computes them again."""
    size = max(1, SCORES // k_XSD[..., 0].numel())
    blocks = []
    for first in range(0, q_XTD.shape[-2], size):
        rows, seen = slice(first, first + size), slice(first + size if causal else None)
        inputs = q_XTD[..., rows, :], k_XSD[..., seen, :], v_XSD[..., seen, :]
        again = {"use_reentrant": False, "preserve_rng_state": False}
        blocks.append(checkpoint(attention.naive, *inputs, causal, first, **again))
    return torch.cat(blocks, dim=-2)


def block_bytes(heads: int, seq_len: int, width: int) -> int:
    """Return the most bytes of the scores and their like that `by_rows` holds, in numbers of `width` bytes."""
    scores = min(max(SCORES, heads * seq_len), heads * seq_len**2)
    return (4 * width + 1) * scores
