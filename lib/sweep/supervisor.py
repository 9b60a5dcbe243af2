"""Supervises a sweep: hands its tasks to the slots that execute them, and alone writes the records.

What is done has its record, so that a supervisor may be killed at any moment, and the next one goes on.
"""

import contextlib
import errno
import queue
import re
import threading
import time
from collections import Counter, deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from pathlib import PurePosixPath

from lib.records import atomic, damaged, record, results
from lib.sweep import acceptance, processes
from lib.sweep.plan import Task
from lib.sweep.progress import Progress, now
from lib.sweep.run import Piece, Run, measured

ATTEMPTS = 2  # a case whose process died is tried once more; it may have been killed for no fault of its own
LOOK_S = 5  # between looks at the list of boxes while nothing happens


class SlotLost(Exception):
    """A box is gone, and what ran there with it."""


class Slot:
    """Where one kernel runs at a time, on this machine, with environment variables of its own."""

    def __init__(self, workplace: processes.Workplace, variables: dict[str, str] | None = None):
        self.workplace, self.variables = workplace, variables or {}

    def pieces(self, run: Run) -> Iterator[Piece]:
        """Execute a run. A slot elsewhere raises SlotLost when that is no longer possible there."""
        return measured(replace(run, variables=run.variables | self.variables), self.workplace)


@dataclass
class Box:
    """A machine: the slots of its GPUs, the one that takes the whole of it, and the tasks that are its kind's to do,
    which boxes of the same hardware share."""

    tasks: deque[Task]
    whole: Slot
    slots: list[Slot]

    def free(self, hands: "dict[Slot, Hand]") -> Slot | None:
        """A slot for the next task, or None while it has to wait."""
        busy = [slot for slot in (self.whole, *self.slots) if slot in hands]
        if not self.tasks or self.whole in busy or (self.tasks[0].alone and busy):
            return None
        if self.tasks[0].alone or not self.slots:
            return self.whole
        return next((slot for slot in self.slots if slot not in busy), None)


@dataclass
class Hand:
    """A task in execution: at which box and slot, as which run, and when its present case began."""

    box: Box
    slot: Slot
    task: Task
    run: Run
    began: float = field(default_factory=time.monotonic)
    started: str = field(default_factory=now)
    settled: set[str] = field(default_factory=set)  # the names whose record this run has made, accepted or refused


