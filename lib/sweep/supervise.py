"""Supervise a sweep: hand jobs to free slots, and keep the records that come back.

A case is done when its record exists. So whatever ends this process, the next one continues.
"""

import contextlib
import queue
import shutil
import threading
import time
from collections import Counter, deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from lib import records
from lib.sweep import run
from lib.sweep.plan import Job, Ledger
from lib.sweep.progress import Progress
from lib.sweep.run import Message, Place

LOOK_S = 0.5  # between looks for a signal to stop or another box
LOSSES = 3  # of workers with the same case in hand, before it is given up
NO_BOX_S = 120  # without any box, after which the sweep ends


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
        if self.whole in busy:
            return None
        free_parts = [part for part in self.parts if part not in busy]
        if job.alone or not self.parts:
            return self.whole if len(free_parts) == len(self.parts) else None
        return free_parts[0] if free_parts else None


def local_box(scratch: Path, pins: Sequence[str]) -> Box:
    """Return this machine as a box, with a slot for each GPU in `pins`."""

    def slot_in(place: Place) -> Slot:
        return lambda job, deadline: run.measured(job, deadline, place)

    parts = []
    for number, pin in enumerate(pins):
        parts.append(slot_in(Place(scratch, number, len(pins), {"CUDA_VISIBLE_DEVICES": pin})))
    return Box(slot_in(Place(scratch)), parts)


@contextlib.contextmanager
def cleared(scratch: Path) -> Iterator[None]:
    """Clear a folder of kernels before and after the block: what a killed supervisor has left, and what this one has.

    Processes whose plan lies in it are ended. Call it under the shard's lock."""
    try:
        clear(scratch)
        yield
    finally:
        clear(scratch)


def clear(scratch: Path) -> None:
    """End the processes whose plan lies in a folder, and remove it."""
    run.end(scratch)
    shutil.rmtree(scratch, ignore_errors=True)


@dataclass
class Supervisor:
    """Run jobs on boxes, whose list may change meanwhile.

    It ends between cases at the `deadline`, and at once when `stop` is set. `troubles` are lines of what no record
    tells."""

    boxes: list[Box]
    ledger: Ledger
    progress: Progress
    deadline: float | None
    stop: threading.Event
    troubles: list[str] = field(default_factory=list)
    busy: dict[Slot, Job] = field(default_factory=dict)
    events: queue.Queue = field(default_factory=queue.Queue)
    begun: set[Slot] = field(default_factory=set)  # slots where a case of the job has begun
    losses: Counter = field(default_factory=Counter)

    def run(self, jobs: Sequence[Job]) -> None:
        """Run all jobs in their order. Raises records.CannotWrite."""
        waiting = deque(jobs)
        box_seen = time.monotonic()
        while not self.stop.is_set():
            self._start(waiting)
            if not self.busy:
                if not waiting or self._is_over():
                    return
                if self.boxes:
                    box_seen = time.monotonic()
                elif time.monotonic() - box_seen > NO_BOX_S:
                    self._tell("no machine is left to measure on")
                    return
            with contextlib.suppress(queue.Empty):
                slot, message = self.events.get(timeout=LOOK_S)
                self._take(slot, message, waiting)

    def _is_over(self) -> bool:
        return self.deadline is not None and time.time() > self.deadline

    def _start(self, waiting: deque[Job]) -> None:
        """Start waiting jobs in their order, as long as there is a free slot for the next."""
        while waiting and not self._is_over():
            left = self.ledger.left(waiting[0])
            if not left:
                self.progress.starts(None, waiting.popleft(), left)
                continue
            free_slots = [box.free_slot(waiting[0], self.busy) for box in list(self.boxes)]
            slot = next(filter(None, free_slots), None)
            if slot is None:
                return
            self.progress.starts(slot, waiting[0], left)
            job = replace(waiting.popleft(), entries=left)
            self.busy[slot] = job
            threading.Thread(target=self._follow, args=(slot, job), daemon=True).start()

    def _follow(self, slot: Slot, job: Job) -> None:
        """Pass the messages of a slot on; runs in a thread."""
        last = Message("end", "")
        try:
            messages = slot(job, self.deadline)
            for message in messages:
                if self.stop.is_set():
                    messages.close()
                    break
                self.events.put((slot, message))
        except SlotLost as error:
            last = Message("lost", str(error))
        except records.CannotWrite as error:
            last = Message("cannot write", str(error))
        except Exception as error:  # a thread's exception would be lost
            last = Message("trouble", f"{job.experiment}: {type(error).__name__}: {error}")
            self.events.put((slot, last))
            last = Message("end", "")
        self.events.put((slot, last))

    def _take(self, slot: Slot, message: Message, waiting: deque[Job]) -> None:
        """Take note of one message."""
        job = self.busy[slot]
        if message.kind == "begins":
            self.begun.add(slot)
            self.progress.begins(slot, job.experiment, message.text)
        elif message.kind == "record":
            self._keep(slot, job, message.text)
        elif message.kind == "trouble":
            self._tell(message.text)
        elif message.kind == "cannot write":
            raise records.CannotWrite(message.text)
        else:
            del self.busy[slot]
            if message.kind == "lost":
                self._lost(job, message.text, slot in self.begun, waiting)
            self.begun.discard(slot)

    def _keep(self, slot: Slot, job: Job, text: str) -> None:
        """Write a record, unless its kernel has written it here already."""
        record = records.parse(text)
        file = records.path(job.machine, job.experiment, record["case"], record["round"])
        if not file.exists() or file.read_text() != text:
            records.write(file, text)
        is_tried_again = record["status"] == "oom" and record["metrics"].get("fresh") is False
        if not is_tried_again:
            self.ledger.finished.add(file)
            self.progress.ends(slot, file, record)

    def _lost(self, job: Job, reason: str, has_begun: bool, waiting: deque[Job]) -> None:
        """Put back what a lost worker has not measured; the case in hand is given up after some losses."""
        left = self.ledger.left(job)
        if not left:
            return
        in_hand = job.file(left[0])
        self.losses[in_hand] += has_begun
        if self.losses[in_hand] == LOSSES:
            self.ledger.finished.add(in_hand)
            self._tell(f"{job.experiment} {records.name(left[0].case)}: given up after {LOSSES} lost workers: {reason}")
        waiting.appendleft(replace(job, entries=left))

    def _tell(self, line: str) -> None:
        self.troubles.append(line)
        self.progress.say(line)
