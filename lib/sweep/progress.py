"""Show how far a sweep is, in its terminal and a status file, and when it ends.

The expected end comes from the times of the cases so far, never from a model of the machine.
"""

import contextlib
import os
import platform
import sys
import time
from collections import Counter
from datetime import datetime, timedelta
from pathlib import Path

from tqdm import tqdm

from lib import paths, records
from lib.sweep import plan, shard
from lib.sweep.ledger import Ledger
from lib.sweep.shard import Shard

BAD = ("failed", "crashed", "timeout")


class Progress:
    """Follow the jobs of one sweep, which run in `slots` kernels at a time."""

    def __init__(self, sweep: str, own_shard: Shard, ledger: Ledger, slots: int):
        self.sweep = sweep
        self.shard = own_shard
        self.ledger = ledger
        self.slots = slots
        self.started = None  # when the jobs that come after the small cases began
        self.measured_seconds = 0.0  # what the cases of these jobs took, together
        self.in_hand = {}  # labels, by slot
        # without a terminal there is no bar
        form = "{desc} {bar} {n}/{total}"
        self.bar = tqdm(total=self.left_count(), dynamic_ncols=True, disable=None, bar_format=form)
        self.write("running")

    def left_count(self) -> int:
        """Count what is still to be measured."""
        return self.ledger.counts()["left"]

    def ends_first(self) -> None:
        """Tell how the small cases ended; the pace of the others counts from here."""
        # nothing to tell if they all had records before
        if self.left_count() < self.bar.total:
            self.say(f"one case of each experiment was tried: {describe(self.ledger.counts())}; {self.expected_end()}")
        self.started = time.monotonic()

    def begins(self, slot: object, label: str) -> None:
        """Note the case in hand at a slot."""
        self.in_hand[slot] = label
        self.bar.set_description_str(label[:60].ljust(60))
        self.write("running")

    def ends(self, slot: object, record: dict) -> None:
        """Note a record in the ledger, and tell at once if its case ended badly."""
        self.in_hand.pop(slot, None)
        num_left_before = self.left_count()
        label = plan.label_of(record["experiment"], record["case"])
        self.ledger.finish(label, record)
        num_left = self.left_count()
        self.bar.update(num_left_before - num_left)
        if self.started:
            self.measured_seconds += record["seconds"]
        if record["status"] in BAD:
            self.say(f"{record['status']}: {label}: {record['metrics'].get('reason', '')}")
        if 0 < num_left <= self.bar.total / 2 < num_left_before:
            self.say(f"half of the cases are measured; {self.expected_end()}")

    def expected_end(self) -> str:
        """Tell the expected end by the times of the cases so far."""
        if not self.ledger.seconds:
            return "no case has a time yet"
        left_s = self.ledger.seconds_left()
        if not self.measured_seconds:
            # kernels must start too, and the smallest cases came first
            return f"at least {left_s / self.slots / 60:.0f} min left"
        # a second in a case takes longer, as kernels must start, or less, as slots share the work
        left_s *= (time.monotonic() - self.started) / self.measured_seconds
        end = datetime.now() + timedelta(seconds=left_s)
        return f"about {left_s / 60:.0f} min left, until {end:%H:%M} on {end:%d %b}"

    def say(self, line: str) -> None:
        """Print a line above the bar."""
        with contextlib.suppress(OSError):  # a closed pipe
            tqdm.write(line, file=sys.stdout)
            sys.stdout.flush()

    def write(self, state: str) -> None:
        """Write the status file, whose line `make status` prints; ignores a full disk."""
        line = f"{state}: {describe(self.ledger.counts())}"
        if state == "running":
            line += f"; {self.expected_end()} (process {os.getpid()} on {platform.node()})"
            line += "".join(f"; now {label}" for label in self.in_hand.values())
        with contextlib.suppress(records.CannotWrite):
            records.write(self.shard.file("status"), f"{self.sweep}, shard {self.shard}: {line}")

    def close(self, state: str) -> None:
        """End the bar and write the last state."""
        self.bar.close()
        self.write(state)


def describe(counts: Counter[str]) -> str:
    """Count in words, without skipped rounds: 412 ok, 9 oom, 2 failed, 0 left."""
    words = [f"{counts[status]} {status}" for status in records.STATUSES if counts[status] or status == "ok"]
    return ", ".join([*words, f"{counts['left']} left"])


def statuses() -> list[str]:
    """Describe the sweeps on these results, and count all records by experiment.

    Records by hand and stale ones count, too."""
    lines = []
    for known_shard in shard.known():
        # one that never wrote its status, or another user's, has nothing to tell
        with contextlib.suppress(OSError):
            # asked first: a sweep that ends meanwhile writes its last state before it frees the lock
            is_running = known_shard.is_running()
            line = known_shard.file("status").read_text(encoding="utf-8")
            if not is_running:
                # without the end that was expected
                line = line.partition("; ")[0].replace(": running: ", ": ended unexpectedly: ")
            lines.append(line)
    for folder in sorted(paths.results().glob("[!.]*/*/")):
        counts = Counter(map(_status_of, folder.glob("*.json")))
        words = ", ".join(f"{number} {status}" for status, number in counts.most_common())
        lines.append(f"{folder.parent.name} {folder.name}: {words}")
    return lines or ["no sweep has run on these results yet"]


def _status_of(file: Path) -> str:
    try:
        return records.read(file)["status"]
    except ValueError:
        return "damaged"
