"""Supervise a sweep: hand jobs to free slots, and keep the records that come back.

A case is done when its record exists. So whatever ends this process, the next one continues.
"""

import contextlib
import functools
import os
import queue
import shutil
import threading
from collections import Counter, deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from lib import records
from lib.instruments import environment
from lib.sweep import run
from lib.sweep.ledger import Ledger
from lib.sweep.plan import Job
from lib.sweep.progress import Progress
from lib.sweep.run import Message, Place

LOOK_S = 0.5  # between looks for a signal to stop or another box
LOSSES = 3  # of workers with the same case in hand, before it is given up


class SlotLost(Exception):
    """Say that a slot is gone, and its kernel with it."""


Slot = Callable[[Job, float | None], Iterator[Message]]  # measures a job until a deadline, one at a time


@dataclass
class Box:
    """Hold a machine: one slot for all of it, and one for each of its GPUs."""

    whole: Slot
    parts: list[Slot] = field(default_factory=list)

    def free_slot(self, job: Job, busy: dict) -> Slot | None:
        """Return a slot for a job, or None while it has to wait."""
        free_parts = [part for part in self.parts if part not in busy]
        if self.whole in busy:
            return None
        if self.parts and not job.alone:
            return next(iter(free_parts), None)
        if len(free_parts) < len(self.parts):
            return None
        return self.whole


def local_box(scratch: Path, pins: Sequence[str]) -> Box:
    """Return this machine as a box, with a slot for each GPU in `pins`."""
    parts = []
    for pin in pins:
        variables = share_of_cores(len(pins)) | {"CUDA_VISIBLE_DEVICES": pin}
        parts.append(functools.partial(run.measured, place=Place(scratch, len(pins), variables)))
    return Box(functools.partial(run.measured, place=Place(scratch)), parts)


def share_of_cores(slots: int) -> dict[str, str]:
    """Return variables that give each of several kernels its share of the threads.

    A number that the user has set holds for each of them."""
    if slots == 1:
        return {}
    threads = max(1, environment.cores() // slots)
    return {"OMP_NUM_THREADS": os.environ.get("OMP_NUM_THREADS", str(threads))}


def clear(scratch: Path) -> None:
    """End processes whose plan lies in a folder; remove it. Needs the shard's lock."""
    run.end(scratch)
    shutil.rmtree(scratch, ignore_errors=True)


@dataclass
class Supervisor:
    """Run jobs on boxes, whose list may change meanwhile.

    It ends between cases at the `deadline`, and at once when `stop` has a signal. `troubles` are lines of what no
    record tells."""

    boxes: list[Box]
    ledger: Ledger
    progress: Progress
    deadline: float | None
    stop: list[int]
    troubles: list[str] = field(default_factory=list)
    waiting: deque[Job] = field(default_factory=deque)
    busy: dict[Slot, Job] = field(default_factory=dict)
    events: queue.Queue = field(default_factory=queue.Queue)
    losses: Counter = field(default_factory=Counter)

    def run(self, jobs: Sequence[Job]) -> None:
        """Run all jobs in their order. Raises records.CannotWrite."""
        self.waiting.extend(jobs)
        while not self.stop:
            self._start()
            if not self.busy and (not self.waiting or run.is_over(self.deadline)):
                return
            with contextlib.suppress(queue.Empty):
                slot, message = self.events.get(timeout=LOOK_S)
                self._take(slot, message)

    def _start(self) -> None:
        """Start waiting jobs in their order, as long as there is a free slot for the next."""
        while self.waiting and not run.is_over(self.deadline):
            job = self.waiting[0]
            left = self.ledger.left(job)
            if left:
                free_slots = [box.free_slot(job, self.busy) for box in list(self.boxes)]
                slot = next(filter(None, free_slots), None)
                if slot is None:
                    return
                self.busy[slot] = replace(job, entries=left)
                threading.Thread(target=self._follow, args=(slot, self.busy[slot]), daemon=True).start()
            self.waiting.popleft()
            self.progress.starts(job, left)

    def _follow(self, slot: Slot, job: Job) -> None:
        """Pass the messages of a slot on, and at last its error or None; runs in a thread."""
        try:
            for message in slot(job, self.deadline):
                self.events.put((slot, message))
        except Exception as error:  # a thread's exception would be lost
            self.events.put((slot, error))
        else:
            self.events.put((slot, None))

    def _take(self, slot: Slot, message: Message | Exception | None) -> None:
        """Take note of one message, or of the end of a job."""
        job = self.busy[slot]
        if not isinstance(message, Message):
            self._end(slot, message)
        elif message.kind == "begins":
            self.progress.begins(slot, job.experiment, message.text)
        elif message.kind == "record":
            self._keep(slot, job, message.text)
        else:
            self._tell(message.text)

    def _keep(self, slot: Slot, job: Job, text: str) -> None:
        """Write a record, unless its kernel has written it here already."""
        record = records.parse(text)
        # not the path at the worker's, which may be another machine
        file = records.path(job.machine, job.experiment, record["case"], record["round"])
        if not file.exists() or file.read_text() != text:
            records.write(file, text)
        is_tried_again = record["status"] == "oom" and record["metrics"].get("fresh") is False
        if not is_tried_again:
            self.ledger.finished.add(file)
            self.progress.ends(slot, file, record)

    def _end(self, slot: Slot, error: Exception | None) -> None:
        """Free a slot; requeue what a lost one left, but for a case lost too often."""
        job = self.busy.pop(slot)
        had_one_in_hand = self.progress.in_hand.pop(slot, None)
        if isinstance(error, records.CannotWrite):
            raise error
        if isinstance(error, SlotLost):
            left = self.ledger.left(job)
            if left and had_one_in_hand:
                in_hand = job.file(left[0])
                self.losses[in_hand] += 1
                if self.losses[in_hand] == LOSSES:
                    self.ledger.finished.add(in_hand)
                    name = f"{job.experiment} {records.name(left[0].case)}"
                    self._tell(f"{name}: given up after {LOSSES} lost workers: {error}")
            self.waiting.appendleft(job)
        elif error:
            self._tell(f"{job.experiment}: {type(error).__name__}: {error}")

    def _tell(self, line: str) -> None:
        self.troubles.append(line)
        self.progress.say(line)
