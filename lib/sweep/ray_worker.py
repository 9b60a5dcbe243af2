"""What a node of a cluster does for a sweep that is supervised elsewhere: says how it sees the sweep, executes a run.

Each function is a task of Ray's and undoes first what Ray does to a task; torch is only imported after that.
"""

import contextlib
import hashlib
import os
import signal
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

import psutil

from lib.notebooks import SWEEPS
from lib.sweep import processes

if TYPE_CHECKING:
    from lib.sweep.plan import Task
    from lib.sweep.run import Run

OVERRIDDEN = ("OMP_NUM_THREADS", "CUDA_VISIBLE_DEVICES")  # what Ray sets for a task and a kernel's times depend on


@dataclass(frozen=True)
class View:
    """How a node sees a sweep: its tasks, a digest of the sweep's file, and by how much the niceness of what runs there
    is more than that of the node itself."""

    tasks: "list[Task]"
    sweep: str
    nicer_by: int


def view(sweep: str) -> View:
    """How this node sees a sweep, with all of its GPUs."""
    nicer_by = as_without_ray(whole=True)
    from lib.sweep import plan

    return View(plan.planned(sweep), digest(sweep), nicer_by)


def measured(one: "Run", whole: bool) -> Iterator[tuple[str, str, bytes]]:
    """Yield the pieces of a run as `run.measured` does."""
    as_without_ray(whole)
    from lib.sweep import run

    with processes.workplace() as workplace:
        for piece in run.measured(one, workplace):
            yield tuple(piece)


def here() -> bool:
    """That this node answers."""
    return True


def digest(sweep: str) -> str:
    """A digest of the sweep's file, to see whether two checkouts have the same."""
    return hashlib.sha256((SWEEPS / f"{sweep}.yaml").read_bytes()).hexdigest()


def as_without_ray(whole: bool) -> int:
    """Undo for this thread, and for what it starts, what Ray does to a task and no kernel should feel: the number of
    threads, on a `whole` node the choice of GPUs, the blocked SIGINT and the lower priority. Returns by how much the
    niceness is still more than the node's, since not everyone may lower it."""
    node = psutil.Process(int(os.environ["RAY_RAYLET_PID"]))
    own = node.environ()
    for name in OVERRIDDEN if whole else OVERRIDDEN[:1]:
        os.environ.pop(name, None)
        if name in own:
            os.environ[name] = own[name]
    signal.pthread_sigmask(signal.SIG_SETMASK, ())
    with contextlib.suppress(PermissionError):
        os.setpriority(os.PRIO_PROCESS, 0, node.nice())
    return os.getpriority(os.PRIO_PROCESS, 0) - node.nice()
