"""Executes one notebook, with its parameters, in a kernel of its own, and hands on what this writes as soon as it is
there; knows not what it measures.
"""

import concurrent.futures
import contextlib
import json
import os
import shutil
import tempfile
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

import nbformat
import papermill
from jupyter_client import AsyncKernelManager
from jupyter_core.utils import run_sync
from nbclient.exceptions import DeadKernelError
from papermill.clientwrap import PapermillNotebookClient
from papermill.engines import NBClientEngine, papermill_engines
from traitlets.config import Config

from lib import disturbance, notebook, processes
from lib.folders import ROOT
from lib.notebook import NotebookFailed

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
        "SWEEP_LOOK": disturbance.handed_on(),
        # empty when the sweep begins, so that a graph's first compilation is a cold one
        "TORCHINDUCTOR_CACHE_DIR": str(workplace.folder / "compiled"),
    }
    source, log = notebook.NOTEBOOKS / f"{run.experiment}.ipynb", output.with_suffix(".log")
    killed = processes.killed_for_memory()
    variables = own | run.variables
    executing = _threads.submit(execute, source, output, run.parameters, variables, log, workplace.folder)
    try:
        ended = yield from _followed(run, folder / "results", executing)
        if ended.name == "died" and processes.killed_for_memory() > killed:
            ended = Piece("end", "oom")
    finally:
        processes.end(mark)
    concurrent.futures.wait([executing], 5)  # the notebook is written once more when its kernel is gone
    for file in sorted((folder / "runs").rglob("*")):
        if file.is_file() and file.stat().st_size:
            yield Piece("file", str(file.relative_to(folder / "runs")), file.read_bytes())
    shutil.rmtree(folder, ignore_errors=True)
    yield ended


def _followed(run: Run, store: Path, executing: concurrent.futures.Future) -> Iterator[Piece]:
    """Yield the records as they come, and return how the run ended. A case that ran out of memory ends it, so that the
    next one begins in a new process."""
    seen, began = set(), time.monotonic()
    while True:
        over = bool(concurrent.futures.wait([executing], LOOK_S).done)
        new = [file for file in store.glob("*/*/*.json") if file not in seen]
        for file in sorted(new, key=lambda file: file.stat().st_mtime_ns):
            seen.add(file)
            content, began = file.read_bytes(), time.monotonic()
            yield Piece("record", f"{file.parent.name}/{file.stem}", content)
            with contextlib.suppress(ValueError):
                if json.loads(content)["status"] == "oom":
                    return Piece("end", "complete")
        if over:
            return _ended(executing)
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


class _Client(PapermillNotebookClient):
    """A client that does not take a dead kernel for a finished one, and lets no notebook see the names of another."""

    def papermill_execute_cells(self):
        self.wait_for_reply(self.kc.execute("get_ipython().reset(new_session=False)", silent=True))
        super().papermill_execute_cells()
        if not run_sync(self.km.is_alive)():
            raise DeadKernelError("Kernel died")


class _Engine(NBClientEngine):
    """Papermill's engine, with what the kernel's process is started with."""

    @classmethod
    def execute_managed_notebook(cls, nb_man, kernel_name, start=None, config=None, extra_arguments=(), km=None, **_):
        client = _Client(
            nb_man, km, kernel_name=kernel_name, config=config, extra_arguments=list(extra_arguments),
            startup_timeout=120, shutdown_kernel="immediate",
        )  # fmt: skip
        try:
            return client.execute(**start)
        finally:
            if client.kc:  # the client of a kernel that goes on
                client.kc.stop_channels()


papermill_engines.register("measuring", _Engine)


def execute(
    source: Path, output: Path, parameters: Mapping, variables: Mapping[str, str] | None = None,
    log: Path | None = None, scratch: Path | None = None, kept: AsyncKernelManager | None = None,
) -> None:  # fmt: skip
    """Run a notebook and keep it with its outputs as `output`, its kernel's own output in `log`; its sockets are in the
    folder `scratch`, by default the system's for what is temporary. It has a kernel of its own, or one that is `kept`.
    Raises NotebookFailed when a cell fails or the last cell is never reached, and nbclient's DeadKernelError when the
    kernel dies."""
    output.parent.mkdir(parents=True, exist_ok=True)
    paths = os.pathsep.join([str(ROOT), *filter(None, [os.environ.get("PYTHONPATH")])])
    with tempfile.TemporaryDirectory(prefix="kernel-", dir=scratch) as folder, open(log or os.devnull, "wb") as written:
        # sockets in a folder of their own: ports collide when kernels start side by side
        connection = {"transport": "ipc", "connection_file": f"{folder}/kernel.json"}
        start = {"env": {**os.environ, "PYTHONPATH": paths, **(variables or {})}, "cwd": str(source.parent)}
        try:
            done = papermill.execute_notebook(
                source, output, dict(parameters), engine_name="measuring", kernel_name="python3", progress_bar=False,
                start=start | {"stdout": written, "stderr": written}, config=Config(KernelManager=connection),
                extra_arguments=["--IPKernelApp.log_level=50"], km=kept,
            )  # fmt: skip
        except papermill.PapermillExecutionError as error:
            raise NotebookFailed(f"{error.ename}: {error.evalue}, in {source.name}; see {output.name}") from None
        except RuntimeError as error:
            if "died" not in str(error):
                raise
            raise DeadKernelError(str(error)) from None
    _refuse_unfinished(source.name, done)


@contextlib.contextmanager
def keeping() -> Iterator[AsyncKernelManager]:
    """A kernel for several notebooks, one after the other, which then import but once; not for what measures."""
    with tempfile.TemporaryDirectory(prefix="kernel-") as folder:
        kept = AsyncKernelManager(kernel_name="python3", transport="ipc", connection_file=f"{folder}/kernel.json")
        try:
            yield kept
        finally:
            if kept.has_kernel:
                run_sync(kept.shutdown_kernel)(now=True)


def _refuse_unfinished(name: str, done: nbformat.NotebookNode) -> None:
    """A cell that ends the notebook by sys.exit looks like success to papermill."""
    code = [cell for cell in done.cells if cell.cell_type == "code" and cell.source.strip()]
    if code and code[-1].execution_count is None:
        raise NotebookFailed(f"{name} ended before its last cell")
