"""Find damaged records, set them aside in the same folder, and count them.

Every .json file where records are kept must be a record; other files are left alone. A damaged file becomes
`<name>.json.damaged`. Bytes that a sweep refused are kept in `<name>.json.refused`; the last line gives the reason.
"""

import contextlib
import itertools
import os
import re
from pathlib import Path

import pandas as pd

from lib import paths
from lib.records import atomic, record, results

COLUMNS = ("machine", "experiment", "where", "reason")
LOCATIONS = STORE, KEPT, ASIDE, REFUSED = "in the store", "kept in git", "set aside", "refused"
DAMAGED, REFUSAL = ".damaged", ".refused"  # endings of the files that are set aside
LONGEST = 160  # characters of a name that comes from a kernel


def files(root: Path, ending: str = ".json") -> list[Path]:
    """List the files where records are kept, including those measured by hand."""
    return sorted(root.glob(f"*/*/*{ending}"))


def damaged(root: Path, ending: str = ".json") -> dict[Path, str]:
    """Read every file in a folder of records; return the damaged ones, each with the reason."""
    found = {}
    for file in files(root, ending):
        try:
            results.read(file)
        except ValueError as error:
            found[file] = str(error)
    return found


def clean_store(alone: bool) -> int:
    """Set all damaged files aside, so that a sweep measures them again; return their count.

    If no other sweep works in the folder (`alone`), also removes temporary files of killed sweeps.
    Raises atomic.CannotWrite."""
    for folder in (paths.results(), paths.runs()) if alone else ():
        atomic.remove_leftovers(folder)
    found = damaged(results.folder())
    for file in found:
        set_aside(file)
    return len(found)


def set_aside(file: Path) -> None:
    """Rename a damaged file in its folder, without overwriting another. Raises atomic.CannotWrite.

    Does nothing if the file is gone: another sweep has set it aside."""
    with atomic.as_cannot_write(file.parent), contextlib.suppress(FileNotFoundError):
        os.rename(file, _free(file.parent, file.name, DAMAGED))


def refuse(machine: str, name: str, content: bytes, reason: str) -> None:
    """Keep the bytes of a refused record with the reason, without overwriting another file.

    Any name is safe: the file is always inside the store. Raises atomic.CannotWrite."""
    experiment, _, case = name.partition("/")
    folder = paths.results() / _plain(machine) / _plain(experiment)
    target = _free(folder, f"{_plain(case)}.json", REFUSAL)
    atomic.write(target, content + f"\n{record.one_line(reason)}\n".encode(errors="backslashreplace"))


def _free(folder: Path, name: str, ending: str) -> Path:
    """Return a path that does not exist yet, with a number added if needed."""
    short = os.fsdecode(os.fsencode(name)[: paths.LONGEST])
    names = itertools.chain([short], (f"{short}.{number}" for number in itertools.count(2)))
    return next(file for file in (folder / (each + ending) for each in names) if not os.path.lexists(file))


def _plain(name: str) -> str:
    """Replace all characters of a name that are unsafe in a file name or a report."""
    return re.sub(r"[^A-Za-z0-9_.=-]", "_", name).lstrip(".")[:LONGEST] or "_"


def losses() -> pd.DataFrame:
    """Tabulate damaged and refused files, one per row: machine, experiment, one of `LOCATIONS`, reason.

    Moves no file and shows none of its content."""
    roots = ((STORE, results.folder(), ".json"), (KEPT, results.REFERENCE, ".json"), (ASIDE, results.folder(), DAMAGED))
    found = [(file, where, why) for where, root, ending in roots for file, why in damaged(root, ending).items()]
    found += [(file, REFUSED, _reason(file)) for file in files(results.folder(), REFUSAL)]
    rows = [(*map(_plain, file.parts[-3:-1]), where, why) for file, where, why in found]
    return pd.DataFrame(rows, columns=list(COLUMNS))


def _reason(file: Path) -> str:
    """Read the reason for a refusal from the last line of its file."""
    with contextlib.suppress(OSError):
        *_, last = [b"", *file.read_bytes().splitlines()]
        return record.one_line(last.decode(errors="replace"))
    return ""


def counted(losses: pd.DataFrame) -> str:
    """Count the damaged files by location, in a sentence; empty if there are none."""
    counts = losses["where"].value_counts()
    parts = [f"{counts[where]:,} {where}" for where in LOCATIONS if where in counts]
    return f"Damaged record files: {', '.join(parts)}. They are left out." if parts else ""
