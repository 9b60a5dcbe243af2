"""Show how far a sweep is: a bar in its terminal, a status file for others, and when it should end.

The expected end comes from the times of the cases so far, never from a model of the machine.
"""

import contextlib
import json
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
from lib.sweep.plan import Entry, Job, Ledger, outcome
from lib.sweep.shard import Shard

BAD = ("failed", "crashed", "timeout")
SHOWN = 20  # failures that the last lines list


class Progress:
    """Follow the jobs of one sweep, which run in `slots` kernels at a time."""

    def __init__(self, sweep: str, own_shard: Shard, jobs: Sequence[Job], ledger: Ledger, slots: int):
        self.sweep = sweep
        self.shard = own_shard
        self.slots = max(1, slots)
        self.started = time.time()
        self.counts = ledger.counts(jobs)
        # what a case took before, by its record's file; None if it never ran
        self.left = {}
        for job in jobs:
            for entry in ledger.left(job):
                self.left[job.file(entry)] = (job.experiment, _earlier_seconds(job, entry))
        self.seconds = {}  # of this sweep's cases, by experiment
        self.in_hand = {}  # names, by slot
        self.kernels_started = {}  # when, by slot, until their first case
        self.start_seconds = []  # of kernels, until their first case
        # without a terminal there is no bar
        self.bar = tqdm(total=len(self.left), dynamic_ncols=True, disable=None, bar_format="{desc} {bar} {n}/{total}")
        self.write("running")

    def starts(self, slot: object, job: Job, left: Sequence[Entry]) -> None:
        """Note that a job starts at a slot, and which of its cases are still to be measured."""
        self.kernels_started[slot] = time.time()
        for entry in job.entries:
            if entry not in left:
                self.left.pop(job.file(entry), None)

    def begins(self, slot: object, experiment: str, name: str) -> None:
        """Note the case in hand at a slot."""
        if slot in self.kernels_started:
            self.start_seconds.append(time.time() - self.kernels_started.pop(slot))
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
        self.bar.update()
        if record["status"] in BAD:
            reason = record["metrics"].get("reason", "")
            self.say(failure(record["status"], record["experiment"], record["case"], reason))

    def expected_end(self) -> str:
        """Tell the expected end from the times so far: of the same case, else of its experiment, else of all."""
        all_seconds = [seconds for of_experiment in self.seconds.values() for seconds in of_experiment]
        if not all_seconds:
            return "no case has a time yet"
        typical = statistics.median(all_seconds)
        left_seconds = 0.0
        for experiment, earlier_seconds in self.left.values():
            of_experiment = self.seconds.get(experiment, [typical])
            left_seconds += earlier_seconds or statistics.median(of_experiment)
        if self.start_seconds:
            # a case needs a kernel's start about as often as so far
            left_seconds += len(self.left) * sum(self.start_seconds) / len(all_seconds)
        left_seconds /= self.slots
        end = datetime.fromtimestamp(time.time() + left_seconds)
        return f"about {left_seconds / 60:.0f} min left, until {end:%H:%M} on {end:%d %b}"

    def say(self, line: str) -> None:
        """Print a line above the bar."""
        with contextlib.suppress(OSError):  # a closed pipe
            tqdm.write(line, file=sys.stdout)
            sys.stdout.flush()

    def write(self, state: str) -> None:
        """Write the status file; a full disk is no reason to end here."""
        status = {
            "sweep": self.sweep,
            "state": state,
            "process": os.getpid(),
            "host": platform.node(),
            "started": self.started,
            "updated": time.time(),
            "counts": dict(self.counts),
            "expected": self.expected_end(),
            "in_hand": list(self.in_hand.values()),
        }
        with contextlib.suppress(records.CannotWrite):
            records.write(self.shard.file("status"), json.dumps(status))

    def close(self, state: str) -> None:
        """Remove the bar and write the last state."""
        self.in_hand.clear()
        self.bar.close()
        self.write(state)


def _earlier_seconds(job: Job, entry: Entry) -> float | None:
    """Return what a case took in this round before, or else in an earlier one; None if it never ran."""
    for round in range(job.round, 0, -1):
        record = outcome(job.file(entry, round))
        if record:
            return record.seconds
    return None


def failure(status: str, experiment: str, case: dict, reason: str) -> str:
    """Describe a case that ended badly in one line."""
    return f"{status}: {experiment} {records.name(case)}: {reason}"


def counted(counts: Counter[str]) -> str:
    """Return the morning line: 412 ok, 9 oom, 2 failed, 0 left."""
    words = [f"{counts[status]} {status}" for status in records.STATUSES if counts[status] or status == "ok"]
    return ", ".join([*words, f"{counts['left']} left"])


def summary(jobs: Sequence[Job], ledger: Ledger) -> list[str]:
    """Return the last lines: what ended badly, then the morning line."""
    lines = []
    for job in jobs:
        for entry in job.entries:
            record = outcome(job.file(entry))
            if record and record.status in BAD:
                lines.append(failure(record.status, job.experiment, entry.case, record.metrics.get("reason", "")))
    more = len(lines) - SHOWN
    if more > 0:
        lines = [*lines[:SHOWN], f"and {more} more"]
    return [*lines, counted(ledger.counts(jobs))]


def statuses() -> list[str]:
    """Describe the sweeps on these results, and count their records by experiment."""
    lines = []
    for known_shard in shard.known():
        with contextlib.suppress(OSError, ValueError, KeyError):
            status = json.loads(known_shard.file("status").read_text())
            lines.append(_line(known_shard, status))
    for folder in sorted(paths.results().glob("[!.]*/*/")):
        outcomes = [outcome(file) for file in folder.glob("*.json")]
        counts = Counter(record.status if record else "damaged" for record in outcomes)
        counted_words = ", ".join(f"{number} {status}" for status, number in counts.most_common())
        lines.append(f"{folder.parent.name} {folder.name}: {counted_words}")
    return lines or ["no sweep has run on these results yet"]


def _line(known_shard: Shard, status: dict) -> str:
    state = status["state"]
    running = shard.is_running(known_shard)
    if state == "running" and not running:
        state = "ended unexpectedly"
    line = f"{status['sweep']}, shard {known_shard}: {state}: {counted(Counter(status['counts']))}"
    if running:
        line += f"; {status['expected']} (process {status['process']} on {status['host']})"
        line += "".join(f"; now {name}" for name in status["in_hand"])
    return line
