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
from lib.sweep import processes
from lib.sweep.plan import Task
from lib.sweep.progress import Progress, now
from lib.sweep.run import Piece, Run, pieces

ATTEMPTS = 2  # per case, since something else may have killed its first process
ALIKE = 5  # cases of a kernel that fail alike before the rest is left out, unless one succeeds
NUMBER = re.compile(r"[-+]?\d[\d.,]*(e[-+]?\d+)?")
LOOK_S = 5  # between checks of the list of boxes while nothing happens
PHASES = ("forward_ms", "backward_ms", "synchronization_ms", "optimizer_ms")
ROUNDING = 1e-3  # allowed relative gap between total and sum of phases, which are readings of one clock


class SlotLost(Exception):
    """Raised by a slot when its box is gone together with its run."""


Slot = Callable[[Run], Iterator[Piece]]  # executes a run and yields its pieces; of one kernel at a time


@dataclass
class Box:
    """Hold a machine: one slot for all of it, one per GPU, and the tasks for its kind of hardware."""

    tasks: deque[Task]
    whole: Slot
    slots: list[Slot]

    def free(self, active: "dict[Slot, ActiveRun]") -> Slot | None:
        """Return a slot for the next task, or None while it has to wait."""
        busy = [slot for slot in (self.whole, *self.slots) if slot in active]
        if self.tasks[0].alone or not self.slots:
            return None if busy else self.whole
        return None if self.whole in busy else next((slot for slot in self.slots if slot not in busy), None)


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
            while box.tasks:
                if not (todo := self.todo(box.tasks[0])):
                    self._drop(box.tasks.popleft())
                elif (slot := box.free(self.active)) and time.monotonic() < self.deadline:
                    self._begin(box, slot, box.tasks.popleft(), todo)
                else:
                    break

    def _drop(self, task: Task) -> None:
        self.progress.drops((task.machine, name) for name in task.cases)

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
            for piece in active.slot(active.run):
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
            check(found, task, name)
        except ValueError as error:
            damaged.refuse(task.machine, name, piece.content, str(error))
            if self._failed_last_attempt(active, name):
                self.failures.append(f"{name}: its record was refused: {error}")
                self._finish(active, name, failed=True)
        else:
            results.write(piece.content)
            self._finish(active, name, failed=found["status"] == "failed")
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
            self.finished |= {(task.machine, each) for each in left}

    def _finish(self, active: ActiveRun, name: str, failed: bool) -> None:
        key = active.task.machine, name
        self.finished.add(key)
        self.progress.ends(active.slot, key, failed)

    def _failed_last_attempt(self, active: ActiveRun, name: str) -> bool:
        """Count a failed attempt at a case; return True if it was the last."""
        self.failed_attempts[active.task.machine, name] += 1
        return self.failed_attempts[active.task.machine, name] >= ATTEMPTS

    def _on_complete(self, active: ActiveRun, _: Piece) -> None:
        """Requeue the rest of a completed run, or fail if it made no record before the deadline."""
        if not active.received and time.monotonic() < self.deadline:
            self.failures.append(f"{active.run.experiment}: the notebook made no record; see {active.run.name}")
        else:
            active.box.tasks.appendleft(active.task)

    def _on_failure(self, active: ActiveRun, piece: Piece) -> None:
        """Report the exception of a cell, give up the current case, and requeue the rest of the task.

        A task is given up when two runs in a row make no record. Raises atomic.CannotWrite if the kernel could not
        write into its scratch folder, since no other kernel could."""
        reason = piece.content.decode(errors="replace")
        if match := re.match(r"CannotWrite: (.+?): cannot be written, (.+)", reason):
            raise atomic.CannotWrite(errno.EIO, match[2], match[1])
        self.failures.append(reason)
        if name := self._current(active):
            self._finish(active, name, failed=True)
        else:
            self.progress.failed += 1
        key = id(active.task)
        self.without_record[key] = 0 if active.received else self.without_record[key] + 1
        if self.without_record[key] < ATTEMPTS:
            active.box.tasks.appendleft(active.task)
        else:
            self._drop(active.task)

    def _on_death(self, active: ActiveRun, piece: Piece) -> None:
        """Retry the case of a dead kernel once, then record it as crashed or oom."""
        name, starved = self._current(active), piece.name == "oom"
        if name and self._failed_last_attempt(active, name):
            self._save_end(active, name, "oom" if starved else "crashed")
            self.failures += [] if starved else [f"{name}: its process died"]
        if not name and piece.name == "died":
            self.failures.append(f"{active.run.experiment}: process died after its last record; see {active.run.name}")
        active.box.tasks.appendleft(active.task)

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
        active.box.tasks.appendleft(active.task)

    def _save_end(self, active: ActiveRun, name: str, status: str) -> None:
        """Write the record of a case whose kernel could not write it."""
        task = active.task
        content = record.create(
            experiment=task.experiment, case=task.cases[name], round=task.round, status=status, metrics={},
            environment=task.environment | {"run": active.run.name}, code=task.code, started=active.started,
            seconds=time.monotonic() - active.began,
        )  # fmt: skip
        results.write(content)
        self._finish(active, name, failed=status != "oom")


def check(found: dict, task: Task, name: str) -> None:
    """Raise ValueError unless a record is the requested one and its phases add up to the total."""
    around = found["environment"]
    if around["machine"] != task.machine:
        raise ValueError(f"machine: expected {task.machine}")
    if around.get("torch") != task.environment.get("torch"):
        raise ValueError(f"torch: expected {task.environment.get('torch')}, the version that planned the sweep")
    called = results.called(found["experiment"], found["case"], found["round"])
    if called != name or found["case"] != task.cases.get(name):
        raise ValueError(f"case: expected that of {name} in the sweep")
    if found["code"] != task.code:
        raise ValueError(f"code: expected {task.code}; did the code change while the sweep ran?")
    totals = found["metrics"].get("total_ms")
    phases = [found["metrics"][phase] for phase in PHASES if isinstance(found["metrics"].get(phase), list)]
    if phases and isinstance(totals, list):
        if {len(phase) for phase in phases} != {len(totals)}:
            raise ValueError("metrics: expected every phase in every iteration")
        if any(abs(sum(parts) - total) > ROUNDING * total for *parts, total in zip(*phases, totals, strict=True)):
            raise ValueError("metrics: expected the phases of an iteration to add up to its total")


@contextlib.contextmanager
def local(tasks: list[Task], pins: list[str]) -> Iterator[list[Box]]:
    """Yield this machine as the only box, with a slot for each GPU in `pins` (see `plan.pins`).

    Each has its share of the cores."""
    with processes.workspace() as workspace:

        def at(number: int) -> Slot:
            pin, share = {"CUDA_VISIBLE_DEVICES": pins[number]}, (number, len(pins))
            return lambda run: pieces(replace(run, variables=run.variables | pin, share=share), workspace)

        yield [Box(deque(tasks), lambda run: pieces(run, workspace), [at(number) for number in range(len(pins))])]
