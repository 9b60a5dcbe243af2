"""Name the folders of records and executed notebooks, and check paths inside them."""

import os
from pathlib import Path

from lib import validate

ROOT = Path(__file__).resolve().parent.parent
REPORTS = ROOT / "reports"
REFERENCE = REPORTS / "reference"
PUBLISHED = REPORTS / "published"
LONGEST = 230  # bytes of a name: systems allow 255, and a file being written has a longer one


def results() -> Path:
    """Return the folder of this machine's records: `reports/results`, or $RESULTS."""
    return Path(os.environ.get("RESULTS") or REPORTS / "results")


def runs() -> Path:
    """Return the folder of the executed notebooks: `runs` beside the records."""
    return results().parent / "runs"


def within(root: Path, *names: str) -> Path:
    """Join names below a root.

    Raises ValueError for a name that is not that of one file or folder, and for a link that leads out of the root."""
    file = root
    for part in names:
        if part in ("", ".", "..") or any(sign in part for sign in "/\\\0") or len(os.fsencode(part)) > LONGEST:
            raise ValueError(f"name: got {validate.shown(part)}, expected the name of one file or folder")
        file = file / part
        if file.is_symlink() and not file.resolve().is_relative_to(root.resolve()):
            raise ValueError(f"name: got {validate.shown(part)}, a link out of {root}; expected one inside")
    return file
