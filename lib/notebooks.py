"""Find the notebooks and the sweep files, without torch or papermill."""

from pathlib import Path

from lib.paths import ROOT

NOTEBOOKS = ROOT / "notebooks"
SWEEPS = NOTEBOOKS / "sweeps"


class NotebookFailed(Exception):
    """Report a bug: a cell raised an exception, or the notebook ended early."""


def sweeps() -> dict[str, Path]:
    """Return the sweep files by name."""
    # a link may lead to a file that is gone
    return {file.stem: file for file in sorted(SWEEPS.glob("*.yaml")) if file.is_file()}
