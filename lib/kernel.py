"""Executes one notebook, with its parameters, in a kernel of its own; knows not what it does."""

import tempfile
from pathlib import Path

import papermill
from papermill import PapermillExecutionError
from traitlets.config import Config

__all__ = ["PapermillExecutionError", "execute"]


def execute(notebook: Path, output: Path, parameters: dict) -> None:
    """Run `notebook` and keep it with its outputs as `output`. Raises PapermillExecutionError when a cell
    fails, and RuntimeError for some of the ways in which a kernel dies; others look like success."""
    output.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix="kernel-") as folder:
        # sockets in a folder of their own: ports collide when kernels start side by side
        connection = {"transport": "ipc", "connection_file": f"{folder}/kernel.json"}
        papermill.execute_notebook(
            notebook, output, parameters, cwd=str(notebook.parent), kernel_name="python3", progress_bar=False,
            config=Config(KernelManager=connection), extra_arguments=["--IPKernelApp.log_level=50"],
        )  # fmt: skip
