"""Move tensors among the ranks: add them up, gather, scatter and copy them.

Training in parallel is built of the functions that start a transfer, which goes on while the rank computes. A work that
they return has a `wait`; on a GPU it makes the stream wait.
"""

import itertools

import torch
import torch.distributed as dist
from torch import Tensor, nn

# PyTorch 2.13 renamed both
all_gather = getattr(dist, "all_gather_single", None) or dist.all_gather_into_tensor
reduce_scatter = getattr(dist, "reduce_scatter_single", None) or dist.reduce_scatter_tensor


def average(x: Tensor) -> dist.Work:
    """Begin to average a contiguous tensor in place, to equal bits on all ranks."""
    return dist.all_reduce(x, dist.ReduceOp.AVG, async_op=True)


def broadcast(x: Tensor, source: int) -> dist.Work:
    """Begin to copy a contiguous tensor of rank `source` to every other rank."""
    return dist.broadcast(x, source, async_op=True)


def gather(whole: Tensor) -> list[dist.Work]:
    """Begin to fill `whole`, of which each rank has written its rows.

    Rank 0 has the first. The number of its rows is a multiple of the world's size."""
    parts = whole.chunk(dist.get_world_size())
    if dist.get_backend() == "nccl":
        return [all_gather(whole, parts[dist.get_rank()], async_op=True)]
    # gloo's all-gather copies everything twice, so each rank sends its part to the others
    return [broadcast(part, rank) for rank, part in enumerate(parts)]


def scatter(whole: Tensor) -> tuple[dist.Work, Tensor]:
    """Begin to average this rank's rows of every rank's `whole`.

    Returns the transfer and what it receives, whose mean over dimension 0 is the average."""
    world = dist.get_world_size()
    parts = whole.view(world, len(whole) // world, *whole.shape[1:])
    if dist.get_backend() == "nccl":
        received = torch.empty_like(parts[:1])
        return reduce_scatter(received, whole, dist.ReduceOp.AVG, async_op=True), received
    # gloo's reduce-scatter is an all-reduce (github.com/pytorch/pytorch/pull/118911), which moves twice the bytes:
    # so the ranks only exchange their parts; the caller averages what it received, perhaps in a wider type
    received = torch.empty_like(parts)
    return dist.all_to_all_single(received, parts, async_op=True), received


def from_rank_0(module: nn.Module) -> None:
    """Give all ranks the parameters and buffers of rank 0."""
    for tensor in itertools.chain(module.parameters(), module.buffers()):
        broadcast(tensor.detach(), 0).wait()
