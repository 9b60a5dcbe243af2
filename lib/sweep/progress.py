"""Show how far a sweep is, in its terminal and a status file, and when it ends.

The expected end comes from the times of the cases so far, never from a model of the machine.
"""

import contextlib
import itertools
import os
import platform
import statistics
import sys
import time
from collections import Counter
from collections.abc import Sequence
from datetime import datetime
from pathlib import Path

from tqdm import tqdm

from lib import paths, records
from lib.sweep import shard
from lib.sweep.ledger import Ledger, short_record
from lib.sweep.plan import Entry, Job
from lib.sweep.shard import Shard

BAD = ("failed", "crashed", "timeout")


class Progress:
    """Follow the jobs of one sweep, which run in `slots` kernels at a time."""

    def __init__(self, sweep: str, own_shard: Shard, jobs: Sequence[Job], ledger: Ledger, slots: int):
        self.sweep = sweep
        self.shard = own_shard
        self.slots = slots
        self.started = time.time()
        self.counts = ledger.counts(jobs)
        self.left = {}  # what is still to be measured: number of the job and name of the case, by the record's file
        self.case_seconds = {}  # which a case took, in this sweep or before
        for number, job in enumerate(jobs):
            for entry in job.entries:
                file = job.file(entry)
                case = (job.experiment, records.name(entry.case))
                record = short_record(file)
                if record:
                    self.case_seconds[case] = record["seconds"]
                if ledger.is_left(job, entry):
                    self.left[file] = (number, case)
        self.seconds = {}  # of this sweep's cases, by experiment
        self.kernels = 0  # that were started
        self.in_hand = {}  # names, by slot
        # without a terminal there is no bar
        self.bar = tqdm(total=len(self.left), dynamic_ncols=True, disable=None, bar_format="{desc} {bar} {n}/{total}")
        self.write("running")

    def starts(self, job: Job, left: Sequence[Entry]) -> None:
        """Note that a job starts, and which of its cases are still to be measured."""
        self.kernels += bool(left)
        for entry in job.entries:
            if entry not in left:
                self.left.pop(job.file(entry), None)

    def begins(self, slot: object, experiment: str, name: str) -> None:
        """Note the case in hand at a slot."""
        self.in_hand[slot] = f"{experiment} {name}"
        self.bar.set_description_str(self.in_hand[slot][:60].ljust(60))
        self.write("running")

    def ends(self, slot: object, file: Path, record: dict) -> None:
        """Note a record."""
        self.in_hand.pop(slot, None)
        self.left.pop(file, None)
        self.counts["left"] = len(self.left)
        self.counts[record["status"]] += 1
        self.seconds.setdefault(record["experiment"], []).append(record["seconds"])
        self.case_seconds[record["experiment"], records.name(record["case"])] = record["seconds"]
        self.bar.update()
        if record["status"] in BAD:
            self.say(failure(record))
        if len(self.left) == self.bar.total // 2:
            self.say(f"half of the cases are measured; {self.expected_end()}")

    def expected_end(self) -> str:
        """Tell the expected end by times of the same case, else its experiment, else all."""
        all_seconds = list(itertools.chain(*self.seconds.values()))
        if not all_seconds:
            return "no case has a time yet"
        untimed = [case for _, case in self.left.values() if case not in self.case_seconds]
        medians = {experiment: statistics.median(seconds) for experiment, seconds in self.seconds.items()}
        typical_seconds = statistics.median(all_seconds)
        left_seconds = 0.0
        for _, case in self.left.values():
            left_seconds += self.case_seconds.get(case, medians.get(case[0], typical_seconds))
        # the rest of the time so far went by while kernels started and ended
        passed_seconds = (time.time() - self.started) * self.slots
        kernel_seconds = max(0, passed_seconds - sum(all_seconds)) / max(1, self.kernels)
        left_seconds += kernel_seconds * len({number for number, _ in self.left.values()})
        left_seconds /= self.slots
        if len(untimed) > len(self.left) / 2:
            # the smallest cases came first
            return f"at least {left_seconds / 60:.0f} min left"
        end = datetime.fromtimestamp(time.time() + left_seconds)
        return f"about {left_seconds / 60:.0f} min left, until {end:%H:%M} on {end:%d %b}"

    def say(self, line: str) -> None:
        """Print a line above the bar."""
        with contextlib.suppress(OSError):  # a closed pipe
            tqdm.write(line, file=sys.stdout)
            sys.stdout.flush()

    def write(self, state: str) -> None:
        """Write the status file, a line for `status`; ignores a full disk."""
        line = f"{state}: {counted(self.counts)}"
        if state == "running":
            line += f"; {self.expected_end()} (process {os.getpid()} on {platform.node()})"
            line += "".join(f"; now {name}" for name in self.in_hand.values())
        with contextlib.suppress(records.CannotWrite):
            records.write(self.shard.file("status"), f"{self.sweep}, shard {self.shard}: {line}")

    def close(self, state: str) -> None:
        """Remove the bar and write the last state."""
        self.bar.close()
        self.write(state)


def failure(record: dict) -> str:
    """Describe a case that ended badly in one line."""
    name = records.name(record["case"])
    return f"{record['status']}: {record['experiment']} {name}: {record['metrics'].get('reason', '')}"


def counted(counts: Counter[str]) -> str:
    """Return the morning line: 412 ok, 9 oom, 2 failed, 0 left."""
    words = [f"{counts[status]} {status}" for status in records.STATUSES if counts[status] or status == "ok"]
    return ", ".join([*words, f"{counts['left']} left"])


def summary(jobs: Sequence[Job], ledger: Ledger) -> list[str]:
    """Return the last lines: what ended badly, then the morning line."""
    lines = []
    for job in jobs:
        for entry in job.entries:
            record = short_record(job.file(entry))
            if record and record["status"] in BAD:
                lines.append(failure(record))
    return [*lines, counted(ledger.counts(jobs))]


def statuses() -> list[str]:
    """Describe the sweeps on these results, and count their records by experiment."""
    lines = []
    for known_shard in shard.known():
        # one that never wrote its status has nothing to tell
        with contextlib.suppress(FileNotFoundError):
            line = known_shard.file("status").read_text()
            if not known_shard.is_running():
                line = line.replace(": running: ", ": ended unexpectedly: ")
            lines.append(line)
    for folder in sorted(paths.results().glob("[!.]*/*/")):
        short_records = [short_record(file) or {"status": "damaged"} for file in folder.glob("*.json")]
        counts = Counter(record["status"] for record in short_records)
        words = ", ".join(f"{number} {status}" for status, number in counts.most_common())
        lines.append(f"{folder.parent.name} {folder.name}: {words}")
    return lines or ["no sweep has run on these results yet"]
