"""Start averages and copies of flat tensors among the ranks, which go on while they compute.

Each returns a `Pending` to wait for. Given a list as `log`, each appends a `Noted`, from which a timeline can be drawn.
"""

import itertools
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass

import torch
import torch.distributed as dist
from torch import Tensor, nn

from lib.parallel import collectives


@dataclass
class Noted:
    """Hold when a collective was issued and finished, and the bytes of its whole tensor.

    Times are those of `time.perf_counter_ns`, a clock that all processes share on Linux. A GPU's collective counts as
    finished once it is queued."""

    name: str
    bytes: int
    issued_ns: int
    finished_ns: int = 0


class Pending:
    """Wait for what was issued, then do the rest of the work on the result."""

    def __init__(self, works: Iterable, noted: Noted | None, rest: Callable[[], object] = lambda: None):
        self.works, self.rest = list(works), rest
        if noted is not None:

            def finished(_):
                noted.finished_ns = time.perf_counter_ns()

            self.works += [work.get_future().then(finished) for work in self.works]

    def wait(self) -> None:
        for work in self.works:
            work.wait()
        self.rest()


def average(tensor: Tensor, name: str, log: list | None = None) -> Pending:
    """Replace a tensor by its average over the ranks."""
    noted = _note(name, tensor, log)
    return Pending([collectives.all_reduce(tensor, average=True, wait=False)], noted)


def broadcast(tensor: Tensor, source: int, name: str, log: list | None = None) -> Pending:
    """Copy a tensor of the rank `source` into that of every other."""
    noted = _note(name, tensor, log)
    return Pending([dist.broadcast(tensor, source, async_op=True)], noted)


def gather(whole: Tensor, name: str, log: list | None = None) -> Pending:
    """Fill `whole`, of which each rank has written its own part: the first 1/world is rank 0's, and so on.

    With gloo each rank broadcasts its part, since gloo's all-gather copies everything twice."""
    noted = _note(name, whole, log)
    parts = whole.chunk(dist.get_world_size())
    if dist.get_backend() == "gloo":
        return Pending([dist.broadcast(part, rank, async_op=True) for rank, part in enumerate(parts)], noted)
    return Pending([collectives.all_gather(whole, parts[dist.get_rank()], wait=False)], noted)


def scatter(part: Tensor, whole: Tensor, name: str, log: list | None = None) -> Pending:
    """Write this rank's part of the average of `whole` over the ranks into `part`.

    The part may have a wider type. With gloo the ranks exchange their parts and average them: gloo's reduce-scatter is
    an all-reduce (PyTorch's pull request 118911), which moves twice the bytes."""
    noted = _note(name, whole, log)
    if dist.get_backend() == "gloo":
        received = torch.empty_like(whole)

        def rest():
            torch.mean(received.view(dist.get_world_size(), -1), 0, dtype=part.dtype, out=part)

        return Pending([dist.all_to_all_single(received, whole, async_op=True)], noted, rest)
    narrow = part if part.dtype == whole.dtype else torch.empty_like(part, dtype=whole.dtype)
    work = collectives.reduce_scatter(narrow, whole, average=True, wait=False)
    return Pending([work], noted, lambda: part.copy_(narrow))


def from_rank_0(module: nn.Module) -> None:
    """Give all ranks the parameters and buffers of rank 0."""
    tensors = [tensor.detach() for tensor in itertools.chain(module.parameters(), module.buffers())]
    for pending in [broadcast(tensor, 0, "start") for tensor in tensors]:
        pending.wait()


def _note(name: str, tensor: Tensor, log: list | None) -> Noted | None:
    if log is None:
        return None
    log.append(Noted(name, tensor.nbytes, time.perf_counter_ns()))
    return log[-1]
