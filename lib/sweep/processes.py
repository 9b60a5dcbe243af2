"""Give a sweep a workspace whose processes and folders go with it.

A separate process, the guard, kills and removes them when the process that made the workspace has ended in any way.
"""

import contextlib
import math
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import uuid
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

from lib.instruments import container
from lib.instruments.processes import end
from lib.paths import ROOT

DONE = b"done"  # tells the guard that nothing is left to do


@dataclass(frozen=True)
class Workspace:
    """A scratch folder, a folder for sockets, and the mark of the processes that use them."""

    mark: str
    folder: Path
    sockets: Path


@contextlib.contextmanager
def workspace() -> Iterator[Workspace]:
    """Yield a workspace; its processes and folders are removed when the block or this process ends."""
    from lib import execution  # not at the top: without it the guard starts ten times faster

    folders = [Path(tempfile.mkdtemp(prefix="sweep-", dir=within)) for within in (None, execution.socket_folder())]
    space = Workspace(uuid.uuid4().hex, *folders)
    guard = subprocess.Popen(
        [sys.executable, "-m", "lib.sweep.processes", space.mark, *map(str, folders)],
        stdin=subprocess.PIPE, start_new_session=True, cwd=ROOT,
    )  # fmt: skip
    ended = False
    try:
        yield space
        ended = True
    finally:
        end(space.mark)
        _remove(folders)
        if ended and not any(folder.exists() for folder in folders):
            with contextlib.suppress(BrokenPipeError):
                guard.communicate(DONE)
        else:  # something may still start or write; the guard removes that too, once this process is gone
            guard.stdin.close()


def _remove(folders: Iterable[Path | str]) -> None:
    for folder in folders:
        shutil.rmtree(folder, ignore_errors=True)


def guard(mark: str, *folders: str) -> None:
    """Wait for the end of standard input; then, unless told `DONE`, clean up a workspace."""
    for number in (signal.SIGTERM, signal.SIGHUP, signal.SIGINT):
        signal.signal(number, signal.SIG_IGN)
    if sys.stdin.buffer.read() == DONE:
        return
    for _ in range(3):  # a process that was just being started gets its mark a moment later
        end(mark)
        _remove(folders)
        time.sleep(0.5)


@contextlib.contextmanager
def on_share_of_cores(number: int, of: int) -> Iterator[None]:
    """Start processes of this thread on share `number` of `of` shares of the cores.

    A process counts its cores by this, and takes as many threads to compute and to compile. Linux only."""
    if of == 1 or not hasattr(os, "sched_setaffinity"):
        yield
        return
    every = sorted(os.sched_getaffinity(0))
    usable = math.floor(min(len(every), container.cores()))  # slots share a container's quota too
    own = every[number * usable // of : (number + 1) * usable // of]
    os.sched_setaffinity(0, own or every)
    try:
        yield
    finally:
        os.sched_setaffinity(0, every)


def killed_for_memory() -> int:
    """Count processes killed for lack of memory, in this control group or else the system; 0 if unknown.

    Source: docs.kernel.org, cgroup-v2 (memory.events) and proc (vmstat)."""
    for file in (*(group / "memory.events" for group in container.groups("memory")), Path("/proc/vmstat")):
        with contextlib.suppress(OSError):
            if found := re.search(r"^oom_kill (\d+)$", file.read_text(), re.MULTILINE):
                return int(found[1])
    return 0


if __name__ == "__main__":
    os.chdir("/")  # so that the guard keeps no folder busy
    guard(*sys.argv[1:])
