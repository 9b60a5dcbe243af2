"""Find the notebooks and read their defaults, without torch or papermill."""

import ast
import functools
import json
from pathlib import Path

from lib import validate
from lib.paths import ROOT

NOTEBOOKS = ROOT / "notebooks"
SWEEPS = NOTEBOOKS / "sweeps"
SETTINGS = ("seconds", "round", "machine")  # parameters of every notebook that are no axes


class NotebookFailed(Exception):
    """Report a bug: a cell raised an exception, or the notebook ended early."""


def sweeps() -> dict[str, Path]:
    """Return the sweep files by name."""
    return {file.stem: file for file in sorted(SWEEPS.glob("*.yaml")) if file.is_file()}


@functools.cache
def experiments() -> list[str]:
    """List the experiments: the notebooks with a cell tagged `measure`, by name."""
    return sorted(file.stem for file in NOTEBOOKS.glob("*.ipynb") if _tagged(file, "measure"))


def _tagged(file: Path, tag: str) -> str:
    """Return the source of the first cell with a tag, or an empty text."""
    for cell in json.loads(file.read_text())["cells"]:
        if tag in cell["metadata"].get("tags", []):
            return "".join(cell["source"])
    return ""


@functools.cache
def parameters(notebook: str) -> dict:
    """Read the defaults in a notebook's `parameters` cell.

    Raises ValueError if there is no such notebook."""
    validate.choice("notebook", notebook, [file.stem for file in NOTEBOOKS.glob("*.ipynb")])
    assignments = ast.parse(_tagged(NOTEBOOKS / f"{notebook}.ipynb", "parameters")).body
    return {line.targets[0].id: ast.literal_eval(line.value) for line in assignments}


def fields(experiment: str) -> list[str]:
    """List the axes of an experiment: its parameters without the settings."""
    return [name for name in parameters(experiment) if name not in SETTINGS]
