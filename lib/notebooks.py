"""Find the measurement notebooks and read their defaults, without torch or papermill."""

import ast
import functools
import json
import os.path
from pathlib import Path

from lib import paths
from lib.catalog import CATALOG
from lib.paths import ROOT

NOTEBOOKS = ROOT / "notebooks"
SWEEPS, CHAPTERS = NOTEBOOKS / "sweeps", NOTEBOOKS / "report"
SETTINGS = {  # parameters of every measurement notebook that are no fields of its case, with their least values
    "warmup": 0,
    "samples": 1,
    "target_percent": 0,
    "seconds": 0,
    "pairs": 0,
    "round": 0,
}


class NotebookFailed(Exception):
    """Report a bug: a cell of a notebook raised an exception, or the notebook ended early."""


def sweeps() -> dict[str, Path]:
    """Return the files of the sweeps by name, `unclear` among them, without links that lead out."""
    folder = SWEEPS.resolve()
    files = [file for file in SWEEPS.glob("*.yaml") if file.is_file() and file.resolve().parent == folder]
    return {file.stem: file for file in [*sorted(files), *filter(Path.is_file, [paths.unclear()])]}


def experiments() -> list[str]:
    """List the experiments, named like the notebooks that have the parameter `round`."""
    return sorted(file.stem for file in NOTEBOOKS.glob("*.ipynb") if "round" in parameters(file.stem))


@functools.cache
def parameters(notebook: str | Path) -> dict:
    """Read the defaults in the `parameters` cell of an experiment's notebook, or of a file."""
    file = NOTEBOOKS / f"{notebook}.ipynb" if isinstance(notebook, str) else notebook
    cells = json.loads(file.read_text())["cells"]
    source = next(("".join(c["source"]) for c in cells if "parameters" in c["metadata"].get("tags", [])), "")
    return {line.targets[0].id: ast.literal_eval(line.value) for line in ast.parse(source).body}


def settings(experiment: str) -> dict:
    """Return the settings of an experiment's notebook in order, with their least values."""
    return SETTINGS | dict(CATALOG[experiment].settings if experiment in CATALOG else {})


def fields(experiment: str) -> list[str]:
    """List the fields of an experiment's case, in their order; [] if it has no notebook."""
    if not os.path.exists(NOTEBOOKS / f"{experiment}.ipynb"):  # Path.exists raises for a very long name
        return []
    return [name for name in parameters(experiment) if name not in settings(experiment)]
