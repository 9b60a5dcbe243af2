"""Digest the code that measures an experiment.

A record keeps the digest of its day; one of another digest is stale, and a sweep measures its case again.
"""

import ast
import functools
import hashlib
from modulefinder import ModuleFinder
from pathlib import Path

from lib.catalog import CATALOG
from lib.paths import ROOT

# What only stores, shows or starts a measurement cannot change it, so changing it makes no record stale.
UNWATCHED = (
    "lib.catalog", "lib.execution", "lib.experiments.cases", "lib.notebooks", "lib.paths", "lib.records", "lib.report",
    "lib.sweep", "lib.validate",
)  # fmt: skip


@functools.cache
def digest(experiment: str) -> str:
    """Digest the code that measures an experiment, in 16 hexadecimal digits.

    It covers the modules that the experiment's file and `measure` reach by imports but for `UNWATCHED`, without their
    comments and docstrings. Of their entries in the catalogue it covers what changes a measurement, which is what
    `repr` shows."""
    reached = modules(experiment)
    parts = []
    for name, entry in CATALOG.items():
        # a step computes by the variants of attention, and so does all that imports them
        if f"lib.{name}" in reached or f"lib.experiments.{name}" in reached:
            parts.append(f"{name} {entry}")
    for module, file in reached.items():
        parts.append(f"{module} {_code(file)}")
    return hashlib.sha256("\n".join(parts).encode()).hexdigest()[:16]


def modules(experiment: str) -> dict[str, str]:
    """Return the files of the modules that measuring an experiment imports, by name.

    Imports count wherever they stand, also within functions and in modules that were imported."""
    finder = ModuleFinder([str(ROOT)], excludes=UNWATCHED)
    finder.import_hook(f"lib.experiments.{experiment}")
    finder.import_hook("lib.experiments.measure")
    return {name: module.__file__ for name, module in sorted(finder.modules.items()) if name.startswith("lib.")}


@functools.cache
def _code(file: str) -> str:
    """Return the code of a module without comments and docstrings."""
    # experiments share most modules, hence the cache
    return str(_plain(ast.parse(Path(file).read_bytes())))


def _plain(node: object) -> object:
    """Turn a syntax tree into lists and dicts, without docstrings and empty fields.

    `ast.dump` writes the same tree differently in different versions of Python; this does not."""
    if isinstance(node, list):
        # a constant alone on its line does nothing: it is a docstring
        nodes = [each for each in node if not (isinstance(each, ast.Expr) and isinstance(each.value, ast.Constant))]
        return [_plain(each) for each in nodes]
    if not isinstance(node, ast.AST):
        return node
    fields = {field: _plain(value) for field, value in ast.iter_fields(node)}
    return type(node).__name__, {field: value for field, value in fields.items() if value not in (None, [])}
