"""Time several processes that add up, gather, scatter or copy one tensor."""

import math
from dataclasses import dataclass, field
from typing import ClassVar

import torch
import torch.distributed as dist

from lib import timing, validate
from lib.experiments.case import Work
from lib.experiments.on_ranks import BACKEND_NAMES, OnRanks
from lib.parallel import collectives
from lib.timing import Mark
from lib.validate import one_of

OPERATIONS = ("all_reduce", "all_gather", "reduce_scatter", "broadcast")
WIDTH = 4  # bytes of a number in fp32
LEAST = 1e-3  # megabytes
CHECKED = 2**16  # numbers of a result, or up to twice as many
TOLERANCE = 1e-6


@dataclass(frozen=True)
class Collectives(OnRanks):
    """Run one collective operation of `world` ranks on fp32 numbers.

    A message has about `megabytes` x 10^6 bytes. What a rank has before and after:

    - `all_reduce`: a message of its own; the sum of all.
    - `all_gather`: its share of the message; the whole.
    - `reduce_scatter`: a message of its own; its share of the sum of all.
    - `broadcast`: the message on rank 0 alone; the message on every rank.

    With gloo it is in the processor's memory, with nccl in that of GPUs. Raises ValueError for a bad value."""

    experiment: ClassVar[str] = "collectives"
    operation: str = one_of(OPERATIONS, "all_reduce")
    megabytes: float = 0.01
    world: int = field(default=2, metadata={"least": 2})
    backend: str = one_of(BACKEND_NAMES, "auto")
    device: str = "auto"

    def __post_init__(self):
        super().__post_init__()
        validate.at_least("megabytes", self.megabytes, LEAST)
        validate.at_most("megabytes", self.megabytes)

    @property
    def numbers(self) -> int:
        """Return how many numbers a message has, rounded down to a multiple of `world`."""
        return int(1e6 * self.megabytes / WIDTH) // self.world * self.world

    def setup(self) -> Work:
        """Set number i of rank r to i mod 7 + r; check every `step`-th of the result."""
        rank = dist.get_rank()
        share = self.numbers // self.world
        copies = math.ceil(self.numbers / 7)
        message = torch.arange(7.0, device=self.place).repeat(copies)[: self.numbers].add_(rank)
        part = message[rank * share : (rank + 1) * share]
        out = torch.zeros_like(part if self.operation == "reduce_scatter" else message)
        # some numbers of each rank's share are checked: in all_gather this rank's own is right even if nothing arrived
        step = max(1, len(out) // CHECKED)
        if step % 7 == 0:
            # only one of the seven numbers would be checked, and of rank 0 that is zero
            step += 1
        # all_reduce and broadcast work in place
        out.copy_(message[: len(out)])

        def refill() -> None:
            # sums of sums would grow until they overflow
            out.copy_(message)

        operate, before = {
            "all_reduce": (lambda: dist.all_reduce(out), refill),
            "all_gather": (lambda: collectives.all_gather(out, part), timing.nothing),
            "reduce_scatter": (lambda: collectives.reduce_scatter(out, message), timing.nothing),
            "broadcast": (lambda: collectives.broadcast(out, 0).wait(), timing.nothing),
        }[self.operation]

        def iteration(mark: Mark) -> None:
            operate()
            mark("collective")

        def expected() -> dict[str, torch.Tensor]:
            index = torch.arange(0, len(out), step, dtype=torch.float64)
            if self.operation == "reduce_scatter":
                # the part of this rank begins there
                index += rank * share
            of_rank_0 = index.remainder(7)
            if self.operation == "broadcast":
                return {"out": of_rank_0}
            if self.operation == "all_gather":
                # share r comes from rank r, whose numbers are r larger
                return {"out": of_rank_0 + index.div(share, rounding_mode="floor")}
            # the sum over ranks r, whose numbers are r larger
            return {"out": of_rank_0 * self.world + sum(range(self.world))}

        facts = {"message_bytes": WIDTH * self.numbers}
        return Work(
            self.place, iteration, expected, lambda: {"out": out[::step]}, TOLERANCE, facts, before=before,
            clock=self.clock(),
        )  # fmt: skip
