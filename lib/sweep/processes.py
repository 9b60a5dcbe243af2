"""Finds the processes of a sweep by a mark in their environment, which every descendant inherits, and ends them.

A guard, a process of its own, does so when the one that started them is gone, however it went. Knows no notebook.
"""

import contextlib
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

import psutil

from lib.paths import ROOT

MARK = "SWEEP_MARK"
DONE = b"done"  # what the guard is told when nothing went wrong


@dataclass(frozen=True)
class Workplace:
    """A scratch folder, one for sockets, and the mark of all processes that are started for them."""

    mark: str
    folder: Path
    sockets: Path


def marked(mark: str) -> list[psutil.Process]:
    """The living processes whose mark begins like this."""
    found = []
    for process in psutil.process_iter():
        try:
            if process.environ().get(MARK, "").startswith(mark) and lives(process):
                found.append(process)
        except (psutil.Error, OSError):  # another user's, or gone in the meantime
            continue
    return found


def family(leader: int) -> list[psutil.Process]:
    """The living processes of the session that a process leads, and their descendants."""
    found = set()
    for process in psutil.process_iter():
        with contextlib.suppress(psutil.Error, OSError):
            if os.getsid(process.pid) == leader:
                found |= {process, *process.children(recursive=True)}
    return list(filter(lives, found))


def lives(process: psutil.Process) -> bool:
    """Tell whether a process runs, and is not just waiting for its parent to take note of its end."""
    with contextlib.suppress(psutil.Error):
        return process.status() != psutil.STATUS_ZOMBIE
    return False


def end(mark: str, leader: int | None = None, within_s: float = 4.0) -> None:
    """Kill all processes whose mark begins like this, and what they start in the meantime; of the session that a
    process leads even those whose environment cannot be read."""
    deadline = time.monotonic() + within_s
    while (found := {*marked(mark), *(family(leader) if leader else ())}) and time.monotonic() < deadline:
        for process in found:
            with contextlib.suppress(psutil.Error):
                process.kill()
        psutil.wait_procs(found, timeout=1)


@contextlib.contextmanager
def workplace() -> Iterator[Workplace]:
    """A workplace for the block, whose processes and folders are gone when it ends, or when this process does."""
    from lib import execution  # here, since the guard starts without it in a tenth of the time

    folders = [Path(tempfile.mkdtemp(prefix="sweep-", dir=within)) for within in (None, execution.socket_folder())]
    place = Workplace(uuid.uuid4().hex, *folders)
    guard = subprocess.Popen(
        [sys.executable, "-m", "lib.sweep.processes", place.mark, *map(str, folders)],
        stdin=subprocess.PIPE, start_new_session=True, cwd=ROOT,
    )  # fmt: skip
    ended = False
    try:
        yield place
        ended = True
    finally:
        end(place.mark)
        _remove(folders)
        if ended and not any(folder.exists() for folder in folders):
            with contextlib.suppress(BrokenPipeError):
                guard.communicate(DONE)
        else:  # something may just be starting or writing: the guard ends that too, when this process is gone
            guard.stdin.close()


def _remove(folders: Iterable[Path | str]) -> None:
    for folder in folders:
        shutil.rmtree(folder, ignore_errors=True)


def guard(mark: str, *folders: str) -> None:
    """Wait until standard input ends; then, unless all is done, end the processes of a workplace and remove it."""
    for number in (signal.SIGTERM, signal.SIGHUP, signal.SIGINT):
        signal.signal(number, signal.SIG_IGN)
    if sys.stdin.buffer.read() == DONE:
        return
    for _ in range(3):  # one that was being started when its parent died has its mark a moment later
        end(mark)
        _remove(folders)
        time.sleep(0.5)


def killed_for_memory() -> int:
    """How often the system has killed a process for want of memory: in this control group and those below it; where
    that does not tell, as a whole; else 0. Source: docs.kernel.org, cgroup-v2 (memory.events) and proc (vmstat)."""
    for file in (_own_group() / "memory.events", Path("/proc/vmstat")):
        with contextlib.suppress(OSError):
            if found := re.search(r"^oom_kill (\d+)$", file.read_text(), re.MULTILINE):
                return int(found[1])
    return 0


def _own_group() -> Path:
    with contextlib.suppress(OSError):
        if found := re.search(r"^0::/?(.*)$", Path("/proc/self/cgroup").read_text(), re.MULTILINE):
            return Path("/sys/fs/cgroup", found[1])
    return Path("/sys/fs/cgroup")


if __name__ == "__main__":
    os.chdir("/")  # the guard keeps no folder busy
    guard(*sys.argv[1:])
