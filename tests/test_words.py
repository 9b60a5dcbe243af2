"""Modules have docstrings, which open with a verb on a short line; words that the glossary replaced stay away."""

import ast
import re
from pathlib import Path

from lib.paths import ROOT

NO_VERB = re.compile(r"(What|Whether|How|Which|Where|The)\b")
REPLACED = re.compile(r"\b(restless|canar(y|ies)|quarantin\w*|strikes|in turns)\b", re.IGNORECASE)
LONGEST = 100


def docstrings(file: Path):
    tree = ast.parse(file.read_text())
    assert file.name == "__init__.py" or ast.get_docstring(tree), file
    for node in ast.walk(tree):
        if isinstance(node, ast.Module | ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            yield getattr(node, "lineno", 1), ast.get_docstring(node) or ""


def test_docstrings_open_with_a_verb_on_a_short_line():
    every = [
        (f"{file.relative_to(ROOT)}:{line}", text)
        for file in sorted((ROOT / "lib").rglob("*.py")) for line, text in docstrings(file)
    ]  # fmt: skip
    assert len(every) > 500
    assert not [place for place, text in every if NO_VERB.match(text)]
    assert not [place for place, text in every if len(text.partition("\n")[0]) > LONGEST]


def test_no_replaced_word_is_left():
    files = [*(ROOT / "lib").rglob("*.py"), *(ROOT / "notebooks").rglob("*.ipynb"), *ROOT.glob("*.md")]
    found = {str(file.relative_to(ROOT)): REPLACED.findall(file.read_text()) for file in files}
    assert not {name: words for name, words in found.items() if words}
    assert REPLACED.search("a restless machine")


def test_the_readme_is_short():
    assert len((ROOT / "README.md").read_text().splitlines()) <= 130
