"""Finds the measurement notebooks and reads their defaults; runs none and imports neither torch nor papermill."""

import ast
import functools
import json
import os.path
from pathlib import Path

from lib.catalog import CATALOG
from lib.paths import ROOT

NOTEBOOKS = ROOT / "notebooks"
SWEEPS, CHAPTERS = NOTEBOOKS / "sweeps", NOTEBOOKS / "report"
SETTINGS = {  # parameters of every measurement notebook beside the fields of its case, and the least that each may be
    "warmup": 0,
    "samples": 1,
    "target_percent": 0,
    "seconds": 0,
    "pairs": 0,
    "round": 0,
}


class NotebookFailed(Exception):
    """A cell of a notebook raised an exception, which is a bug."""


def sweeps() -> list[str]:
    """The names of the sweeps: the files of their folder, without links that lead out of it."""
    folder = SWEEPS.resolve()
    return sorted(file.stem for file in SWEEPS.glob("*.yaml") if file.is_file() and file.resolve().parent == folder)


def experiments() -> list[str]:
    """The names of the experiments, which are those of the measurement notebooks; one that only reads has no round."""
    return sorted(file.stem for file in NOTEBOOKS.glob("*.ipynb") if "round" in parameters(file.stem))


@functools.cache
def parameters(notebook: str | Path) -> dict:
    """The defaults in the cell tagged `parameters` of an experiment's notebook, or of the one in a file."""
    source = _parameters_cell(NOTEBOOKS / f"{notebook}.ipynb" if isinstance(notebook, str) else notebook)
    return {line.targets[0].id: ast.literal_eval(line.value) for line in ast.parse(source).body}


def settings(experiment: str) -> dict:
    """The settings of an experiment's notebook, in their order, and the least that each may be."""
    return SETTINGS | dict(CATALOG[experiment].settings if experiment in CATALOG else {})


def fields(experiment: str) -> list[str]:
    """The fields of an experiment's case, in their order; none for what no notebook measures."""
    if not os.path.exists(NOTEBOOKS / f"{experiment}.ipynb"):  # Path.exists raises for a very long name
        return []
    return [name for name in parameters(experiment) if name not in settings(experiment)]


def _parameters_cell(file: Path) -> str:
    cells = json.loads(file.read_text())["cells"]
    return next(("".join(c["source"]) for c in cells if "parameters" in c["metadata"].get("tags", [])), "")
