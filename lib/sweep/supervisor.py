"""Supervise a sweep: give tasks to free slots, and accept and write their records.

A case is done when its record exists. So a killed supervisor loses no finished case, and the next supervisor continues.
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
from lib.sweep.run import Piece, Run, pieces

ATTEMPTS = 2  # per case, since something else may have killed its first process
ALIKE = 5  # cases of a kernel that fail alike before the rest is left out, unless one succeeds
NUMBER = re.compile(r"[-+]?\d[\d.,]*(e[-+]?\d+)?")
LOOK_S = 5  # between checks of the list of boxes while nothing happens


class SlotLost(Exception):
    """Raised when a box is gone together with its run."""


class Slot:
    """A slot on this machine: all of it, or a GPU and a share of the cores, for one kernel at a time."""

    def __init__(self, workspace: processes.Workspace, pin: str = "", share: tuple[int, int] = (0, 1)):
        self.workspace, self.variables = workspace, {"CUDA_VISIBLE_DEVICES": pin} if pin else {}
        self.share = share

    def pieces(self, run: Run) -> Iterator[Piece]:
        """Execute a run and yield its pieces. Slots on other machines may raise SlotLost."""
        return pieces(replace(run, variables=run.variables | self.variables, share=self.share), self.workspace)


@dataclass
class Box:
    """Hold a machine: one slot for all of it, one per GPU, and the tasks for its kind of hardware."""

    tasks: deque[Task]
    whole: Slot
    slots: list[Slot]

    def free(self, active: "dict[Slot, ActiveRun]") -> Slot | None:
        """Return a slot for the next task, or None while it has to wait."""
        busy = [slot for slot in (self.whole, *self.slots) if slot in active]
        if not self.tasks or self.whole in busy or (self.tasks[0].alone and busy):
            return None
        if self.tasks[0].alone or not self.slots:
            return self.whole
        return next((slot for slot in self.slots if slot not in busy), None)


@dataclass
class ActiveRun:
    """Hold a task in execution at a slot; `began` and `started` give the start of its current case."""

    box: Box
    slot: Slot
    task: Task
    run: Run
    began: float = field(default_factory=time.monotonic)
    started: str = field(default_factory=now)
    received: set[str] = field(default_factory=set)  # names of its records so far, accepted or refused


class Supervisor:
    """Run the tasks of `boxes`, a list that may change meanwhile, for at most `budget` seconds.

    `again` has the kinds of records to make again (see `Task.todo`). `failures` collects one line per failure."""

    def __init__(self, boxes: list[Box], progress: Progress, budget: float, again: frozenset[str] = frozenset()):
        self.boxes, self.progress, self.again = boxes, progress, again
        self.deadline = time.monotonic() + budget
        self.active: dict[Slot, ActiveRun] = {}
        self.events: queue.Queue[tuple[ActiveRun, Piece]] = queue.Queue()
        self.queues = list({id(box.tasks): box.tasks for box in boxes}.values())
        self.failed_attempts: Counter[tuple[str, str]] = Counter()  # by machine and name of the record
        self.alike: Counter[tuple[int, str]] = Counter()  # failed cases of a task, by the first line without numbers
        self.without_record: Counter[int] = Counter()  # consecutive runs of a task that raised before any record
        self.lost_reason = ""
        self.finished: set[tuple[str, str]] = set()
        self.failures: list[str] = []
        self.endings: dict[str, Callable[[ActiveRun, Piece], None]] = {
            "complete": self._on_complete, "failed": self._on_failure, "died": self._on_death, "lost": self._on_loss,
            "timeout": self._on_timeout, "oom": self._on_death,
        }  # fmt: skip

    def run(self) -> None:
        """Run all tasks. Raises atomic.CannotWrite if the store cannot be written."""
        for task in {id(task): task for box in self.boxes for task in box.tasks}.values():
            for name in self.todo(task):
                if name in task.too_large:
                    self._save(task, name, "too_large", task.too_large[name], now(), 0.0)
                    self._finish(None, task, name)
        self._start()
        while self.active:
            try:
                active, piece = self.events.get(timeout=LOOK_S)
            except queue.Empty:  # a box may have joined
                self._start()
                continue
            if piece.kind == "record":
                self._accept(active, piece)
            elif piece.kind == "file":
                results.write_run(PurePosixPath(piece.name), piece.content)
            else:
                del self.active[active.slot]
                self.endings[piece.name](active, piece)
            self._start()
        left = {task.experiment for tasks in self.queues for task in tasks if self.todo(task)}
        if left and time.monotonic() < self.deadline:
            self.failures.append(f"{', '.join(sorted(left))}: no machine of this kind is left: {self.lost_reason}")

    def run_more(self, tasks: list[Task], seconds: float) -> None:
        """Run further tasks on this machine for at most `seconds`, within what is left of the budget."""
        self.deadline = min(self.deadline, time.monotonic() + seconds)
        self.progress.adds([(task.machine, name) for task in tasks for name in self.todo(task)])
        self.boxes[0].tasks.extend(tasks)
        self.run()

    def todo(self, task: Task) -> list[str]:
        """List the records of a task that are still to be made, in order."""
        return task.todo(self.again, self.finished)

    def _current(self, active: ActiveRun) -> str | None:
        """Return the record that a run makes next, or None when it has made all."""
        todo = self.todo(active.task)
        return next((name for name in active.run.todo if name in todo and name not in active.received), None)

    def _start(self) -> None:
        """Start a task at each free slot."""
        for box in list(self.boxes):
            while box.tasks and not self.todo(box.tasks[0]):
                self._drop(box.tasks.popleft())
            while (slot := box.free(self.active)) and time.monotonic() < self.deadline:
                task = box.tasks.popleft()
                if todo := self.todo(task):
                    self._begin(box, slot, task, todo)
                else:
                    self._drop(task)

    def _drop(self, task: Task) -> None:
        for name in task.cases:
            self.progress.drops((task.machine, name))

    def _begin(self, box: Box, slot: Slot, task: Task, todo: list[str]) -> None:
        stamp = datetime.now(UTC).strftime("%Y%m%dT%H%M%S%f")  # several may begin within a millisecond
        name = f"{stamp}-{task.experiment}-r{task.round}"
        left = self.deadline - time.monotonic()
        variables = {} if task.last else {"SWEEP_ROUND_FOLLOWS": "1"}
        run = Run(name, task.machine, task.experiment, task.parameters, tuple(todo), task.timeout, left, variables)
        active = self.active[slot] = ActiveRun(box, slot, task, run)
        self.progress.begins(slot, (task.machine, todo[0]))
        threading.Thread(target=self._follow, args=(active,), daemon=True).start()

    def _follow(self, active: ActiveRun) -> None:
        """Pass the pieces of a run to the supervisor; runs in a thread."""
        try:
            for piece in active.slot.pieces(active.run):
                self.events.put((active, piece))
        except SlotLost as error:
            self.events.put((active, Piece("end", "lost", str(error).encode())))
        except Exception as error:  # a thread's exception would be lost
            self.events.put((active, Piece("end", "failed", f"{type(error).__name__}: {error}".encode())))

    def _accept(self, active: ActiveRun, piece: Piece) -> None:
        """Store a valid record; set a refused one aside and count a failed attempt."""
        task, name = active.task, piece.name
        try:
            found = record.parse(piece.content)
            acceptance.check(found, task, name)
        except ValueError as error:
            damaged.refuse(task.machine, name, piece.content, str(error))
            if self._count_failed_attempt(active, name):
                self.failures.append(f"{name}: its record was refused: {error}")
                self._finish(active.slot, task, name, failed=True)
        else:
            results.write(piece.content)
            self._finish(active.slot, task, name, failed=found["status"] == "failed")
            if found["status"] == "failed":
                self._report_failed(task, name, found["metrics"]["reason"])
        active.received.add(name)
        active.began, active.started = time.monotonic(), now()
        if following := self._current(active):
            self.progress.begins(active.slot, (task.machine, following))

    def _report_failed(self, task: Task, name: str, reason: str) -> None:
        """Report a case that raised an exception; leave out the rest of its kernel if it makes no sense.

        That is after `ALIKE` cases failed with the same type and first line, apart from numbers, and none succeeded."""
        self.failures.append(f"{name}: {record.one_line(reason)}")
        kind = id(task), NUMBER.sub("", reason.partition(" | ")[0])
        self.alike[kind] += 1
        left = self.todo(task)
        if self.alike[kind] >= ALIKE and left and not any(task.status(each) == "ok" for each in task.cases):
            self.failures.append(f"{task.experiment}: left out after {ALIKE} failed alike: {len(left)}")
            for each in left:
                self.finished.add((task.machine, each))
                self.progress.drops((task.machine, each))

    def _finish(self, slot: Slot | None, task: Task, name: str, failed: bool = False) -> None:
        key = task.machine, name
        self.finished.add(key)
        self.progress.ends(slot, key, failed)

    def _count_failed_attempt(self, active: ActiveRun, name: str) -> bool:
        """Count a failed attempt at a case; return True if it was the last."""
        self.failed_attempts[active.task.machine, name] += 1
        return self.failed_attempts[active.task.machine, name] >= ATTEMPTS

    def _requeue(self, active: ActiveRun) -> None:
        if self.todo(active.task):
            active.box.tasks.appendleft(active.task)

    def _on_complete(self, active: ActiveRun, _: Piece) -> None:
        """Requeue the rest of a completed run, or fail if it made no record before the deadline."""
        if not active.received and time.monotonic() < self.deadline:
            self.failures.append(f"{active.run.experiment}: the notebook made no record; see {active.run.name}")
        else:
            self._requeue(active)

    def _on_failure(self, active: ActiveRun, piece: Piece) -> None:
        """Report the exception of a cell, give up the current case, and requeue the rest of the task.

        A task is given up when two runs in a row make no record. Raises atomic.CannotWrite if the kernel could not
        write into its scratch folder, since no other kernel could."""
        reason = piece.content.decode(errors="replace")
        if match := re.match(r"CannotWrite: (.+?): cannot be written, (.+)", reason):
            raise atomic.CannotWrite(errno.EIO, match[2], match[1])
        self.failures.append(reason)
        if name := self._current(active):
            self._finish(active.slot, active.task, name, failed=True)
        else:
            self.progress.failed += 1
        key = id(active.task)
        self.without_record[key] = 0 if active.received else self.without_record[key] + 1
        if self.without_record[key] < ATTEMPTS:
            self._requeue(active)
        else:
            self._drop(active.task)

    def _on_death(self, active: ActiveRun, piece: Piece) -> None:
        """Retry the case of a dead kernel once, then record it as crashed or oom."""
        name = self._current(active)
        if name and self._count_failed_attempt(active, name):
            self._save_end(active, name, "oom" if piece.name == "oom" else "crashed")
            if piece.name != "oom":
                self.failures.append(f"{name}: its process died")
        if not name and piece.name == "died":
            self.failures.append(f"{active.run.experiment}: process died after its last record; see {active.run.name}")
        self._requeue(active)

    def _on_loss(self, active: ActiveRun, piece: Piece) -> None:
        """Remove a lost box and requeue its run; its current case failed once."""
        with contextlib.suppress(ValueError):  # the cluster's thread may have removed it already
            self.boxes.remove(active.box)
        self.lost_reason = piece.content.decode()
        self._on_death(active, piece)

    def _on_timeout(self, active: ActiveRun, _: Piece) -> None:
        """Record the current case as timeout."""
        if name := self._current(active):
            self._save_end(active, name, "timeout")
            self.failures.append(f"{name}: took longer than {active.task.timeout:g} s")
        else:
            self.failures.append(
                f"{active.run.experiment}: the notebook did not end after its last record; see {active.run.name}"
            )
        self._requeue(active)

    def _save_end(self, active: ActiveRun, name: str, status: str) -> None:
        self._save(active.task, name, status, {}, active.started, time.monotonic() - active.began, active.run.name)
        self._finish(active.slot, active.task, name, failed=status != "oom")

    def _save(
        self, task: Task, name: str, status: str, metrics: dict, started: str, seconds: float, run: str = "none"
    ) -> None:
        """Write a record that no kernel could write."""
        content = record.create(
            experiment=task.experiment, case=task.cases[name], round=task.round, status=status, metrics=metrics,
            environment=task.environment | {"run": run}, code=task.code, started=started, seconds=seconds,
        )  # fmt: skip
        results.write(content)


@contextlib.contextmanager
def local(tasks: list[Task], pins: list[str]) -> Iterator[list[Box]]:
    """Yield this machine as the only box, with a slot for each GPU in `pins` (see `plan.pins`)."""
    with processes.workspace() as workspace:
        slots = [Slot(workspace, pin, (number, len(pins))) for number, pin in enumerate(pins)]
        yield [Box(deque(tasks), Slot(workspace), slots)]
