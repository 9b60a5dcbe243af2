"""Finds what is no record among the records, sets it aside beside them, and counts it.

What ends in .json where a record would stand is taken for one; any other file in the store stays as it is. A damaged
file becomes `<name>.json.damaged`; bytes that a sweep refused are `<name>.json.refused`, with the reason as last line.
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
PLACES = STORE, KEPT, ASIDE, REFUSED = "in the store", "kept in git", "set aside", "refused"
DAMAGED, REFUSAL = ".damaged", ".refused"  # end the names of files that are set aside
LONGEST = 160  # characters of a name that a kernel gave


def files(root: Path, ending: str = ".json") -> list[Path]:
    """List all that stands where records do in a folder of records, by hand or not."""
    return sorted(root.glob(f"*/*/*{ending}"))


def damaged(root: Path, ending: str = ".json") -> dict[Path, str]:
    """Find the damaged files in a folder of records, and what is wrong with each. Each is read anew."""
    found = {}
    for file in files(root, ending):
        try:
            results.read(file)
        except ValueError as error:
            found[file] = str(error)
    return found


def tidy(alone: bool) -> int:
    """Prepare the store for a sweep: set every damaged file aside, so that what it was to hold is measured again.

    Where no other sweep is at work in the folder, what a killed one was writing is removed. Returns how many were
    damaged. Raises atomic.CannotWrite."""
    for folder in (paths.results(), paths.runs()) if alone else ():
        atomic.sweep_leftovers(folder)
    found = damaged(results.folder())
    for file in found:
        set_aside(file)
    return len(found)


def set_aside(file: Path) -> None:
    """Rename a file of the store in its place, over no other. Raises atomic.CannotWrite.

    One that is not there any more was set aside by someone else."""
    with atomic.in_words(file.parent), contextlib.suppress(FileNotFoundError):
        os.rename(file, _free(file.parent, file.name, DAMAGED))


def refuse(machine: str, name: str, content: bytes, reason: str) -> None:
    """Keep the bytes that were to be the record of a name on a machine, with the reason why they are refused.

    The names may be anything: the file stands in the store, over no other. Raises atomic.CannotWrite."""
    experiment, _, case = name.partition("/")
    folder = paths.results() / _plain(machine) / _plain(experiment)
    target = _free(folder, f"{_plain(case)}.json", REFUSAL)
    atomic.write(target, content + f"\n{record.one_line(reason)}\n".encode(errors="backslashreplace"))


def _free(folder: Path, name: str, ending: str) -> Path:
    """Name a file that is not there yet, numbered where others were set aside before."""
    short = os.fsdecode(os.fsencode(name)[: paths.LONGEST])
    names = itertools.chain([short], (f"{short}.{number}" for number in itertools.count(2)))
    return next(file for file in (folder / (each + ending) for each in names) if not os.path.lexists(file))


def _plain(name: str) -> str:
    """Turn a name into one that any file system takes, that leads nowhere else and that a report can show."""
    return re.sub(r"[^A-Za-z0-9_.=-]", "_", name).lstrip(".")[:LONGEST] or "_"


def losses() -> pd.DataFrame:
    """List the damaged files, one a row, with `COLUMNS`: machine, experiment, one of `PLACES`, what is wrong.

    Nothing is moved, and nothing that a file holds is shown."""
    roots = ((STORE, results.folder(), ".json"), (KEPT, results.REFERENCE, ".json"), (ASIDE, results.folder(), DAMAGED))
    found = [(file, where, why) for where, root, ending in roots for file, why in damaged(root, ending).items()]
    found += [(file, REFUSED, _reason(file)) for file in files(results.folder(), REFUSAL)]
    rows = [(*map(_plain, file.parts[-3:-1]), where, why) for file, where, why in found]
    return pd.DataFrame(rows, columns=list(COLUMNS))


def _reason(file: Path) -> str:
    """Read why a file was refused from its last line."""
    with contextlib.suppress(OSError):
        *_, last = [b"", *file.read_bytes().splitlines()]
        return record.one_line(last.decode(errors="replace"))
    return ""


def counted(losses: pd.DataFrame) -> str:
    """Count the damaged files by where they are, in a sentence; empty without any."""
    counts = losses["where"].value_counts()
    said = [f"{counts[where]:,} {where}" for where in PLACES if where in counts]
    return f"Damaged files of records: {', '.join(said)}. They are left out." if said else ""
