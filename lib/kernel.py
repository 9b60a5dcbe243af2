"""Executes one notebook, with its parameters, in a kernel of its own; knows not what it does."""

import tempfile
from pathlib import Path

import papermill
from traitlets.config import Config

from lib.notebook import NotebookFailed


def execute(notebook: Path, output: Path, parameters: dict) -> None:
    """Run `notebook` and keep it with its outputs as `output`. Raises NotebookFailed when a cell fails. A kernel
    that dies is no error here, since not every such death is seen: what it should have written is missing."""
    output.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix="kernel-") as folder:
        # sockets in a folder of their own: ports collide when kernels start side by side
        connection = {"transport": "ipc", "connection_file": f"{folder}/kernel.json"}
        try:
            papermill.execute_notebook(
                notebook, output, parameters, cwd=str(notebook.parent), kernel_name="python3", progress_bar=False,
                config=Config(KernelManager=connection), extra_arguments=["--IPKernelApp.log_level=50"],
            )  # fmt: skip
        except papermill.PapermillExecutionError as error:
            raise NotebookFailed(f"{error.ename}: {error.evalue}, in {notebook.name}; see {output}") from None
        except RuntimeError as error:
            if "died" not in str(error):
                raise
