"""Measure how long several processes take to add up, gather or scatter one tensor."""

from dataclasses import dataclass, field
from typing import ClassVar

import torch
import torch.distributed as dist

from lib import timing, validate
from lib.cost import flops
from lib.experiments.case import Work
from lib.experiments.on_ranks import BACKENDS, OnRanks
from lib.parallel import collectives
from lib.timing import Mark
from lib.validate import one_of

OPERATIONS = ("all_reduce", "all_gather", "reduce_scatter")
WIDTH = 4  # bytes of a number in fp32
HELD = 4  # messages in memory: input, output, and buffers of the backend
LEAST = 1e-3  # megabytes
CHECKED = 2**16  # numbers of a result
TOLERANCE = 1e-6


@dataclass(frozen=True)
class Collectives(OnRanks):
    """One collective operation of `world` ranks on fp32 numbers.

    The message has `megabytes` x 10^6 bytes. Every rank has it before and after an `all_reduce`; before a
    `reduce_scatter` and after an `all_gather`, of which it otherwise has a share. With gloo it is in the processor's
    memory, with nccl in that of GPUs. Raises ValueError for an unknown or impossible value."""

    experiment: ClassVar[str] = "collectives"
    operation: str = one_of(OPERATIONS)
    megabytes: float
    world: int = field(metadata={"least": 2})
    backend: str = one_of(BACKENDS)
    device: str

    def __post_init__(self):
        super().__post_init__()
        validate.at_least("megabytes", self.megabytes, LEAST)
        validate.at_most("megabytes", self.megabytes)

    @property
    def numbers(self) -> int:
        """Return the numbers of a message, the same for every rank."""
        return int(1e6 * self.megabytes / WIDTH) // self.world * self.world

    def rank_bytes(self) -> int:
        """Predict the peak of a rank: its messages and those of the backend."""
        return HELD * WIDTH * self.numbers

    def costs(self) -> flops.Costs:
        """Return the costs of an iteration: each rank copies a message to its neighbour and adds it."""
        return flops.Costs(bytes=3 * WIDTH * self.numbers * self.world, operations=self.world)

    def setup(self) -> Work:
        """Fill the messages: number i of rank r is i mod 7 + r. Checks the first ones of the result."""
        rank = dist.get_rank()
        own = torch.arange(7.0, device=self.place).repeat(-(-self.numbers // 7))[: self.numbers].add_(rank)
        share = self.numbers // self.world
        mine = slice(rank * share, (rank + 1) * share)
        into = own.clone() if self.operation != "reduce_scatter" else own[mine].clone()
        run, before = {
            "all_reduce": (lambda: collectives.all_reduce(into), lambda: into.copy_(own)),
            "all_gather": (lambda: collectives.all_gather(into, own[mine]), timing.nothing),
            "reduce_scatter": (lambda: collectives.reduce_scatter(into, own), timing.nothing),
        }[self.operation]

        def iteration(mark: Mark) -> None:
            run()
            mark("collective")

        def expected() -> dict[str, torch.Tensor]:
            first = rank * share if self.operation == "reduce_scatter" else 0
            numbers = torch.arange(first, first + min(CHECKED, len(into)), dtype=torch.float64)
            if self.operation == "all_gather":
                return {"out": numbers.remainder(7) + numbers.div(share, rounding_mode="floor")}
            return {"out": numbers.remainder(7) * self.world + sum(range(self.world))}

        facts = {"message_bytes": WIDTH * self.numbers} | self.threads()
        return Work(
            self.place, iteration, expected, lambda: {"out": into[:CHECKED]}, TOLERANCE, facts, before=before,
            repeats=True, clock=self.clock(),
        )  # fmt: skip
