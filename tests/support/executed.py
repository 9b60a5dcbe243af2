"""Runs the cells of a chapter in this process, which takes a second where a kernel takes many."""

import ast
import json
import re
from pathlib import Path

from lib import notebooks


def sources(chapter: Path, kind: str = "code") -> list[str]:
    """Return the sources of a notebook's cells of a kind, `code` or `markdown`."""
    return ["".join(cell["source"]) for cell in json.loads(chapter.read_text())["cells"] if cell["cell_type"] == kind]


def shown(chapter: Path, machine: str) -> list:
    """Run a chapter for a machine and return every object that it shows."""
    found: list = []
    names: dict = {"display": lambda *shown: found.extend(shown)}
    for cell in sources(chapter):
        tree = ast.parse(re.sub(r'^machine = ".*"$', f'machine = "{machine}"', cell, flags=re.MULTILINE))
        last = tree.body.pop() if tree.body and isinstance(tree.body[-1], ast.Expr) else None
        exec(compile(tree, "cell", "exec"), names)
        if last:
            found.append(eval(compile(ast.Expression(last.value), "cell", "eval"), names))
    return found


def told(machine: str) -> str:
    """Return all that all chapters show of a machine, as HTML."""
    objects = [one for chapter in sorted(notebooks.CHAPTERS.glob("*.ipynb")) for one in shown(chapter, machine)]
    return "\n".join(one._repr_html_() for one in objects if one is not None)
