"""Runs one measurement notebook for a sweep, and yields its records as soon as they are there."""

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
from lib.notebooks import NotebookFailed
from lib.sweep import processes

LOOK_S = 0.25  # between looks at what the kernel has written: seldom, so as not to disturb what is measured
_threads = concurrent.futures.ThreadPoolExecutor(max_workers=64)  # they live on, since each keeps an event loop


@dataclass(frozen=True)
class Run:
    """One execution of a measurement notebook: `name`, that of the executed notebook; `todo`, the names of the records
    that it is to make; the seconds that a case may take and that the sweep has left; and environment variables.
    Plain values, so that it can be sent to another machine."""

    name: str
    machine: str
    experiment: str
    parameters: dict
    todo: tuple[str, ...]
    timeout: float
    seconds_left: float
    variables: dict[str, str] = field(default_factory=dict)


class Piece(NamedTuple):
    """What comes out of a run: a `record` of a name with its bytes, as soon as it is there; at the end each `file` for
    `runs/`; and last the `end`, named complete, failed (then the content says why), died, oom or timeout."""

    kind: str
    name: str
    content: bytes = b""


def measured(run: Run, workplace: processes.Workplace) -> Iterator[Piece]:
    """Execute a notebook and yield its pieces. When the generator is closed, the kernel and all its descendants end."""
    folder, mark = workplace.folder / run.name, f"{workplace.mark}/{run.name}"
    output = folder / "runs" / run.machine / f"{run.name}.ipynb"
    output.parent.mkdir(parents=True)
    todo = folder / "todo.json"
    todo.write_text(json.dumps(run.todo))
    own = {
        processes.MARK: mark,
        "RESULTS": str(folder / "results"),
        "SWEEP_RUN": run.name,
        "SWEEP_CASES": str(todo),
        "SWEEP_SECONDS_LEFT": str(run.seconds_left),
        # empty when the sweep begins, so that a graph's first compilation is a cold one
        "TORCHINDUCTOR_CACHE_DIR": str(workplace.folder / "compiled"),
    }
    source, log = notebooks.NOTEBOOKS / f"{run.experiment}.ipynb", output.with_suffix(".log")
    sockets = tempfile.mkdtemp(prefix="kernel-", dir=workplace.sockets)
    kernel = execution.Kernel(sockets)
    executing = _threads.submit(execution.execute_in, kernel, source, output, run.parameters, own | run.variables, log)
    try:
        ended = yield from _followed(run, folder / "results", executing)
    finally:
        processes.end(mark, kernel.pid)
    concurrent.futures.wait([executing], 5)  # the notebook is written once more when its kernel is gone
    for file in sorted((folder / "runs").rglob("*")):
        if file.is_file() and file.stat().st_size:
            yield Piece("file", str(file.relative_to(folder / "runs")), file.read_bytes())
    for each in (folder, sockets):
        shutil.rmtree(each, ignore_errors=True)
    yield ended


def _followed(run: Run, store: Path, executing: concurrent.futures.Future) -> Iterator[Piece]:
    """Yield the records as they come, and return how the run ended. A case that ran out of memory ends it, so that the
    next one begins in a new process."""
    seen, began, killed = set(), time.monotonic(), processes.killed_for_memory()
    while True:
        over = bool(concurrent.futures.wait([executing], LOOK_S).done)
        new = [file for file in store.glob("*/*/*.json") if file not in seen]
        for file in sorted(new, key=lambda file: file.stat().st_mtime_ns):
            seen.add(file)
            content, began, killed = file.read_bytes(), time.monotonic(), processes.killed_for_memory()
            yield Piece("record", f"{file.parent.name}/{file.stem}", content)
            with contextlib.suppress(ValueError):
                if json.loads(content)["status"] == "oom":
                    return Piece("end", "complete")
        if over:
            ended = _ended(executing)
            starved = ended.name == "died" and processes.killed_for_memory() > killed
            return Piece("end", "oom") if starved else ended
        if time.monotonic() - began > run.timeout:
            return Piece("end", "timeout")


def _ended(executing: concurrent.futures.Future) -> Piece:
    try:
        executing.result()
    except NotebookFailed as error:
        return Piece("end", "failed", str(error).encode())
    except DeadKernelError:
        return Piece("end", "died")
    return Piece("end", "complete")
