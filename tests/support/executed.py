"""Runs the cells of a notebook in this process, which takes a second where a kernel takes many."""

import ast
import json
from pathlib import Path

from lib import notebooks

OF_OTHERS = ("80", "84")  # chapters on the write-ups' own tables and on all machines


def sources(notebook: Path, kind: str = "code") -> list[str]:
    """Return the sources of a notebook's cells of a kind, `code` or `markdown`."""
    return ["".join(cell["source"]) for cell in json.loads(notebook.read_text())["cells"] if cell["cell_type"] == kind]


def shown(notebook: Path, **parameters) -> list:
    """Run a notebook with these parameters and return every object that it shows."""
    found: list = []
    names: dict = {"display": lambda *shown: found.extend(shown)}
    for number, cell in enumerate(sources(notebook)):
        tree = ast.parse(cell)
        last = tree.body.pop() if tree.body and isinstance(tree.body[-1], ast.Expr) else None
        exec(compile(tree, "cell", "exec"), names)
        names |= parameters if number == 0 else {}
        if last:
            found.append(eval(compile(ast.Expression(last.value), "cell", "eval"), names))
    return [one for one in found if one is not None]


def told(machine: str) -> str:
    """Return all that the chapters on a machine alone show of it, as HTML."""
    chapters = sorted(file for file in notebooks.CHAPTERS.glob("*.ipynb") if file.stem[:2] not in OF_OTHERS)
    objects = [one for chapter in chapters for one in shown(chapter, machine=machine)]
    return "\n".join(one._repr_html_() for one in objects)