class Supervisor:
    """Does the tasks of some boxes, a list that may change meanwhile, until `budget` seconds have passed; `again` are
    the kinds of records that are made anew (see `Task.todo`). What went wrong is in `failures`, a line each."""

    def __init__(self, boxes: list[Box], progress: Progress, budget: float, again: frozenset[str] = frozenset()):
        self.boxes, self.progress, self.again = boxes, progress, again
        self.deadline = time.monotonic() + budget
        self.hands: dict[Slot, Hand] = {}
        self.events: queue.Queue[tuple[Hand, Piece]] = queue.Queue()
        self.queues = list({id(box.tasks): box.tasks for box in boxes}.values())
        self.attempts: Counter[tuple[str, str]] = Counter()  # that failed, by machine and name
        self.barren: Counter[int] = Counter()  # runs of a task, one after the other, that raised before any record
        self.lost = ""
        self.finished: set[tuple[str, str]] = set()
        self.failures: list[str] = []
        self.endings: dict[str, Callable[[Hand, Piece], None]] = {
            "complete": self._left_early, "failed": self._failed, "died": self._died, "lost": self._lost,
            "timeout": self._late, "oom": self._died,
        }  # fmt: skip

    def run(self) -> None:
        """Do all that there is to do. Raises atomic.CannotWrite where the store cannot be written."""
        for task in {id(task): task for box in self.boxes for task in box.tasks}.values():
            for name in self.todo(task):
                if name in task.too_large:
                    self._save(task, name, "too_large", task.too_large[name], now(), 0.0)
                    self._finish(None, task, name)
        self._start()
        while self.hands:
            try:
                hand, piece = self.events.get(timeout=LOOK_S)
            except queue.Empty:  # a box may have joined
                self._start()
                continue
            if piece.kind == "record":
                self._accept(hand, piece)
            elif piece.kind == "file":
                results.write_run(PurePosixPath(piece.name), piece.content)
            else:
                del self.hands[hand.slot]
                self.endings[piece.name](hand, piece)
            self._start()
        left = {task.experiment for tasks in self.queues for task in tasks if self.todo(task)}
        if left and time.monotonic() < self.deadline:
            self.failures.append(f"{', '.join(sorted(left))}: no machine of its kind is left, {self.lost}")

    def todo(self, task: Task) -> list[str]:
        """The names of the records that are still to be made of a task, in their order."""
        return [name for name in task.todo(self.again) if (task.machine, name) not in self.finished]

    def _in_hand(self, hand: Hand) -> str | None:
        """The name of the record that a run is to make next; None when it has made all."""
        todo = self.todo(hand.task)
        return next((name for name in hand.run.todo if name in todo and name not in hand.settled), None)

    def _start(self) -> None:
        """Give each free slot something to do."""
        for box in list(self.boxes):
            while box.tasks and not self.todo(box.tasks[0]):
                self._drop(box.tasks.popleft())
            while (slot := box.free(self.hands)) and time.monotonic() < self.deadline:
                task = box.tasks.popleft()
                if todo := self.todo(task):
                    self._begin(box, slot, task, todo)
                else:
                    self._drop(task)

    def _drop(self, task: Task) -> None:
        for name in task.cases:
            self.progress.drops((task.machine, name))

    def _begin(self, box: Box, slot: Slot, task: Task, todo: list[str]) -> None:
        stamp = datetime.now(UTC).strftime("%Y%m%dT%H%M%S%f")  # several begin within a millisecond
        name = f"{stamp}-{task.experiment}-r{task.round}"
        left = self.deadline - time.monotonic()
        variables = {} if task.last else {"SWEEP_ROUND_FOLLOWS": "1"}
        run = Run(name, task.machine, task.experiment, task.parameters, tuple(todo), task.timeout, left, variables)
        hand = self.hands[slot] = Hand(box, slot, task, run)
        self.progress.begins(slot, (task.machine, todo[0]))
        threading.Thread(target=self._follow, args=(hand,), daemon=True).start()

    def _follow(self, hand: Hand) -> None:
        """In a thread of its own: pass on what comes out of a run."""
        try:
            for piece in hand.slot.pieces(hand.run):
                self.events.put((hand, piece))
        except SlotLost as error:
            self.events.put((hand, Piece("end", "lost", str(error).encode())))
        except Exception as error:  # a thread's exception would be lost
            self.events.put((hand, Piece("end", "failed", f"{type(error).__name__}: {error}".encode())))

    def _accept(self, hand: Hand, piece: Piece) -> None:
        """Take a record into the store, or set it aside as a failed attempt."""
        task, name = hand.task, piece.name
        try:
            found = record.parse(piece.content)
            acceptance.check(found, task, name)
        except ValueError as error:
            damaged.refuse(task.machine, name, piece.content, str(error))
            if self._given_up(hand, name):
                self.failures.append(f"{name}: its record was refused, {error}")
                self._finish(hand.slot, task, name, failed=True)
        else:
            results.write(piece.content)
            self._finish(hand.slot, task, name)
        hand.settled.add(name)
        hand.began, hand.started = time.monotonic(), now()
        if following := self._in_hand(hand):
            self.progress.begins(hand.slot, (task.machine, following))

    def _finish(self, slot: Slot | None, task: Task, name: str, failed: bool = False) -> None:
        key = task.machine, name
        self.finished.add(key)
        self.progress.ends(slot, key, failed)

    def _given_up(self, hand: Hand, name: str) -> bool:
        """Count a failed attempt at a case, and tell whether it was the last one."""
        self.attempts[hand.task.machine, name] += 1
        return self.attempts[hand.task.machine, name] >= ATTEMPTS

    def _again(self, hand: Hand) -> None:
        if self.todo(hand.task):
            hand.box.tasks.appendleft(hand.task)

    def _left_early(self, hand: Hand, _: Piece) -> None:
        """A run came to its end. A case that ran out of memory ends its kernel, and so does the sweep's time; but that
        there is no record at all is a bug of the notebook."""
        if not hand.settled and time.monotonic() < self.deadline:
            self.failures.append(f"{hand.run.experiment}: its notebook made no record; see {hand.run.name}")
        else:
            self._again(hand)

    def _failed(self, hand: Hand, piece: Piece) -> None:
        """A cell raised an exception, which is a bug: the case in hand is given up without a record, and the next ones
        get a new kernel. A task two runs of which make no record, one after the other, is left. Where the kernel could
        not write into its scratch folder, no other can. Raises atomic.CannotWrite."""
        said = piece.content.decode(errors="replace")
        if found := re.match(r"CannotWrite: (.+?): cannot be written, (.+)", said):
            raise atomic.CannotWrite(errno.EIO, found[2], found[1])
        self.failures.append(said)
        if name := self._in_hand(hand):
            self._finish(hand.slot, hand.task, name, failed=True)
        else:
            self.progress.failed += 1
        self.barren[id(hand.task)] = 0 if hand.settled else self.barren[id(hand.task)] + 1
        if self.barren[id(hand.task)] < ATTEMPTS:
            self._again(hand)
        else:
            self._drop(hand.task)

    def _died(self, hand: Hand, piece: Piece) -> None:
        """The kernel is gone: its case is tried once more, then it is a row; `oom` where the system killed the process
        for want of memory, which others may have used."""
        name = self._in_hand(hand)
        if name and self._given_up(hand, name):
            self._save_end(hand, name, "oom" if piece.name == "oom" else "crashed")
            if piece.name != "oom":
                self.failures.append(f"{name}: its process died")
        if not name and piece.name == "died":
            self.failures.append(f"{hand.run.experiment}: its process died after its last record; see {hand.run.name}")
        self._again(hand)

    def _lost(self, hand: Hand, piece: Piece) -> None:
        """The box is gone with the run, which goes elsewhere."""
        with contextlib.suppress(ValueError):  # who keeps the list may have seen it first
            self.boxes.remove(hand.box)
        self.lost = piece.content.decode()
        self._died(hand, piece)

    def _late(self, hand: Hand, _: Piece) -> None:
        """The case in hand took too long."""
        if name := self._in_hand(hand):
            self._save_end(hand, name, "timeout")
            self.failures.append(f"{name}: took longer than {hand.task.timeout:g} s")
        else:
            self.failures.append(
                f"{hand.run.experiment}: its notebook did not end after its last record; see {hand.run.name}"
            )
        self._again(hand)

    def _save_end(self, hand: Hand, name: str, status: str) -> None:
        self._save(hand.task, name, status, {}, hand.started, time.monotonic() - hand.began, hand.run.name)
        self._finish(hand.slot, hand.task, name, failed=status != "oom")

    def _save(
        self, task: Task, name: str, status: str, metrics: dict, started: str, seconds: float, run: str = "none"
    ) -> None:
        """Write a row that no kernel could write."""
        content = record.create(
            experiment=task.experiment, case=task.cases[name], round=task.round, status=status, metrics=metrics,
            environment=task.environment | {"run": run}, code=task.code, started=started, seconds=seconds,
        )  # fmt: skip
        results.write(content)


@contextlib.contextmanager
def local(tasks: list[Task], pins: list[str]) -> Iterator[list[Box]]:
    """This machine as the one box, with a slot for each GPU that `pins` names as CUDA_VISIBLE_DEVICES does."""
    with processes.workplace() as workplace:
        slots = [Slot(workplace, {"CUDA_VISIBLE_DEVICES": pin}) for pin in pins]
        yield [Box(deque(tasks), Slot(workplace), slots)]
