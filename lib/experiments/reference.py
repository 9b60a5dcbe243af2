"""Compute what results are checked against, with few numbers in memory at a time."""

import torch
from torch import Tensor
from torch.utils.checkpoint import checkpoint

from lib import attention

SCORES = 2**22  # most scores of a block of queries
CHECKED = 64  # rows of a large result that are compared


def double(tensor: Tensor) -> Tensor:
    """Copy a tensor to the CPU in double precision, which not every device has."""
    return tensor.detach().cpu().to(torch.float64, copy=True)


def checked(matrix: Tensor) -> Tensor:
    """Copy at most CHECKED rows of a matrix, evenly spaced, to the CPU."""
    return matrix.detach()[:: -(-len(matrix) // CHECKED)].to("cpu", copy=True)


def by_rows(q_XTD: Tensor, k_XSD: Tensor, v_XSD: Tensor, causal: bool = True) -> Tensor:
    """Compute `attention.naive` for a block of queries at a time.

    A block has at most SCORES scores, or those of one query. They are freed before the next block begins; the backward
    pass computes them again."""
    size = max(1, SCORES // k_XSD[..., 0].numel())
    options = {"use_reentrant": False, "preserve_rng_state": False}
    blocks = []
    for first in range(0, q_XTD.shape[-2], size):
        rows = slice(first, first + size)
        seen = slice(first + size if causal else None)
        inputs = q_XTD[..., rows, :], k_XSD[..., seen, :], v_XSD[..., seen, :]
        blocks.append(checkpoint(attention.naive, *inputs, causal, first, **options))
    return torch.cat(blocks, dim=-2)
