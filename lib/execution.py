"""Execute a notebook with parameters in a kernel of this Python."""

import contextlib
import os
import tempfile
from collections.abc import Iterator, Mapping
from pathlib import Path
from types import MappingProxyType

import papermill
from jupyter_client import AsyncKernelManager
from jupyter_client.kernelspec import KernelSpecManager
from jupyter_core.utils import run_sync
from nbclient.exceptions import DeadKernelError
from papermill.clientwrap import PapermillNotebookClient
from papermill.engines import NBClientEngine, papermill_engines
from traitlets import default

from lib.notebooks import NotebookFailed
from lib.paths import ROOT

SOCKET = "/sweep-12345678/kernel-12345678/kernel-ipc-5"  # a socket's longest path below the folder for temporary files
SOCKET_BYTES = 103  # of a socket's path that macOS allows; Linux allows 107


def socket_folder() -> str:
    """Return the folder for temporary files, or /tmp if socket paths would be too long."""
    folder = tempfile.gettempdir()
    return folder if len(os.fsencode(folder + SOCKET)) <= SOCKET_BYTES else "/tmp"


class Kernel(AsyncKernelManager):
    """Run a kernel of this Python, whatever python3 Jupyter has installed.

    Its sockets are files in a folder of its own: ports collide when kernels start side by side."""

    def __init__(self, folder: str):
        super().__init__(transport="ipc", connection_file=f"{folder}/kernel.json")

    @property
    def pid(self) -> int | None:
        """Return the id of its process, which leads a session, or None before it has one."""
        return self.provisioner and self.provisioner.pid

    @default("kernel_spec_manager")
    def _no_installed_kernels(self) -> KernelSpecManager:
        return KernelSpecManager(kernel_dirs=[])


class _Client(PapermillNotebookClient):
    """Clear the names of the previous notebook, and report a dead kernel as a failure."""

    def papermill_execute_cells(self):
        self.wait_for_reply(self.kc.execute("get_ipython().reset(new_session=False)", silent=True))
        super().papermill_execute_cells()
        if not run_sync(self.km.is_alive)():
            raise DeadKernelError("Kernel died")


class _Engine(NBClientEngine):
    """Run papermill's engine; `start` says how to start the kernel's process.

    Without `saves`, the notebook is written at its end alone, not before and after each cell."""

    @classmethod
    def execute_managed_notebook(cls, nb_man, kernel_name, start=None, saves=True, extra_arguments=(), km=None, **_):
        client = _Client(
            nb_man, km, kernel_name=kernel_name, extra_arguments=list(extra_arguments), startup_timeout=120,
            shutdown_kernel="immediate",
        )  # fmt: skip
        output = nb_man.output_path
        nb_man.output_path = output if saves else None
        try:
            return client.execute(**start)
        finally:
            nb_man.output_path = output
            if client.kc:  # the kernel goes on, but this client ends
                client.kc.stop_channels()


papermill_engines.register("measuring", _Engine)


def execute(source: Path, output: Path, parameters: Mapping[str, object], kept: Kernel | None = None) -> None:
    """Execute a notebook with these parameters into `output`, in a new kernel or in `kept`.

    Raises NotebookFailed when a cell fails or the last cell is never reached, and nbclient's DeadKernelError when the
    kernel dies."""
    with tempfile.TemporaryDirectory(prefix="kernel-", dir=socket_folder()) as folder:
        execute_in(kept or Kernel(folder), source, output, parameters, ends=kept is None)


@contextlib.contextmanager
def shared_kernel() -> Iterator[Kernel]:
    """Keep a kernel for several notebooks in turn, to import only once. Do not measure in it."""
    with tempfile.TemporaryDirectory(prefix="kernel-", dir=socket_folder()) as folder:
        kept = Kernel(folder)
        try:
            yield kept
        finally:
            if kept.has_kernel:
                run_sync(kept.shutdown_kernel)(now=True)


def execute_in(
    kernel: Kernel, source: Path, output: Path, parameters: Mapping[str, object],
    variables: Mapping[str, str] = MappingProxyType({}), log: Path | str = os.devnull, ends: bool = True,
) -> None:  # fmt: skip
    """Execute a notebook as `execute` does, in a kernel that it starts if necessary.

    Its process gets the environment `variables`, writes its output to `log`, and `ends` with the notebook."""
    output.parent.mkdir(parents=True, exist_ok=True)
    paths = os.pathsep.join([str(ROOT), *filter(None, [os.environ.get("PYTHONPATH")])])
    start = {"env": {**os.environ, "PYTHONPATH": paths, **variables}, "cwd": str(source.parent), "cleanup_kc": ends}
    with open(log, "wb") as written:
        try:
            done = papermill.execute_notebook(
                source, output, dict(parameters), engine_name="measuring", kernel_name="python3", progress_bar=False,
                start=start | {"stdout": written, "stderr": written}, saves=ends,
                extra_arguments=["--IPKernelApp.log_level=50"], km=kernel,
            )  # fmt: skip
        except papermill.PapermillExecutionError as error:
            raise NotebookFailed(f"{error.ename}: {error.evalue}, in {source.name}; see {output.name}") from None
        except RuntimeError as error:
            if "died" not in str(error):
                raise
            raise DeadKernelError(str(error)) from None
    code = [cell for cell in done.cells if cell.cell_type == "code" and cell.source.strip()]
    if code and code[-1].execution_count is None:  # a cell called sys.exit, which papermill takes for success
        raise NotebookFailed(f"{source.name} ended before its last cell")
