"""Name the folders of records and executed notebooks."""

import os
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
REPORTS = ROOT / "reports"
REFERENCE = REPORTS / "reference"
PUBLISHED = REPORTS / "published"


def results() -> Path:
    """Return the folder of records by machine: `reports/results`, or $RESULTS.

    A relative one is below the checkout: kernels inherit it, and work in another folder."""
    return Path(os.path.abspath(ROOT / os.path.expanduser(os.environ.get("RESULTS") or "reports/results")))


def runs() -> Path:
    """Return the folder of the executed notebooks: `runs` beside the records."""
    return results().parent / "runs"
