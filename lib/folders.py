"""Where records, executed notebooks and what is set aside are kept; imports nothing heavy."""

import os
from pathlib import Path

REPORTS = Path(__file__).resolve().parent.parent / "reports"


def results() -> Path:
    """Where this machine's records go: `reports/results`, or the folder that $RESULTS names."""
    return Path(os.environ.get("RESULTS", REPORTS / "results"))


def runs() -> Path:
    """Where the executed notebooks go: `runs` beside the records."""
    return results().parent / "runs"


def quarantine() -> Path:
    """Where damaged and refused records go: `quarantine` beside the records."""
    return results().parent / "quarantine"
