"""Keeps in each executed chapter what its sentences say, with those of their numerals that were computed there."""

import os
import re
from pathlib import Path

import nbformat
import pytest

NUMERAL = re.compile(r"(?<![\w.])-?\d+(?:,\d{3})*(?:\.\d+)?(?:e-?\d+)?")
FORMAT = "application/vnd.said+json"  # beside the HTML of a sentence; the page shows it nowhere


def watch() -> None:
    """In a kernel that is to execute chapters, add FORMAT to each sentence that it shows."""
    from IPython import get_ipython

    from lib.report.sentences import Statement
    from lib.stats import digits

    shell, computed = get_ipython(), set()
    ends = shell.reset

    def begun_anew(**options):
        computed.clear()
        ends(**options)

    def watched(plain):
        def watching(*values):
            text = plain(*values)
            computed.update(NUMERAL.findall(text))
            return text

        return watching

    def said(statement, **_):
        numerals = sorted(set(NUMERAL.findall(statement.text)) & computed)
        kept = {"text": statement.text, "verdict": statement.verdict, "records": list(statement.records)}
        return {FORMAT: kept | {"computed": numerals}}

    shell.reset = begun_anew  # which the report does before each chapter
    for name in ("number", "interval", "count", "exact", "bound"):
        setattr(digits, name, watched(getattr(digits, name)))
    Statement._repr_mimebundle_ = said


def in_kernels(patch: pytest.MonkeyPatch, folder: Path) -> None:
    """Let the kernels that start from now on `watch`; `folder` is for their settings."""
    startup = folder / "profile_default" / "startup"
    startup.mkdir(parents=True)
    (startup / "watch.py").write_text("import said\nsaid.watch()\n")
    patch.setenv("IPYTHONDIR", str(folder))
    patch.setenv("PYTHONPATH", str(Path(__file__).parent), prepend=os.pathsep)


def said_in(chapter: Path) -> list[dict]:
    """Return what the sentences of an executed chapter say: text, verdict, records and the numerals computed."""
    outputs = (output for cell in nbformat.read(chapter, as_version=4).cells for output in cell.get("outputs", []))
    return [output.data[FORMAT] for output in outputs if FORMAT in output.get("data", {})]
