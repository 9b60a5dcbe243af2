"""Execute one measurement notebook for a sweep and yield its records as soon as they exist."""

import concurrent.futures
import contextlib
import json
import shutil
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

from nbclient.exceptions import DeadKernelError

from lib import execution, notebooks
from lib.instruments.processes import MARK, end
from lib.notebooks import NotebookFailed
from lib.sweep import processes

LOOK_S = 0.25  # between checks for new records; more often would disturb the measurement
_threads = concurrent.futures.ThreadPoolExecutor(max_workers=64)  # kept alive, since each keeps an event loop


@dataclass(frozen=True)
class Run:
    """One execution of a measurement notebook, in plain values that can be sent to another machine.

    `name` is the name of the executed notebook, and `todo` lists the records to make. `timeout` is the seconds that
    each case may take, `seconds_left` the seconds left to the sweep. `variables` are environment variables. `share` has
    the slot's number and how many slots there are: each has its own part of the cores."""

    name: str
    machine: str
    experiment: str
    parameters: dict
    todo: tuple[str, ...]
    timeout: float
    seconds_left: float
    variables: dict[str, str] = field(default_factory=dict)
    share: tuple[int, int] = (0, 1)


class Piece(NamedTuple):
    """One result of a run: a `record` as soon as it exists, then each `file` for `runs/`, then the `end`.

    The name of the end is complete, failed (with the reason as content), died, oom or timeout."""

    kind: str
    name: str
    content: bytes = b""


def pieces(run: Run, workspace: processes.Workspace) -> Iterator[Piece]:
    """Execute a run and yield its pieces. Closing the generator kills the kernel and its descendants."""
    folder, mark = workspace.folder / run.name, f"{workspace.mark}/{run.name}"
    output = folder / "runs" / run.machine / f"{run.name}.ipynb"
    output.parent.mkdir(parents=True)
    todo = folder / "todo.json"
    todo.write_text(json.dumps(run.todo))
    own = {
        MARK: mark,
        "RESULTS": str(folder / "results"),
        "SWEEP_RUN": run.name,
        "SWEEP_CASES": str(todo),
        "SWEEP_SECONDS_LEFT": str(run.seconds_left),
        # empty at the start of the sweep, so that the first compilation of a graph is cold
        "TORCHINDUCTOR_CACHE_DIR": str(workspace.folder / "compiled"),
    }
    source, log = notebooks.NOTEBOOKS / f"{run.experiment}.ipynb", output.with_suffix(".log")
    sockets = tempfile.mkdtemp(prefix="kernel-", dir=workspace.sockets)
    kernel = execution.Kernel(sockets)
    arguments = kernel, source, output, run.parameters, own | run.variables, log
    executing = _threads.submit(_execute, run.share, *arguments)
    try:
        ended = yield from _followed(run, folder / "results", executing)
    finally:
        end(mark, kernel.pid)
    concurrent.futures.wait([executing], 5)  # the notebook is written a last time after its kernel ended
    for file in sorted((folder / "runs").rglob("*")):
        if file.is_file() and file.stat().st_size:
            yield Piece("file", str(file.relative_to(folder / "runs")), file.read_bytes())
    for each in (folder, sockets):
        shutil.rmtree(each, ignore_errors=True)
    yield ended


def _execute(share: tuple[int, int], *arguments) -> None:
    """Execute a notebook as `execution.execute_in` does, on the slot's share of the cores."""
    with processes.on_share_of_cores(*share):
        execution.execute_in(*arguments)


def _followed(run: Run, store: Path, executing: concurrent.futures.Future) -> Iterator[Piece]:
    """Yield the records as they appear and return the end of the run.

    A record with status oom or failed ends the run: the next case begins in a new process, since an error may have
    left this one without memory or its GPU unusable."""
    seen, began, killed = set(), time.monotonic(), processes.killed_for_memory()
    while True:
        over = bool(concurrent.futures.wait([executing], LOOK_S).done)
        new = [file for file in store.glob("*/*/*.json") if file not in seen]
        for file in sorted(new, key=lambda file: file.stat().st_mtime_ns):
            seen.add(file)
            content, began, killed = file.read_bytes(), time.monotonic(), processes.killed_for_memory()
            yield Piece("record", f"{file.parent.name}/{file.stem}", content)
            with contextlib.suppress(ValueError):
                if json.loads(content)["status"] in ("oom", "failed"):
                    return Piece("end", "complete")
        if over:
            ended = _end_of(executing)
            starved = ended.name == "died" and processes.killed_for_memory() > killed
            return Piece("end", "oom") if starved else ended
        if time.monotonic() - began > run.timeout:
            return Piece("end", "timeout")


def _end_of(executing: concurrent.futures.Future) -> Piece:
    try:
        executing.result()
    except NotebookFailed as error:
        return Piece("end", "failed", str(error).encode())
    except DeadKernelError:
        return Piece("end", "died")
    return Piece("end", "complete")
