"""Add up, gather or scatter one flat tensor among all ranks.

With `wait=False` they return at once, with the work to wait for.
"""

import torch.distributed as dist
from torch import Tensor

# names before and from PyTorch 2.13 on
_gather = getattr(dist, "all_gather_single", None) or dist.all_gather_into_tensor
_scatter = getattr(dist, "reduce_scatter_single", None) or dist.reduce_scatter_tensor


def all_reduce(x_N: Tensor, average: bool = False, wait: bool = True) -> dist.Work | None:
    """Replace every rank's numbers by their sum over the ranks, or by their `average`."""
    return dist.all_reduce(x_N, _sum(average), async_op=not wait)


def all_gather(out_WN: Tensor, x_N: Tensor, wait: bool = True) -> dist.Work | None:
    """Write the numbers of all W ranks, in order, into every rank's output."""
    return _gather(out_WN, x_N, async_op=not wait)


def reduce_scatter(out_N: Tensor, x_WN: Tensor, average: bool = False, wait: bool = True) -> dist.Work | None:
    """Write into each rank's output its own part of the sum over the ranks, or of the `average`."""
    return _scatter(out_N, x_WN, _sum(average), async_op=not wait)


def _sum(average: bool) -> dist.ReduceOp.RedOpType:
    return dist.ReduceOp.AVG if average else dist.ReduceOp.SUM
