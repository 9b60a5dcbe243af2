"""The ways in which a case can behave, well or badly; knows nothing of sweeps."""

import collections
import itertools
import os
import signal
import subprocess
import sys
import time
from pathlib import Path


def _raise() -> None:
    raise KeyError("a bug of the case")


def for_ever() -> None:
    """Wait, and never come back."""
    while True:
        time.sleep(1000)


def _spin() -> None:
    """A loop in C, which holds the interpreter's lock and looks at no signal."""
    collections.deque(itertools.repeat(None), maxlen=0)


def _deaf() -> None:
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
    for_ever()


def _have_children() -> None:
    """Two processes in sessions of their own, one of which ignores what can be ignored."""
    subprocess.Popen(["sleep", "1000"], start_new_session=True)
    subprocess.Popen(["sh", "-c", "trap '' TERM INT HUP; sleep 1000; sleep 1000"], start_new_session=True)


def _with_children() -> None:
    _have_children()
    for_ever()


def _eat() -> None:
    """Take memory until the system ends this process, within the memory group $CHEAP_GROUP, which is small."""
    Path(os.environ["CHEAP_GROUP"], "cgroup.procs").write_text(str(os.getpid()))
    eaten = []
    while True:
        eaten.append(bytearray(os.urandom(2**20)))


BEHAVIOURS = {
    "ok": lambda: None,
    "raise": _raise,
    "exit": lambda: sys.exit(0),
    "kill": lambda: os.kill(os.getpid(), signal.SIGKILL),
    "sleep": for_ever,
    "spin": _spin,
    "deaf": _deaf,
    "children": _with_children,
    "orphans": _have_children,
    "unfinished": lambda: None,  # after the last case, see `cheap.last`
    "lingers": lambda: None,
    "eat": _eat,
}


def _no_memory(device: str) -> None:
    raise MemoryError


def _allocate(device: str) -> None:
    """What torch says when more is asked for than there can be."""
    import torch

    torch.empty(2**60, dtype=torch.uint8, device=device)


OUT_OF_MEMORY = {"oom": _allocate, "memory_error": _no_memory}
