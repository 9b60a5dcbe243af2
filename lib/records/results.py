"""Saves and loads records, one JSON file each, written once and whole."""

import contextlib
import functools
import math
import stat
import statistics
import warnings
from collections.abc import Mapping
from pathlib import Path, PurePath

import pandas as pd

from lib import notebooks
from lib.paths import REPORTS, runs, within
from lib.paths import results as folder
from lib.records import atomic, staleness
from lib.records.record import LARGEST_BYTES, called, made, name, parse, place, too_large

REFERENCE = REPORTS / "reference"
BY_HAND = 0  # the round of what someone measures in JupyterLab: overwritten each time, in no report


def path(machine: str, experiment: str, case: Mapping, round: int) -> Path:
    """The file of a record. Raises ValueError as `within` does."""
    return within(folder(), machine, *f"{called(experiment, case, round)}.json".split("/", 1))


def save(*, machine: str, environment: Mapping, **others) -> Path:
    """Write one record (see `record.made`) whole or not at all, and return its path; a folder of records that is not
    there yet is made. Raises ValueError for an invalid one, also where its environment names another machine, and
    atomic.CannotWrite."""
    if environment["machine"] != machine:
        raise ValueError(f"machine: {machine!r} is {environment['machine']!r} in the record's environment")
    content = made(environment=environment, **others)
    target = _target(content)
    with atomic.in_words(folder()):
        folder().mkdir(parents=True, exist_ok=True)
    atomic.write(target, content)
    return target


def write(content: bytes) -> Path:
    """Write the bytes of a record as its file, whole or not at all, and return its path. Raises ValueError unless they
    are a record's, and atomic.CannotWrite, also where the folder of the records is gone."""
    target = _target(content)
    atomic.write(target, content)
    return target


def _target(content: bytes) -> Path:
    return within(folder(), *place(parse(content)).split("/", 2))


def write_run(relative: PurePath, content: bytes) -> None:
    """Write an executed notebook, a log or a trace below `runs`, whole or not at all. Raises ValueError for a name that
    leads elsewhere, and atomic.CannotWrite."""
    target = within(runs(), *relative.parts)
    with atomic.in_words(target.parent):
        target.parent.mkdir(parents=True, exist_ok=True)
    atomic.write(target, content)


def read(file: Path) -> dict:
    """The record in a file. Raises ValueError, saying in one line what is wrong with the file, unless it is a whole
    record in the place that is its own."""
    try:
        found = file.stat()
        if not stat.S_ISREG(found.st_mode):
            raise ValueError("file: it is no regular file")
        if found.st_size > LARGEST_BYTES:
            raise ValueError(too_large(found.st_size))
        record = parse(file.read_bytes())
    except OSError as error:
        raise ValueError(f"file: cannot be read, {error.strerror}") from None
    if "/".join(file.absolute().parts[-3:]) != place(record):
        raise ValueError("place: the record is another's")
    return record


@functools.lru_cache(maxsize=2_000)  # of some 30 KiB each
def _unchanged(file: Path, *_: int) -> dict:
    return read(file)


@functools.lru_cache(maxsize=100_000)  # a supervisor asks for the status of every record, again and again
def _unmeasured(file: Path, *version: int) -> dict:
    return {key: value for key, value in _unchanged(file, *version).items() if key != "metrics"}


def known(file: Path) -> dict:
    """The record in a file, read once as long as the file stays as it is; not to be changed."""
    return _unchanged(file, *_version(file))


def _version(file: Path) -> tuple[int, ...]:
    """What is another once the file is written again. Raises ValueError as `read` does, where there is none."""
    try:
        found = file.stat()
    except OSError as error:
        raise ValueError(f"file: cannot be read, {error.strerror}") from None
    return found.st_ino, found.st_mtime_ns, found.st_ctime_ns, found.st_size


def status(file: Path) -> str | None:
    """The status of the record in a file, or None when there is no valid one."""
    try:
        return _unmeasured(file, *_version(file))["status"]
    except ValueError:
        return None


def files(machine: str, experiment: str = "*") -> list[Path]:
    """The files of a machine's records: those that sweeps made here, or else those kept in git."""
    own = [file for file in sorted((folder() / machine).glob("*/*.json")) if f".r{BY_HAND}." not in file.name]
    kept = sorted((REFERENCE / machine).glob("*/*.json"))
    return [file for file in own or kept if experiment in ("*", file.parent.name)]


