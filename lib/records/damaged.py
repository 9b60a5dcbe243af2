"""Sets damaged files of the store aside, loses none, and lists them; knows not what damaged them.

What ends in .json where a record would stand is taken for one; any other file in the store is not ours and stays.
"""

import contextlib
import errno
import os
import re
import shutil
from datetime import UTC, datetime
from pathlib import Path

import pandas as pd

from lib import paths
from lib.records import atomic, record, results

COLUMNS = ("machine", "experiment", "where", "reason")
PLACES = STORE, KEPT, ASIDE = "in the store", "kept in git", "in quarantine"
REASON = ".reason"  # ends the name of the text beside a file in quarantine
UNKNOWN = "the reason was not kept"
LONGEST = 160  # characters of a name, so that stamp and ending fit into what file systems allow


def files(root: Path) -> list[Path]:
    """All that stands where records do in a folder of records, by hand or not."""
    return sorted(root.glob("*/*/*.json"))


def damaged(root: Path) -> dict[Path, str]:
    """The damaged files in a folder of records, and what is wrong with each. Each is read anew."""
    found = {}
    for file in files(root):
        try:
            results.read(file)
        except ValueError as error:
            found[file] = str(error)
    return found


def tidy(alone: bool) -> int:
    """Prepare the store for a sweep: move every damaged file into quarantine, so that what it was to hold is measured
    again, and, where no other sweep is at work in the folder, remove what a killed one was writing. Returns how many
    were damaged. Raises atomic.CannotWrite."""
    for folder in (paths.results(), paths.runs(), paths.quarantine()) if alone else ():
        atomic.sweep_leftovers(folder)
    found = damaged(results.folder())
    for file, reason in found.items():
        set_aside(file, reason)
    return len(found)


def set_aside(file: Path, reason: str) -> None:
    """Move a file of the store into quarantine, below its machine and experiment and over no other, and put the reason
    beside it. One that is not there any more was set aside by someone else. Raises atomic.CannotWrite."""
    target = _target(*file.absolute().parts[-3:])
    with atomic.in_words(target.parent), contextlib.suppress(FileNotFoundError):
        _move(file, target)
        _note(target, file.name, reason)


def _move(file: Path, target: Path) -> None:
    try:
        os.rename(file, target)
    except OSError as error:
        if error.errno != errno.EXDEV:
            raise
        shutil.move(file, target)  # quarantine is on another file system


def refuse(machine: str, name: str, content: bytes, reason: str) -> None:
    """Put into quarantine what never came into the store: the bytes that were to be the record of a name on a machine,
    and the reason. Raises atomic.CannotWrite."""
    experiment, _, case = name.partition("/")
    target = _target(machine, experiment, f"{case}.json")
    atomic.write(target, content)
    _note(target, f"{case}.json", reason)


def _target(*place: str) -> Path:
    """A file of quarantine for what stood in a place, whose names may be anything: one that nothing else has."""
    machine, experiment, name = map(_plain, place)
    parent = paths.quarantine() / machine / experiment
    with atomic.in_words(parent):
        parent.mkdir(parents=True, exist_ok=True)
    return parent / f"{name}.{datetime.now(UTC):%Y%m%dT%H%M%S.%f}"


def _plain(name: str) -> str:
    """A name that any file system takes, that leads nowhere else and that a report can show."""
    return re.sub(r"[^A-Za-z0-9_.=-]", "_", name).lstrip(".")[:LONGEST] or "_"


def _note(target: Path, name: str, reason: str) -> None:
    atomic.write(target.with_name(target.name + REASON), f"{reason}\n{name}\n".encode(errors="backslashreplace"))


def losses() -> pd.DataFrame:
    """One row for each damaged file, `COLUMNS`: its machine, its experiment, whether it is in the store, kept in git or
    in quarantine, and why it is no record. Nothing is moved, and nothing that a file holds is shown."""
    roots = {STORE: results.folder(), KEPT: results.REFERENCE}
    found = [(file, where, reason) for where, root in roots.items() for file, reason in damaged(root).items()]
    for file in sorted(paths.quarantine().glob("*/*/*")):
        if not file.name.endswith((REASON, atomic.ENDING)):
            found.append((file, ASIDE, _reason(file)))
    rows = [(*map(_plain, file.parts[-3:-1]), where, reason) for file, where, reason in found]
    return pd.DataFrame(rows, columns=list(COLUMNS))


def _reason(file: Path) -> str:
    try:
        with file.with_name(file.name + REASON).open(errors="replace") as text:
            return record.one_line(text.readline(2 * LONGEST)) or UNKNOWN
    except OSError:
        return UNKNOWN
