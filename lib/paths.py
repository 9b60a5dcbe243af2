"""Name the folders of records and executed notebooks."""

import os
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
REPORTS = ROOT / "reports"
REFERENCE = REPORTS / "reference"
PUBLISHED = REPORTS / "published"


def results() -> Path:
    """Return the folder of what was measured here, by machine: `reports/results`, or $RESULTS."""
    return Path(os.environ.get("RESULTS") or REPORTS / "results")


def runs() -> Path:
    """Return the folder of the executed notebooks: `runs` beside the records."""
    return results().parent / "runs"