def machines() -> list[str]:
    """The machines with records: those measured here, the latest first, then those kept in git, and last those of which
    every record is damaged."""
    latest = {entry.name: _latest(entry) for entry in sorted(folder().glob("*"))}
    whole = [machine for machine in sorted(latest, key=latest.get, reverse=True) if math.isfinite(latest[machine])]
    kept = sorted({file.parts[-3] for file in REFERENCE.glob("*/*/*.json")})
    return list(dict.fromkeys([*whole, *kept, *(machine for machine in latest if files(machine))]))


def _latest(machine: Path) -> float:
    """When the latest valid record of a sweep in a machine's folder was written, in seconds; -inf without any."""
    moments: dict[Path, float] = {}
    for file in machine.glob(f"*/*.r[!{BY_HAND}]*.json"):
        with contextlib.suppress(OSError):  # a link that leads nowhere, or one that is just set aside
            moments[file] = file.stat().st_mtime
    newest = sorted(moments, key=moments.get, reverse=True)
    return next((moments[file] for file in newest if status(file)), -math.inf)


def stale(file: Path) -> str:
    """Why the valid record in a file is stale, in words; nothing where it is not, as none is that git keeps."""
    return staleness.reason(_unmeasured(file, *_version(file))) if file.is_relative_to(folder()) else ""


def quietest(machine: str) -> float:
    """Return the least median of the noise probe, in ms, in the records of a machine's sweeps; NaN without any.

    That is how fast the machine is when it is left alone."""
    return _quietest(tuple((file, file.lstat().st_mtime_ns) for file in files(machine)))


@functools.lru_cache(maxsize=100)
def _quietest(versions: tuple[tuple[Path, int], ...]) -> float:
    """`quietest` of files at the times of their last change, since every table asks anew."""
    whole = (file for file, _ in versions if status(file) == "ok" and not stale(file))
    probes = [known(file)["metrics"].get("noise_probe_ms") for file in whole]
    return min((statistics.median(times) for times in probes if times), default=math.nan)


def load(experiment: str, machine: str, round: int | None = None, whole: bool = False) -> pd.DataFrame:
    """A machine's records of an experiment, one a row: the fields of the case, the metrics (lists of samples),
    and `machine, hardware, round, status, environment, code, started, seconds, quietest_ms` (see `quietest`), and why
    it is `stale`, if it is; `attrs` has the `experiment` and the names of the case's `fields`. A stale record has no
    metrics and `stale` for its status, unless it is asked for `whole`. `round` picks one, and is the only way to
    those by hand. Of a case, only the records of the code that measured it last are given. A file that is no valid
    record is left out with a warning."""
    kept = ("round", "status", "environment", "code", "started", "seconds", "stale")
    own = sorted((folder() / machine).glob(f"{experiment}/*.r{round}.json"))
    found, rows, best = [], [], quietest(machine)
    for file in files(machine, experiment) if round is None else own:
        try:
            found.append(known(file) | {"stale": stale(file)})
        except ValueError as error:
            warnings.warn(f"{file.name!r} left out: {error}", stacklevel=2)
    newest = max(found, key=lambda record: record["started"], default=None)
    fields = list(newest["case"]) if newest else notebooks.fields(experiment)
    for record in found:
        if list(record["case"]) != fields:
            warnings.warn(f"{name(record['case'])} left out: newer cases have other fields", stacklevel=2)
            continue
        if record["stale"] and not whole:
            record |= {"status": staleness.STALE, "metrics": {}}
        where = {"machine": machine, "hardware": record["environment"]["hardware"], "quietest_ms": best}
        rows.append(record["case"] | record["metrics"] | {key: record[key] for key in kept} | where)
    frame = pd.DataFrame(rows, columns=None if rows else [*fields, *kept, "machine", "hardware", "quietest_ms"])
    if rows:
        frame = frame[staleness.latest(frame, fields)].reset_index(drop=True)
    frame.attrs |= {"fields": fields, "experiment": experiment}
    return frame


def of_machines(experiment: str, names: list[str], whole: bool = False) -> pd.DataFrame:
    """The records of an experiment of several machines, as `load` gives them; none without a machine that has any."""
    parts = [load(experiment, machine, whole=whole) for machine in names]
    parts = [part for part in parts if len(part)] or [load(experiment, "no machine")]
    frame = pd.concat(parts, ignore_index=True)
    frame.attrs |= parts[0].attrs
    return frame


def references(but: str = "") -> list[str]:
    """The machines whose records are kept in git, other than `but`."""
    return [name for name in machines() if name != but and (REFERENCE / name).is_dir()]


def reference(experiment: str, but: str) -> pd.DataFrame:
    """The records of `references`."""
    return of_machines(experiment, references(but))
