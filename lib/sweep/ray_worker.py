"""Plan a sweep and execute its runs on a node of a Ray cluster, supervised from elsewhere.

Ray tasks first undo Ray's settings for a task; torch is imported only after that.
"""

import contextlib
import hashlib
import os
import signal
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

import psutil

from lib import notebooks
from lib.sweep import processes

if TYPE_CHECKING:
    from lib.sweep.plan import Task
    from lib.sweep.run import Run

OVERRIDDEN = ("OMP_NUM_THREADS", "CUDA_VISIBLE_DEVICES")  # set by Ray for a task; a kernel's times depend on them


@dataclass(frozen=True)
class View:
    """A node's view of a sweep: tasks, digest of the file, niceness of workers above the node's."""

    tasks: "list[Task]"
    sweep: str
    extra_niceness: int


def view(sweep: str) -> View:
    """Return this node's view of a sweep, with all of its GPUs."""
    extra_niceness = undo_ray(whole=True)
    from lib.sweep import plan

    return View(plan.planned(sweep), digest(sweep), extra_niceness)


def pieces(one: "Run", whole: bool) -> Iterator[tuple[str, str, bytes]]:
    """Execute a run and yield its pieces as `run.pieces` does."""
    undo_ray(whole)
    from lib.sweep import run

    with processes.workspace() as workspace:
        for piece in run.pieces(one, workspace):
            yield tuple(piece)


def here() -> bool:
    """Return True, to show that this node answers."""
    return True


def digest(sweep: str) -> str:
    """Digest a sweep's file, to compare two checkouts."""
    return hashlib.sha256(notebooks.sweeps()[sweep].read_bytes()).hexdigest()


def undo_ray(whole: bool) -> int:
    """Undo Ray's settings for a task in this thread: number of threads, blocked SIGINT and lower priority.

    On a `whole` node also undoes the choice of GPUs. Returns the niceness that remains above the node's, since lowering
    it may need rights."""
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
