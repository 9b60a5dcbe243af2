"""Where records, executed notebooks and what is set aside are kept; imports nothing heavy."""

import os
from pathlib import Path

from lib import validate

ROOT = Path(__file__).resolve().parent.parent
REPORTS = ROOT / "reports"
LOCK, RECORDS = ".lock", "*/*/*.r[0-9]*.json"  # what tells a folder of results
LONGEST = 230  # bytes of a name: systems allow 255, of which the file that is being written needs some more


def results() -> Path:
    """Where this machine's records go: `reports/results`, or the folder that $RESULTS names."""
    return Path(os.environ.get("RESULTS") or REPORTS / "results")


def runs() -> Path:
    """Where the executed notebooks go: `runs` beside the records."""
    return results().parent / "runs"


def refuse_strange(folder: Path) -> None:
    """Raise ValueError where a folder of results exists and holds something, but no sweep's lock and no record: it is
    for something else."""
    if folder.is_dir() and any(folder.iterdir()) and not (folder / LOCK).exists() and not any(folder.glob(RECORDS)):
        raise ValueError(f"results: {folder} holds other things than records; let RESULTS name another folder")


def within(root: Path, *names: str) -> Path:
    """The file of these names, one in the other, in a folder. Raises ValueError for one that is not the name of a
    single file or folder, and where a link on the way leads out of the folder."""
    file = root
    for part in names:
        if part in ("", ".", "..") or any(sign in part for sign in "/\\\0") or len(os.fsencode(part)) > LONGEST:
            raise ValueError(f"name: {validate.shown(part)} must be that of one file or folder")
        file = file / part
        if file.is_symlink() and not file.resolve().is_relative_to(root.resolve()):
            raise ValueError(f"name: {validate.shown(part)} is a link that leads out of {root}")
    return file
