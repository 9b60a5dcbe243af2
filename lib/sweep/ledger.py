"""Tell what of a sweep is done and what is left: a record means done."""

import warnings
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

import torch

from lib import records
from lib.instruments import memory_limit
from lib.sweep.plan import Entry, Job, Plan

MORE = 1.1  # times the former limit of memory: above it, a case that ran out is tried again


def short_record(file: Path) -> dict | None:
    """Return a record with no metric but the limit of its memory; None if missing or damaged."""
    if not file.exists():
        return None
    try:
        record = records.read(file)
    except ValueError as error:
        warnings.warn(f"{file.name}: skipped: {error}", stacklevel=2)
        return None
    # the samples would fill the memory of a long sweep
    limit = {name: value for name, value in record["metrics"].items() if name == "limit_bytes"}
    return record | {"metrics": limit}


@dataclass
class Ledger:
    """Tell what is still to be measured.

    Measured again are records of other code, and what found no memory where there is more now; with `retry`, all that
    failed, crashed, took too long or found no memory; with `stale`, what another PyTorch measured. `finished` are the
    files that this sweep has done with, each of which it makes only once."""

    retry: bool = False
    stale: bool = False
    finished: set[Path] = field(default_factory=set)
    known: dict[Path, dict | None] = field(default_factory=dict)  # what was read before

    def finish(self, file: Path, status: str = "") -> None:
        """Note that this sweep has made a record, or with a `status` that it will make none."""
        self.finished.add(file)
        self.known.pop(file, None)
        if status:
            self.known[file] = {"status": status}

    def record(self, file: Path) -> dict | None:
        """Return a file's `short_record`, or None.

        It is read only once until this sweep makes another. Of a case that was given up there is only a status."""
        if file not in self.known:
            self.known[file] = short_record(file)
        return self.known[file]

    def left(self, job: Job) -> tuple[Entry, ...]:
        """Return the entries of a job that are still to be measured."""
        return tuple(entry for entry in job.entries if self.status(job, entry) == "left")

    def status(self, job: Job, entry: Entry) -> str:
        """Return the status of a record, or `left` if it is to be made.

        After a round that did not end ok it is not made, but `skipped`."""
        status = self._status(job, job.file(entry))
        earlier = {self._status(job, job.file(entry, round)) for round in range(1, job.round)}
        if status == "left" and earlier - {"ok", "left"}:
            return "skipped"
        return status

    def _status(self, job: Job, file: Path) -> str:
        record = self.record(file)
        if record and (file in self.finished or not self._is_wanted_again(job, record)):
            return record["status"]
        return "left"

    def _is_wanted_again(self, job: Job, record: dict) -> bool:
        """Tell if a case is to be measured although it has a record."""
        if record["code"] != records.digest(job.experiment):
            return True
        if self.stale and record["environment"].get("torch") != torch.__version__:
            return True
        # of a case on a CPU that found no memory: a machine that was full then may have room now
        limit_bytes = record["metrics"].get("limit_bytes")
        if limit_bytes and memory_limit.offered_bytes() > MORE * limit_bytes:
            return True
        return self.retry and record["status"] != "ok"

    def counts(self, jobs: Sequence[Job]) -> Counter[str]:
        """Count the cases of all rounds by status."""
        return Counter(self.status(job, entry) for job in jobs for entry in job.entries)


def listed(plan: Plan, ledger: Ledger) -> list[str]:
    """List the cases, one a line: the status of each round, or why it is left out."""
    statuses = {}
    for job in plan.jobs:
        for entry in job.entries:
            case = f"{job.experiment} {records.name(entry.case)}"
            statuses.setdefault(case, []).append(ledger.status(job, entry))
    lines = [f"{case}: {' '.join(of_rounds)}" for case, of_rounds in statuses.items()]
    return lines + [f"{case}: left out: {reason}" for case, reason in plan.left_out.items()]
