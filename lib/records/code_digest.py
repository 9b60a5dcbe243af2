"""Digest the code that measures an experiment, without its comments, docstrings and formatting.

It uses the names of nodes and fields of the syntax tree, not `ast.dump`, whose output differs between versions of
Python. So the digest is the same in all of them.

>>> code("adam")  # doctest: +SKIP
'3f1c9a5e0b7d2468'
"""

import ast
import functools
import hashlib
import json
import runpy
from collections.abc import Iterator
from pathlib import Path

from lib.paths import ROOT

# Left out: what starts, checks, stores or shows a measurement, and what the record itself states.
UNWATCHED = (
    *("catalog", "cli", "execution", "notebooks", "paths", "validate"),
    *("chapters", "explore", "records", "report", "sweep"),
    *("experiments.cases", "instruments.environment", "instruments.processor"),
)


@functools.cache
def code(experiment: str, root: Path = ROOT) -> str:
    """Digest an experiment's modules, measuring cells and catalogue entry, in 16 hexadecimal digits."""
    own = runpy.run_path(str(root / "lib" / "catalog.py"))["CATALOG"].get(experiment)
    parts = [repr((own.baseline, own.settings)) if own else "", _notebook(experiment, root)[0]]
    return _hash([*parts, *(name + _module(name, root)[0] for name in modules(experiment, root))])[:16]


@functools.cache
def modules(experiment: str, root: Path = ROOT) -> tuple[str, ...]:
    """List the modules below `lib` that a case and its measuring cells import, directly or not."""
    found: set[str] = set()
    new = {f"experiments.{experiment}", "experiments.measure", *_notebook(experiment, root)[1]}
    while new:
        found |= new
        new = {name for module in new for name in _module(module, root)[1]} - found
    return tuple(sorted(name for name in found if _file(name, root).is_file()))


def _file(name: str, root: Path) -> Path:
    return root.joinpath("lib", *name.split(".")).with_suffix(".py")


@functools.cache
def _module(name: str, root: Path) -> tuple[str, frozenset[str]]:
    """Digest one module and list the watched modules that it imports; a missing one is empty."""
    file = _file(name, root)
    tree = ast.parse(file.read_text() if file.is_file() else "")
    return _hash(as_tuples(tree)), frozenset(_imported(tree, root))


@functools.cache
def _notebook(experiment: str, root: Path) -> tuple[str, frozenset[str]]:
    """Digest a notebook's measuring cells and list the watched modules that they import."""
    file = root / "notebooks" / f"{experiment}.ipynb"
    cells = json.loads(file.read_text())["cells"] if file.is_file() else []
    sources = ["".join(cell["source"]) for cell in cells if cell["cell_type"] == "code"]
    trees = [(source, ast.parse(source)) for source in sources if "measure" in source]
    doing = [as_tuples(tree) for source, tree in trees if "measure.recording(" in source]
    return _hash(doing), frozenset(name for _, tree in trees for name in _imported(tree, root))


def _hash(content: object) -> str:
    return hashlib.sha256(ascii(content).encode()).hexdigest()


def _imported(tree: ast.AST, root: Path) -> Iterator[str]:
    """Yield the names of the watched modules below `lib` that a tree imports, also lazily."""
    full: list[str] = []
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            full += [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom) and node.module:
            full += [node.module, *(f"{node.module}.{alias.name}" for alias in node.names)]
    for name in (name.removeprefix("lib.") for name in full if name.startswith("lib.")):
        if _file(name, root).is_file() and not f"{name}.".startswith(tuple(f"{each}." for each in UNWATCHED)):
            yield name


def as_tuples(node: object) -> object:
    """Turn a syntax tree into nested tuples, without docstrings and empty fields."""
    if isinstance(node, list):
        return tuple(as_tuples(entry) for entry in node if not _is_text(entry))
    if not isinstance(node, ast.AST):
        return node
    fields = ((name, as_tuples(getattr(node, name, None))) for name in node._fields)
    return (type(node).__name__, *((name, value) for name, value in fields if value not in (None, ())))


def _is_text(node: object) -> bool:
    return isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant) and isinstance(node.value.value, str)
