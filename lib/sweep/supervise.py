"""Hand the jobs of a sweep to free slots, and keep the records that come back.

A case is done when its record exists. So whatever ends this process, the next one continues.
"""

import contextlib
import functools
import queue
import threading
import time
from collections import Counter, deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from lib.sweep import run
from lib.sweep.kernel import Place
from lib.sweep.plan import Job
from lib.sweep.progress import Progress
from lib.sweep.run import Message

LOOK_S = 0.5  # between looks for a signal to stop or another box
LOSSES = 3  # lost workers with the same case in hand, after which it counts as crashed


Slot = Callable[[Job, float], Iterator[Message]]  # measures a job until a deadline, one at a time


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
        if self.parts and not job.alone:
            return next(iter(free_parts), None)
        return self.whole if len(free_parts) == len(self.parts) else None


def local_boxes(scratch: Path, pins: Sequence[str]) -> Callable[[], list[Box]]:
    """Return a function that lists this machine, with a slot for each of `pins`."""
    parts = [functools.partial(run.measure, place=Place(scratch, len(pins), pin)) for pin in pins]
    box = Box(functools.partial(run.measure, place=Place(scratch)), parts)
    return lambda: [box]


@dataclass
class Supervisor:
    """Run jobs on boxes, which may come and go meanwhile.

    It ends between cases at the `deadline`, and at once when `stop` has a signal. `troubles` has a line for each error
    that no record tells."""

    boxes: Callable[[], Sequence[Box]]
    progress: Progress
    deadline: float
    stop: list[int]
    troubles: list[str] = field(default_factory=list)
    waiting: deque[Job] = field(default_factory=deque)
    busy: dict[Slot, Job] = field(default_factory=dict)
    events: queue.Queue = field(default_factory=queue.Queue)
    losses: Counter = field(default_factory=Counter)

    def run(self, jobs: Sequence[Job]) -> None:
        """Run jobs in their order, until all are done, or to the deadline or a signal.

        While a cluster has no node, it waits. Raises OSError of a slot, and ValueError if every node is refused."""
        self.waiting.extend(jobs)
        while not self.stop:
            if time.monotonic() > self.deadline:
                self.waiting.clear()
            self._start()
            if not self.busy and not self.waiting:
                return
            with contextlib.suppress(queue.Empty):
                slot, event = self.events.get(timeout=LOOK_S)
                self._take(slot, event)

    def _start(self) -> None:
        """Start waiting jobs in their order while there is a free slot for the next."""
        while self.waiting:
            job = self.waiting[0]
            left = self.progress.ledger.left(job)
            if left:
                free_slots = [box.free_slot(job, self.busy) for box in self.boxes()]
                slot = next(filter(None, free_slots), None)
                if slot is None:
                    return
                self.busy[slot] = replace(job, entries=left)
                threading.Thread(target=self._follow, args=(slot, self.busy[slot]), daemon=True).start()
            self.waiting.popleft()

    def _follow(self, slot: Slot, job: Job) -> None:
        """Pass on the messages of a slot, then its error or None; runs in a thread."""
        end = None
        try:
            for message in slot(job, self.deadline):
                self.events.put((slot, message))
        except Exception as error:  # a thread's exception would be lost
            end = error
        self.events.put((slot, end))

    def _take(self, slot: Slot, event: Message | Exception | None) -> None:
        """Take note of a message of a slot, or of the end of its job.

        Raises OSError of a slot, which ends the sweep; other errors are lines of `troubles`."""
        job = self.busy[slot]
        match event:
            case Message("begins", label):
                self.progress.begins(slot, label)
            case Message("record", record):
                self.progress.ends(slot, record)
            case Message("lost", reason):
                self._requeue(slot, job, reason)
            case None | Exception():
                del self.busy[slot]
                self.progress.in_hand.pop(slot, None)
        if isinstance(event, OSError):
            raise event
        if isinstance(event, Exception):
            self.troubles.append(f"{job.experiment}: {type(event).__name__}: {event}")
            self.progress.say(self.troubles[-1])

    def _requeue(self, slot: Slot, job: Job, reason: str) -> None:
        """Put a lost job first in the queue; a case lost too often has crashed."""
        left = self.progress.ledger.left(job)
        # a worker that was lost before a case began says nothing about that case
        if slot in self.progress.in_hand and left:
            file = job.file(left[0])
            self.losses[file] += 1
            if self.losses[file] == LOSSES:
                reason = f"{LOSSES} workers were lost with it in hand: {reason}"
                # nobody knows when it began on the lost worker, so its record took no time
                self._take(slot, run.save_failure(job, left[0], "crashed", reason, run.Seen()))
        self.waiting.appendleft(job)
