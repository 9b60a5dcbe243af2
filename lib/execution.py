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
from types import MappingProxyType
from typing import NamedTuple

import nbformat
import papermill
from jupyter_client import AsyncKernelManager
from jupyter_client.kernelspec import KernelSpecManager
from jupyter_core.utils import run_sync
from nbclient.exceptions import DeadKernelError
from papermill.clientwrap import PapermillNotebookClient
from papermill.engines import NBClientEngine, papermill_engines
from traitlets import default

from lib import notebooks
from lib.notebooks import NotebookFailed
from lib.paths import ROOT
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
    kernel = Kernel(sockets)
    executing = _threads.submit(_execute, kernel, source, output, run.parameters, own | run.variables, log)
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


class Kernel(AsyncKernelManager):
    """A kernel of the Python that runs here, whichever one is called python3 on the paths of Jupyter, with its sockets
    in a folder of its own: ports collide when kernels start side by side."""

    def __init__(self, folder: str):
        super().__init__(transport="ipc", connection_file=f"{folder}/kernel.json")

    @property
    def pid(self) -> int | None:
        """Its process, which leads a session; None as long as there is none."""
        return self.provisioner and self.provisioner.pid

    @default("kernel_spec_manager")
    def _knows_no_other(self) -> KernelSpecManager:
        return KernelSpecManager(kernel_dirs=[])


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
    def execute_managed_notebook(cls, nb_man, kernel_name, start=None, extra_arguments=(), km=None, **_):
        client = _Client(
            nb_man, km, kernel_name=kernel_name, extra_arguments=list(extra_arguments), startup_timeout=120,
            shutdown_kernel="immediate",
        )  # fmt: skip
        try:
            return client.execute(**start)
        finally:
            if client.kc:  # the client of a kernel that goes on
                client.kc.stop_channels()


papermill_engines.register("measuring", _Engine)


def execute(source: Path, output: Path, parameters: Mapping[str, object], kept: Kernel | None = None) -> None:
    """Execute a notebook with these parameters into `output`, in a kernel of its own or one that is `kept`. Raises
    NotebookFailed when a cell fails or the last cell is never reached, and nbclient's DeadKernelError when the kernel
    dies."""
    with tempfile.TemporaryDirectory(prefix="kernel-", dir=processes.for_sockets()) as folder:
        _execute(kept or Kernel(folder), source, output, parameters, ends=kept is None)


@contextlib.contextmanager
def keeping() -> Iterator[Kernel]:
    """A kernel for several notebooks, one after the other, which then import but once; not for what measures."""
    with tempfile.TemporaryDirectory(prefix="kernel-", dir=processes.for_sockets()) as folder:
        kept = Kernel(folder)
        try:
            yield kept
        finally:
            if kept.has_kernel:
                run_sync(kept.shutdown_kernel)(now=True)


def _execute(
    kernel: Kernel, source: Path, output: Path, parameters: Mapping[str, object],
    variables: Mapping[str, str] = MappingProxyType({}), log: Path | str = os.devnull, ends: bool = True,
) -> None:  # fmt: skip
    """`execute` in a kernel that is started where it does not run yet, with environment variables and its own output in
    `log`, and which `ends` with the notebook."""
    output.parent.mkdir(parents=True, exist_ok=True)
    paths = os.pathsep.join([str(ROOT), *filter(None, [os.environ.get("PYTHONPATH")])])
    start = {"env": {**os.environ, "PYTHONPATH": paths, **variables}, "cwd": str(source.parent), "cleanup_kc": ends}
    with open(log, "wb") as written:
        try:
            done = papermill.execute_notebook(
                source, output, dict(parameters), engine_name="measuring", kernel_name="python3", progress_bar=False,
                start=start | {"stdout": written, "stderr": written},
                extra_arguments=["--IPKernelApp.log_level=50"], km=kernel,
            )  # fmt: skip
        except papermill.PapermillExecutionError as error:
            raise NotebookFailed(f"{error.ename}: {error.evalue}, in {source.name}; see {output.name}") from None
        except RuntimeError as error:
            if "died" not in str(error):
                raise
            raise DeadKernelError(str(error)) from None
    _refuse_unfinished(source.name, done)


def _refuse_unfinished(name: str, done: nbformat.NotebookNode) -> None:
    """A cell that ends the notebook by sys.exit looks like success to papermill."""
    code = [cell for cell in done.cells if cell.cell_type == "code" and cell.source.strip()]
    if code and code[-1].execution_count is None:
        raise NotebookFailed(f"{name} ended before its last cell")
