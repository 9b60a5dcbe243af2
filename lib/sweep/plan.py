"""Plan a sweep on this machine: which kernel measures which cases, and when.

The order is that of tiers, then of rounds, then of the experiments in the file. One small case of each experiment comes
before all others, so that what cannot work is known within minutes.
"""

import itertools
import math
import os
import random
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path

from lib import catalog, records
from lib.experiments import cases
from lib.instruments import environment, processor
from lib.instruments.device import on
from lib.sweep.shard import Shard
from lib.sweep.sweep_file import Block


@dataclass(frozen=True)
class Entry:
    """Hold a case of the grid of `axes`; `seconds` to sample it, its `timeout` in s."""

    label: str
    case: dict
    axes: dict
    seconds: float
    timeout: float


@dataclass(frozen=True)
class Job:
    """Hold the cases of an experiment that one kernel measures in a round, in order.

    Those with the same axes follow one another: one execution of the notebook measures them. If the kernel must end
    early, further ones go on. A job is plain values, which can be sent to another machine. A job that is `alone` needs
    the whole machine."""

    experiment: str
    round: int
    device: str
    machine: str
    alone: bool
    entries: tuple[Entry, ...]

    def file(self, entry: Entry) -> Path:
        """Return the file of an entry's record."""
        return records.path(self.machine, self.experiment, entry.case, self.round)


@dataclass
class Plan:
    """Hold the jobs in order, and why cases are left out, by their labels.

    The `first` jobs have one small case of each experiment. It is among the others, too."""

    jobs: list[Job] = field(default_factory=list)
    first: list[Job] = field(default_factory=list)
    left_out: dict[str, str] = field(default_factory=dict)


def make(blocks: Sequence[Block], shard: Shard, slots: int = 1) -> Plan:
    """Plan the kernels of a shard.

    There is one for each tier, round, experiment, device and value of a `fresh` axis. With several slots, each
    of these kernels is split into one a slot, unless its cases need the whole machine."""
    plan = Plan()
    executions_of_kernel = {}
    smallest = {}
    # cases are dealt like cards, so that each shard has some of every experiment, and all rounds of a case
    shard_numbers = itertools.cycle(range(1, shard.count + 1))
    for block in blocks:
        options = block.options
        for axes in block.split():
            grid = cases.grid(block.experiment, **axes)
            entries = {}
            for case in grid:
                if next(shard_numbers) != shard.number:
                    continue
                label = label_of(block.experiment, asdict(case))
                reason = _missing(options.needs, case)
                if reason:
                    plan.left_out[label] = reason
                else:
                    entries[case] = Entry(label, asdict(case), axes, options.seconds, options.timeout)
            if not entries:
                continue
            fresh = str([axes[axis] for axis in options.fresh])
            for round in range(1, options.rounds + 1):
                kernel = (options.tier, round, block.experiment, grid[0].device, fresh)
                ordered = [entries[case] for case in cases.order(grid, round) if case in entries]
                executions_of_kernel.setdefault(kernel, []).append(ordered)
            # only in the experiment's first block: names such as sizes cannot be compared between blocks
            smallest.setdefault(block.experiment, min(entries.values(), key=_size))
    # sorting keeps the order of what is equal here, which is that of the file
    for kernel in sorted(executions_of_kernel, key=lambda kernel: kernel[:2]):
        _, round, experiment, device, _ = kernel
        plan.jobs += _jobs(experiment, round, device, executions_of_kernel[kernel], slots)
    for experiment, entry in smallest.items():
        plan.first += _jobs(experiment, 1, entry.case["device"], [[entry]], 1)
    return plan


def _jobs(experiment: str, round: int, device: str, executions: Sequence[Sequence[Entry]], slots: int) -> list[Job]:
    """Split a kernel's executions into a job a slot, or one for the whole machine."""
    alone = device != "cuda" or catalog.CATALOG[experiment].alone
    if alone:
        slots = 1
    executions = list(executions)
    if round > 1:
        # for the reason of `cases.order`
        random.Random(f"{experiment} {round}").shuffle(executions)
    entries = list(itertools.chain(*executions))
    jobs = []
    for number in range(min(slots, len(entries))):
        part = tuple(entries[number::slots])
        jobs.append(Job(experiment, round, device, environment.machine(device), alone, part))
    return jobs


def label_of(experiment: str, case: dict) -> str:
    """Label a case for people and the ledger: `adam fused-1-16384-cpu`."""
    return f"{experiment} {records.name(case)}"


def _size(entry: Entry) -> float:
    """Return the product of a case's numbers, to find the smallest case of a block.

    A number below 1 counts as 1: a 0, which may stand for a default, would make any case the smallest."""
    numbers = [value for value in entry.case.values() if type(value) in (int, float)]
    return math.prod(max(1, number) for number in numbers)


def _missing(needs: str, case) -> str | None:
    """Return why this machine does not run a case, or None."""
    emulates = case.device == "cpu" and processor.emulates_bf16()
    if needs == "cuda" and case.device != "cuda":
        return "it needs cuda"
    if needs == "bf16" and emulates and getattr(case, "precision", "") == "bf16":
        return "this processor only emulates bf16, which takes long"
    if needs == "emulated_bf16" and not emulates:
        return "for processors that only emulate bf16"
    return case.unavailable()


def pins() -> list[str]:
    """List the GPUs that get a kernel each, as values of CUDA_VISIBLE_DEVICES.

    They are of the first one's model, which names the machine."""
    if on("cuda").missing():
        return []
    models = on("cuda").models()
    visible = os.environ.get("CUDA_VISIBLE_DEVICES") or ",".join(map(str, range(len(models))))
    names = visible.split(",")
    if names[0].startswith("MIG"):
        # a process sees only the first of several MIG parts: the others are taken to be alike
        return names
    # CUDA leaves out an invalid name and all names after it, so there may be fewer models than names
    return [name for name, model in zip(names, models, strict=False) if model == models[0]]
