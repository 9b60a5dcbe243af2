"""Plan a sweep on this machine: which cases each kernel measures, in which order, and what is still to be done.

The order is that of tiers, then of rounds, then of the experiments in the file. One small case of each experiment comes
before all others, so that what cannot work is known within minutes.
"""

import functools
import math
import os
import random
import warnings
from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import NamedTuple

import pandas as pd
import torch

from lib import catalog, records
from lib.instruments import environment, memory_limit, processor
from lib.instruments.device import on
from lib.sweep.shard import Shard
from lib.sweep.sweep_file import Block

MORE = 1.1  # times the former limit of memory: with so much more, a case that found none is tried again
EMULATED = "this processor only emulates bf16, which takes long"
NATIVE = "for processors that only emulate bf16"


@dataclass(frozen=True)
class Entry:
    """Hold a case to measure about `seconds`, within `timeout` seconds."""

    case: dict
    seconds: float
    timeout: float


@dataclass(frozen=True)
class Job:
    """Hold the cases of one experiment that one kernel measures in a round, in their order.

    These are plain values, which can be sent to another machine. A job that is `alone` needs the whole machine."""

    experiment: str
    round: int
    device: str
    machine: str
    alone: bool
    entries: tuple[Entry, ...]

    def file(self, entry: Entry, round: int | None = None) -> Path:
        """Return the file of an entry's record, in this round or another."""
        return records.path(self.machine, self.experiment, entry.case, round or self.round)


@dataclass
class Plan:
    """Hold the jobs of a sweep in their order, those of the `first` cases, and what is left out, by reason."""

    jobs: list[Job] = field(default_factory=list)
    first: list[Job] = field(default_factory=list)
    left_out: dict[str, list[tuple[str, str]]] = field(default_factory=dict)


def make(blocks: Sequence[Block], shard: Shard, slots: int = 1) -> Plan:
    """Plan a shard of the cases: one kernel an experiment and round, and one for every value of a `fresh` axis.

    With several slots, the cases of a kernel are dealt to as many kernels, unless they need the whole machine."""
    plan = Plan()
    order = list(dict.fromkeys(block.experiment for block in blocks))
    entries_of_kernel = {}
    candidates = {}
    number = 0
    for block in blocks:
        for case in block.cases:
            # dealt like cards, so that each shard has some of every experiment, and all rounds of a case
            number += 1
            if number % shard.count != shard.number % shard.count:
                continue
            reason = _missing(block, case)
            if reason:
                plan.left_out.setdefault(reason, []).append((block.experiment, records.name(asdict(case))))
                continue
            entry = Entry(asdict(case), block.seconds, block.timeout)
            fresh = str([(axis, getattr(case, axis)) for axis in block.fresh])
            for round in range(1, block.rounds + 1):
                kernel = (block.tier, round, order.index(block.experiment), case.device, fresh)
                entries_of_kernel.setdefault(kernel, []).append(entry)
            candidates.setdefault(block.experiment, (block, []))
            first_block, small_entries = candidates[block.experiment]
            if block is first_block:
                small_entries.append(entry)
    # sorting keeps the order of what is equal here, which is that of the file
    for kernel in sorted(entries_of_kernel, key=lambda kernel: kernel[:3]):
        _, round, position, device, _ = kernel
        plan.jobs += _jobs(order[position], round, device, entries_of_kernel[kernel], slots)
    for experiment, (_, small_entries) in candidates.items():
        smallest = min(small_entries, key=_size)
        plan.first += _jobs(experiment, 1, smallest.case["device"], [smallest], 1)
    return plan


def _jobs(experiment: str, round: int, device: str, entries: list[Entry], slots: int) -> list[Job]:
    """Return the jobs of one kernel's cases: one for each slot, or one in all if it needs the whole machine."""
    alone = device != "cuda" or catalog.CATALOG[experiment].alone
    if round > 1:
        # the first round is in the order of the file; in later ones no case is always first
        random.Random(f"{experiment} {round}").shuffle(entries)
    if alone:
        slots = 1
    jobs = []
    for number in range(min(slots, len(entries))):
        part = tuple(entries[number::slots])
        jobs.append(Job(experiment, round, device, environment.machine(device), alone, part))
    return jobs


def _size(entry: Entry) -> float:
    """Return the product of a case's numbers, by which the smallest of a block is found."""
    numbers = [value for value in entry.case.values() if type(value) in (int, float)]
    return math.prod(max(1, number) for number in numbers)


def _missing(block: Block, case) -> str | None:
    """Return why this machine does not run a case, or None."""
    emulates = case.device == "cpu" and processor.emulates_bf16()
    if block.needs == "cuda" and case.device != "cuda":
        return "it needs cuda"
    if block.needs == "bf16" and emulates and getattr(case, "precision", "") == "bf16":
        return EMULATED
    if block.needs == "emulated_bf16" and not emulates:
        return NATIVE
    return case.unavailable()


