"""Move tensors among the ranks: add them up, gather, scatter and copy them.

The experiment `collectives` measures the first three and `broadcast`. All but the first three, of which training in
parallel is built, start a transfer that goes on while the rank computes, and return a `Pending` to wait for.
"""

import itertools
from collections.abc import Callable
from dataclasses import dataclass

import torch
import torch.distributed as dist
from torch import Tensor, nn

# PyTorch 2.13 renamed both
_all_gather = getattr(dist, "all_gather_single", None) or dist.all_gather_into_tensor
_reduce_scatter = getattr(dist, "reduce_scatter_single", None) or dist.reduce_scatter_tensor


def all_reduce(x_N: Tensor) -> None:
    """Replace every rank's numbers by their sum over the ranks."""
    dist.all_reduce(x_N)


def all_gather(out_WN: Tensor, x_N: Tensor) -> None:
    """Write the numbers of all W ranks, in order, into every rank's output."""
    _all_gather(out_WN, x_N)


def reduce_scatter(out_N: Tensor, x_WN: Tensor) -> None:
    """Write into each rank's output its own part of the sum over the W ranks."""
    _reduce_scatter(out_N, x_WN)


@dataclass
class Pending:
    """Wait for the works that were started, then `finish` with their result."""

    works: list[dist.Work]
    finish: Callable[[], object] | None = None

    def wait(self) -> None:
        """Return once the result is there; on a GPU, once its stream waits for it."""
        for work in self.works:
            work.wait()
        if self.finish is not None:
            self.finish()


def average(x: Tensor) -> Pending:
    """Replace a contiguous tensor by its average over the ranks, with equal bits."""
    return Pending([dist.all_reduce(x, dist.ReduceOp.AVG, async_op=True)])


def broadcast(x: Tensor, source: int) -> Pending:
    """Copy a contiguous tensor of the rank `source` into that of every other."""
    return Pending([dist.broadcast(x, source, async_op=True)])


def gather(whole: Tensor) -> Pending:
    """Fill `whole`: each rank has written its own part of the rows, rank 0 the first."""
    parts = whole.chunk(dist.get_world_size())
    if dist.get_backend() == "nccl":
        return Pending([_all_gather(whole, parts[dist.get_rank()], async_op=True)])
    # gloo's all-gather copies everything twice, so each rank sends its part to the others
    return Pending([dist.broadcast(part, rank, async_op=True) for rank, part in enumerate(parts)])


def scatter(part: Tensor, whole: Tensor) -> Pending:
    """Write this rank's part of the average of `whole` into `part`, perhaps wider."""
    if dist.get_backend() == "nccl":
        narrow = torch.empty_like(part, dtype=whole.dtype)
        work = _reduce_scatter(narrow, whole, dist.ReduceOp.AVG, async_op=True)
        return Pending([work], lambda: part.copy_(narrow))
    # gloo's reduce-scatter is an all-reduce (github.com/pytorch/pytorch/pull/118911), which moves twice the bytes:
    # so the ranks exchange their parts, and each averages what it received in the wider type
    received = torch.empty_like(whole)
    work = dist.all_to_all_single(received, whole, async_op=True)
    of_each_rank = received.view(dist.get_world_size(), *part.shape)
    return Pending([work], lambda: torch.mean(of_each_rank, 0, dtype=part.dtype, out=part))


def from_rank_0(module: nn.Module) -> None:
    """Give all ranks the parameters and buffers of rank 0."""
    for tensor in itertools.chain(module.parameters(), module.buffers()):
        broadcast(tensor.detach(), 0).wait()
