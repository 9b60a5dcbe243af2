"""Digests the code that the records of an experiment come from: what it does, however it is written; knows no torch.

Two versions of the code that differ in comments, docstrings and formatting alone have the same digest, and so have two
versions of Python: the tree is walked by the names of its nodes and fields, since `ast.dump` differs between them.
"""

import ast
import functools
import hashlib
import json
import os.path
from collections.abc import Iterator
from pathlib import Path

from lib.paths import ROOT

MEASURING = {  # the modules that decide what a record holds, beside those of the cases
    "adam", "attention", "baseline", "checkpointing", "classes", "compilation", "cost", "dtypes", "footprint",
    "measure", "memory", "model", "nsys", "overheads", "precision", "predict", "profiling", "rounding", "series",
    "sizes", "stats", "timeline", "timing", "training",
}  # fmt: skip
PROGRAMS = {"calibration": "calibrate"}  # experiments that a module of their own measures, and no notebook


@functools.cache
def code(experiment: str, root: Path = ROOT) -> str:
    """A digest of the modules that an experiment's cases touch and of the cells that measure them, 16 hexadecimal
    digits, so that records of different code can be told apart."""
    parts = [_notebook(experiment, root)[0], *(name + _module(name, root)[0] for name in modules(experiment, root))]
    return _hash(parts)[:16]


@functools.cache
def modules(experiment: str, root: Path = ROOT) -> tuple[str, ...]:
    """The names below `lib` of the modules that an experiment measures with, by what they import of each other."""
    own = PROGRAMS.get(experiment, f"cases.{experiment}")
    found, new = set(), {own, "measure", *_notebook(experiment, root)[1]}
    while new:
        found |= new
        new = {name for module in new for name in _module(module, root)[1]} - found
    return tuple(sorted(name for name in found if os.path.exists(_file(name, root))))


def _file(name: str, root: Path) -> Path:
    return root.joinpath("lib", *name.split(".")).with_suffix(".py")


@functools.cache
def _module(name: str, root: Path) -> tuple[str, frozenset[str]]:
    """A digest of a module, and the measuring ones that it imports; nothing of one that is not there."""
    file = _file(name, root)
    tree = ast.parse(file.read_text() if os.path.exists(file) else "")
    return _hash(shape(tree)), frozenset(_imported(tree, root))


@functools.cache
def _notebook(experiment: str, root: Path) -> tuple[str, frozenset[str]]:
    """A digest of the cells of an experiment's notebook that measure, and the measuring modules that its cells
    import."""
    file = root / "notebooks" / f"{experiment}.ipynb"
    cells = json.loads(file.read_text())["cells"] if os.path.exists(file) else []
    sources = ["".join(cell["source"]) for cell in cells if cell["cell_type"] == "code"]
    trees = [(source, ast.parse(source)) for source in sources if "measure" in source]
    doing = [shape(tree) for source, tree in trees if "measure.recording(" in source]
    return _hash(doing), frozenset(name for _, tree in trees for name in _imported(tree, root))


def _hash(content: object) -> str:
    return hashlib.sha256(ascii(content).encode()).hexdigest()


def _imported(tree: ast.AST, root: Path) -> Iterator[str]:
    """The names below `lib` of the measuring modules that a tree imports, wherever in it."""
    full: list[str] = []
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            full += [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom) and node.module:
            full += [node.module, *(f"{node.module}.{alias.name}" for alias in node.names)]
    for name in (name.removeprefix("lib.") for name in full if name.startswith("lib.")):
        if name in MEASURING or (name.startswith("cases.") and _file(name, root).exists()):
            yield name


def shape(node: object) -> object:
    """A syntax tree as nested tuples of names and constants, without what is empty and without statements that are
    only a text, such as docstrings."""
    if isinstance(node, list):
        return tuple(shape(entry) for entry in node if not _is_text(entry))
    if not isinstance(node, ast.AST):
        return node
    fields = ((name, shape(getattr(node, name, None))) for name in node._fields)
    return (type(node).__name__, *((name, value) for name, value in fields if value not in (None, ())))


def _is_text(node: object) -> bool:
    return isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant) and isinstance(node.value.value, str)
