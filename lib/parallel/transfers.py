"""Start averages and copies of flat tensors among the ranks, which go on while they compute.

Each returns a `Pending` to wait for.
"""

import itertools
from collections.abc import Callable
from dataclasses import dataclass

import torch
import torch.distributed as dist
from torch import Tensor, nn

from lib.parallel import collectives


@dataclass
class Pending:
    """Wait for the works that were issued, then do the `rest` with the result."""

    works: list[dist.Work]
    rest: Callable[[], object] = lambda: None

    def wait(self) -> None:
        for work in self.works:
            work.wait()
        self.rest()


def average(tensor: Tensor) -> Pending:
    """Replace a tensor by its average over the ranks."""
    return Pending([collectives.all_reduce(tensor, average=True, wait=False)])


def broadcast(tensor: Tensor, source: int) -> Pending:
    """Copy a tensor of the rank `source` into that of every other."""
    return Pending([dist.broadcast(tensor, source, async_op=True)])


def gather(whole: Tensor) -> Pending:
    """Fill `whole`, of which each rank has written its own part: the first 1/world is rank 0's, and so on.

    With gloo each rank broadcasts its part, since gloo's all-gather copies everything twice."""
    parts = whole.chunk(dist.get_world_size())
    if dist.get_backend() == "gloo":
        return Pending([dist.broadcast(part, rank, async_op=True) for rank, part in enumerate(parts)])
    return Pending([collectives.all_gather(whole, parts[dist.get_rank()], wait=False)])


def scatter(part: Tensor, whole: Tensor) -> Pending:
    """Write this rank's part of the average of `whole` over the ranks into `part`.

    The part may have a wider type. With gloo the ranks exchange their parts and average them: gloo's reduce-scatter is
    an all-reduce (PyTorch's pull request 118911), which moves twice the bytes."""
    if dist.get_backend() == "gloo":
        received = torch.empty_like(whole)

        def rest():
            torch.mean(received.view(dist.get_world_size(), -1), 0, dtype=part.dtype, out=part)

        return Pending([dist.all_to_all_single(received, whole, async_op=True)], rest)
    narrow = part if part.dtype == whole.dtype else torch.empty_like(part, dtype=whole.dtype)
    work = collectives.reduce_scatter(narrow, whole, average=True, wait=False)
    return Pending([work], lambda: part.copy_(narrow))


def from_rank_0(module: nn.Module) -> None:
    """Give all ranks the parameters and buffers of rank 0."""
    tensors = [tensor.detach() for tensor in itertools.chain(module.parameters(), module.buffers())]
    for pending in [broadcast(tensor, 0) for tensor in tensors]:
        pending.wait()
