"""Tell what of a sweep is done and what is left: a record means done."""

import warnings
from collections import Counter
from collections.abc import Sequence

import pandas as pd
import torch

from lib import records, watched
from lib.instruments import memory_limit
from lib.sweep.plan import Entry, Job

MORE = 1.1  # times the former limit of memory: above it, a case that ran out is tried again


class Ledger:
    """Tell what is still to be measured.

    A case is measured again if its record is

    - of other code;
    - out of memory, and there is more memory now;
    - with `retry`, not ok: it failed, crashed, took too long or ran out of memory;
    - with `other_torch`, of another PyTorch."""

    def __init__(self, jobs: Sequence[Job], retry: bool = False, other_torch: bool = False):
        self.retry = retry
        self.other_torch = other_torch
        self.statuses = {}  # by label, then by round; `left` if it is to be measured
        self.seconds = {}  # by label: what the case took last, in this sweep or before
        self.experiments = {}  # by label
        for job in jobs:
            for entry in job.entries:
                self.experiments[entry.label] = job.experiment
                self._note(entry.label, job.round, self._find(job, entry))

    def finish(self, label: str, record: dict) -> None:
        """Note the record of a case that this sweep has made; it is not made again."""
        self.seconds[label] = record["seconds"]
        self._note(label, record["round"], record["status"])

    def _note(self, label: str, round: int, status: str) -> None:
        """Note the status of a round; after one that is not ok, the rest is `skipped`."""
        rounds = self.statuses.setdefault(label, {})
        rounds[round] = status
        ended_badly = False
        for number in sorted(rounds):
            if ended_badly and rounds[number] == "left":
                rounds[number] = "skipped"
            ended_badly = ended_badly or rounds[number] not in ("ok", "left")

    def _find(self, job: Job, entry: Entry) -> str:
        """Return the status of a former record, or `left` if none counts."""
        file = job.file(entry)
        if not file.exists():
            return "left"
        try:
            record = records.read(file)
        except ValueError as error:
            warnings.warn(f"{file.name}: damaged, so measured again: {error}", stacklevel=2)
            return "left"
        self.seconds[entry.label] = record["seconds"]
        if not records.is_final(record):
            return "left"
        if self._is_wanted_again(job, record):
            return "left"
        return record["status"]

    def _is_wanted_again(self, job: Job, record: dict) -> bool:
        """Tell if a case is to be measured although it has a record."""
        if record["code"] != watched.digest(job.experiment):
            return True
        if self.other_torch and record["environment"].get("torch") != torch.__version__:
            return True
        # the case ran out of memory on a CPU: a machine that was full then may have room now
        limit_bytes = record["metrics"].get("limit_bytes")
        if limit_bytes and memory_limit.offered_bytes() > MORE * limit_bytes:
            return True
        return self.retry and record["status"] != "ok"

    def left(self, job: Job) -> tuple[Entry, ...]:
        """Return the entries of a job that are still to be measured."""
        return tuple(entry for entry in job.entries if self.statuses[entry.label][job.round] == "left")

    def counts(self) -> Counter[str]:
        """Count the cases of all rounds by status."""
        counts = Counter()
        for rounds in self.statuses.values():
            counts.update(rounds.values())
        return counts

    def seconds_left(self) -> float:
        """Estimate the time left, from the last time of each case or of its experiment."""
        medians = pd.Series(self.seconds).groupby(self.experiments).median()
        left_s = 0.0
        for label, rounds in self.statuses.items():
            num_left = Counter(rounds.values())["left"]
            left_s += num_left * self.seconds.get(label, medians.get(self.experiments[label], 0.0))
        return left_s