class Outcome(NamedTuple):
    """Hold what planning needs to know of a record."""

    status: str
    code: str
    torch: str
    seconds: float
    metrics: dict  # without samples


def outcome(file: Path) -> Outcome | None:
    """Return what became of a case, or None without a record; a damaged one counts as none."""
    try:
        return _outcome(file, file.stat().st_mtime_ns)
    except OSError:
        return None


@functools.cache
def _outcome(file: Path, _: int) -> Outcome | None:
    try:
        record = records.read(file)
    except ValueError as error:
        warnings.warn(f"{file.name}: skipped: {error}", stacklevel=3)
        return None
    told = {name: value for name, value in record["metrics"].items() if name in ("fresh", "limit_bytes", "reason")}
    torch_version = record["environment"].get("torch", "")
    return Outcome(record["status"], record["code"], torch_version, record["seconds"], told)


@dataclass
class Ledger:
    """Tell what is still to be done, by the records: a record means done.

    Measured again are records of other code; with `retry`, what failed, crashed, took too long or found no memory; with
    `stale`, what another PyTorch measured. `finished` are the records of this sweep, which it makes only once."""

    retry: bool = False
    stale: bool = False
    finished: set[Path] = field(default_factory=set)

    def left(self, job: Job) -> tuple[Entry, ...]:
        """Return the entries of a job that are still to be measured."""
        return tuple(entry for entry in job.entries if self.is_left(job, entry))

    def is_left(self, job: Job, entry: Entry) -> bool:
        """Tell if an entry is to be measured: not if it is done, nor if an earlier round ended badly."""
        file = job.file(entry)
        own = outcome(file)
        if file in self.finished or (own and not self._is_wanted_again(job, file, own)):
            return False
        for round in range(1, job.round):
            earlier_file = job.file(entry, round)
            earlier = outcome(earlier_file)
            ended_badly = earlier and earlier.status != "ok"
            if ended_badly and not self._is_wanted_again(job, earlier_file, earlier):
                return False
        return True

    def _is_wanted_again(self, job: Job, file: Path, record: Outcome) -> bool:
        """Tell if a record is measured again; not one that this sweep has made."""
        if file in self.finished:
            return False
        if record.code != records.digest(job.experiment):
            return True
        if self.stale and record.torch != torch.__version__:
            return True
        if record.status == "oom" and not record.metrics.get("fresh", True):
            return True
        if record.status == "oom" and "limit_bytes" in record.metrics:
            # only where the case would now get clearly more: in the records of a machine that was full
            offered_bytes = memory_limit.SHARE_OF_FREE * on(job.device).free_bytes()
            if offered_bytes > MORE * record.metrics["limit_bytes"]:
                return True
        return self.retry and record.status != "ok"

    def counts(self, jobs: Sequence[Job]) -> Counter[str]:
        """Count the cases of all rounds by status, and those that are `left`."""
        counts = Counter()
        for job in jobs:
            for entry in job.entries:
                own = outcome(job.file(entry))
                if self.is_left(job, entry):
                    counts["left"] += 1
                elif own:
                    counts[own.status] += 1
        return counts


def pins() -> list[str]:
    """List the GPUs that run kernels side by side, each as a value of CUDA_VISIBLE_DEVICES.

    They are of the first one's model, which names the machine."""
    if on("cuda").missing():
        return []
    models = on("cuda").models()
    visible = os.environ.get("CUDA_VISIBLE_DEVICES", "")
    names = [str(number) for number in range(len(models))]
    if visible:
        names = visible.split(",")
    if names[0].startswith("MIG"):
        # a process sees only the first of several parts of a GPU
        return names
    return [name for name, model in zip(names, models, strict=False) if model == models[0]]


def table(plan: Plan) -> pd.DataFrame:
    """List the cases, one a row: how many rounds, for how long, and which records are there or why it is left out."""
    rows = []
    for job in plan.jobs:
        for entry in job.entries:
            own = outcome(job.file(entry))
            status = own.status if own else "none"
            rows.append((job.experiment, records.name(entry.case), 1, f"{entry.seconds:g}", status))
    for reason, left_out in plan.left_out.items():
        rows += [(experiment, name, 0, "", f"left out: {reason}") for experiment, name in left_out]
    listed = pd.DataFrame(rows, columns=["experiment", "case", "rounds", "seconds", "records"])
    by_case = listed.groupby(["experiment", "case"], sort=False, as_index=False)
    # each status once, in the order of the rounds
    return by_case.agg({"rounds": "sum", "seconds": "first", "records": lambda statuses: " ".join(statuses.unique())})
