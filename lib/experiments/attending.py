"""Share what cases with a variant of attention need.

It says why a variant cannot run here, and computes a reference that holds few scores at a time.
"""

import torch
from torch import Tensor
from torch.utils.checkpoint import checkpoint

from lib import attention
from lib.experiments.case import Case
from lib.instruments import device, environment

SCORES = 2**22  # of a block of queries


def unavailable(case: Case, variant: str, d_head: int) -> str | None:
    """Return why a case cannot run a variant of attention on this machine, or None."""
    missing = None
    if case.compiles or variant == "triton":
        missing = environment.compiler_missing(case.device)
    capability = device.on(case.device).capability()
    return missing or attention.unavailable(variant, case.device, d_head, case.precision, capability)


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
