"""Execute notebooks with parameters by papermill, in kernels of this Python."""

import contextlib
import logging
import os
import tempfile
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

import nbformat
import papermill
from jupyter_client import AsyncKernelManager
from jupyter_client.kernelspec import KernelSpecManager
from jupyter_core.utils import run_sync
from nbformat import NotebookNode
from papermill.clientwrap import PapermillNotebookClient
from papermill.engines import NBClientEngine, papermill_engines
from papermill.execute import remove_error_markers

from lib.notebooks import NotebookFailed
from lib.paths import ROOT

# else it warns of each parameter that a notebook does not name, such as `skip`
logging.getLogger("papermill").setLevel(logging.ERROR)
# else it prints a traceback where a signal ends an execution
logging.getLogger("asyncio").setLevel(logging.CRITICAL)


def socket_folder() -> str:
    """Return the folder for temporary files, or /tmp if sockets need a shorter one."""
    folder = tempfile.gettempdir()
    # macOS allows 103 bytes, of which up to 44 are a sweep's folder, a kernel's and a socket's name
    return folder if len(os.fsencode(folder)) <= 59 else "/tmp"


class KernelManager(AsyncKernelManager):
    """Run a kernel of this Python, whatever python3 Jupyter has installed.

    Its sockets are files in a folder of its own: ports collide when kernels start side by side."""

    def __init__(self, folder: str):
        only_this_python = KernelSpecManager(kernel_dirs=[])
        super().__init__(transport="ipc", connection_file=f"{folder}/kernel.json", kernel_spec_manager=only_this_python)


class _Client(PapermillNotebookClient):
    """Clear the names of the previous notebook first."""

    def papermill_execute_cells(self):
        # multiprocessing asks for __spec__, which goes with the names
        code = "get_ipython().reset(new_session=False); __spec__ = None"
        self.wait_for_reply(self.kc.execute(code, silent=True))
        super().papermill_execute_cells()


class _Engine(NBClientEngine):
    """Run papermill's engine in a kernel of ours; `start` says how to start it."""

    @classmethod
    def execute_managed_notebook(cls, nb_man, kernel_name, kernel, start, on_last, **_):
        def call_on_last(cell, cell_index):
            if cell_index == len(nb_man.nb.cells) - 1:
                on_last()

        client = _Client(nb_man, kernel, kernel_name=kernel_name, startup_timeout=120, on_cell_execute=call_on_last)
        # nbclient answers an Output widget while it waits for a reply, which it then may miss (its issue 312)
        client.widget_registry = {}
        try:
            client.execute(**start)
        finally:
            if client.kc:
                # the kernel goes on, but this client ends
                client.kc.stop_channels()


papermill_engines.register("measuring", _Engine)


@contextlib.contextmanager
def shared_kernel() -> Iterator[KernelManager]:
    """Keep a kernel for several notebooks in turn; do not measure in it."""
    with tempfile.TemporaryDirectory(prefix="kernel-", dir=socket_folder()) as folder:
        kernel = KernelManager(folder)
        try:
            yield kernel
        finally:
            if kernel.has_kernel:
                run_sync(kernel.shutdown_kernel)(now=True)


def read(source: Path) -> NotebookNode:
    """Read a notebook. Raises NotebookFailed, with its name, for what is none."""
    try:
        return nbformat.read(source, as_version=4)
    # nbformat raises errors of many kinds for a file that is empty, in conflict, or of a later version
    except Exception as error:
        raise NotebookFailed(f"{source.name}: cannot be read: {type(error).__name__}: {error}") from None


def execute(
    kernel: KernelManager, source: Path, output: Path, parameters: Mapping[str, object],
    variables: Mapping[str, str] | None = None, log: Path | str = os.devnull, until: str = "",
    on_last: Callable[[], None] = lambda: None,
) -> None:  # fmt: skip
    """Execute a notebook with these parameters into `output`.

    It ends with the first cell tagged `until`, or else with the last cell, and calls `on_last` when that cell begins. A
    kernel that does not run yet is started with these environment `variables`, and writes to `log`. It runs on
    afterwards. Raises NotebookFailed after an error, or if the last cell is never reached. Raises nbclient's
    DeadKernelError when the kernel dies, and writes nothing then."""
    notebook = read(source)
    for position, cell in enumerate(notebook.cells):
        if until in cell.metadata.get("tags", []):
            notebook.cells = notebook.cells[: position + 1]
            break
    output.parent.mkdir(parents=True, exist_ok=True)
    path = os.pathsep.join(filter(None, [str(ROOT), os.environ.get("PYTHONPATH")]))
    # a user's profile and style may change what is measured and shown
    own = {"IPYTHONDIR": str(Path(kernel.connection_file).parent), "MATPLOTLIBRC": os.devnull, "PYTHONSTARTUP": ""}
    environment = {**os.environ, "PYTHONPATH": path, **own, **(variables or {})}
    # `_check` reads from the output which errors there were
    with open(log, "ab") as file, contextlib.suppress(papermill.PapermillExecutionError):
        papermill.execute_notebook(
            notebook, output, dict(parameters), engine_name="measuring", kernel_name="python3", language="python",
            progress_bar=False, request_save_on_cell_execute=False, kernel=kernel, on_last=on_last,
            start={"env": environment, "cwd": str(source.parent), "stdout": file, "stderr": file},
        )  # fmt: skip
    _check(output)


def _check(output: Path) -> None:
    """Remove papermill's error marks; raises NotebookFailed unless all cells ran."""
    notebook = remove_error_markers(nbformat.read(output, as_version=4))
    code_cells = [cell for cell in notebook.cells if cell.cell_type == "code" and cell.source.strip()]
    outputs = [shown for cell in code_cells for shown in cell.outputs]
    errors = [f"{shown.ename}: {shown.evalue}" for shown in outputs if shown.output_type == "error"]
    nbformat.write(notebook, output)
    # papermill takes sys.exit for success
    if code_cells and code_cells[-1].execution_count is None:
        errors.append("ended before its last cell")
    if errors:
        raise NotebookFailed(f"{errors[0]}, in {output.name}")
