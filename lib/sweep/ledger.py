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


@dataclass
class Ledger:
    """Tell what is still to be measured.

    Measured again are records of other code, and what found no memory where there is more now; with `retry`, all that
    failed, crashed, took too long or found no memory; with `other_torch`, what another PyTorch measured. Each record is
    made only once by a sweep."""

    retry: bool = False
    other_torch: bool = False
    statuses: dict[Path, str] = field(default_factory=dict)  # by file; `left` if it is to be made
    seconds: dict[Path, float] = field(default_factory=dict)  # that a case took, in this sweep or before

    def finish(self, file: Path, record: dict) -> None:
        """Note that this sweep has made a record."""
        self.statuses[file] = record["status"]
        self.seconds[file] = record["seconds"]

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
        """Return the status of one file, whatever became of earlier rounds."""
        # a file is read once; `finish` notes what this sweep makes
        if file not in self.statuses:
            self.statuses[file] = self._found(job, file)
        return self.statuses[file]

    def _found(self, job: Job, file: Path) -> str:
        """Return the status of a record made before, or `left` if there is none that counts."""
        if not file.exists():
            return "left"
        try:
            record = records.read(file)
        except ValueError as error:
            warnings.warn(f"{file.name}: damaged, so measured again: {error}", stacklevel=2)
            return "left"
        self.seconds[file] = record["seconds"]
        if self._is_wanted_again(job, record):
            return "left"
        return record["status"]

    def _is_wanted_again(self, job: Job, record: dict) -> bool:
        """Tell if a case is to be measured although it has a record."""
        if record["code"] != records.digest(job.experiment):
            return True
        if self.other_torch and record["environment"].get("torch") != torch.__version__:
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
