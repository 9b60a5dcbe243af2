"""Find and kill processes by a mark that they inherit in their environment."""

import contextlib
import os
import time

import psutil

MARK = "SWEEP_MARK"


def marked(mark: str) -> list[psutil.Process]:
    """List the running processes whose mark starts with `mark`."""
    found = []
    for process in psutil.process_iter():
        try:
            if process.environ().get(MARK, "").startswith(mark) and is_alive(process):
                found.append(process)
        except (psutil.Error, OSError):  # of another user, or gone in the meantime
            continue
    return found


def family(leader: int) -> list[psutil.Process]:
    """List the running processes of a leader's session, and their descendants."""
    found = set()
    for process in psutil.process_iter():
        with contextlib.suppress(psutil.Error, OSError):
            if os.getsid(process.pid) == leader:
                found |= {process, *process.children(recursive=True)}
    return list(filter(is_alive, found))


def is_alive(process: psutil.Process) -> bool:
    """Tell if a process is running and not a zombie."""
    with contextlib.suppress(psutil.Error):
        return process.status() != psutil.STATUS_ZOMBIE
    return False


def end(mark: str, leader: int | None = None, within_s: float = 4.0) -> None:
    """Kill all processes with a mark, and those that they start meanwhile.

    With a `leader`, also kills the processes of its session, whose environment may be unreadable."""
    deadline = time.monotonic() + within_s
    while (found := {*marked(mark), *(family(leader) if leader else ())}) and time.monotonic() < deadline:
        for process in found:
            with contextlib.suppress(psutil.Error):
                process.kill()
        psutil.wait_procs(found, timeout=1)
