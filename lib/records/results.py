"""Save and load records, one JSON file each, and list the machines that have some."""

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
from lib.records.frame import Frame
from lib.records.record import LARGEST_BYTES, called, create, location, name, parse, too_large

REFERENCE = REPORTS / "reference"
STEADY = 1.05  # largest ratio of two rates that count as the same, as where a product's no longer grows with its size
BY_HAND = 0  # the round of what is measured in JupyterLab: overwritten each time, left out of reports


def path(machine: str, experiment: str, case: Mapping, round: int) -> Path:
    """Return the file of a record. Raises ValueError for a name that leads out of the folder."""
    return within(folder(), machine, *f"{called(experiment, case, round)}.json".split("/", 1))


def save(**fields) -> Path:
    """Write a record from its fields (see `record.create`), completely or not at all; return its path.

    Creates the folder of records. Raises atomic.CannotWrite, and ValueError for an invalid record."""
    content = create(**fields)
    with atomic.as_cannot_write(folder()):
        folder().mkdir(parents=True, exist_ok=True)
    return write(content)


def write(content: bytes) -> Path:
    """Write a record from its bytes, completely or not at all; return its path.

    Raises ValueError for an invalid record, and atomic.CannotWrite, also if the folder of records is gone."""
    target = within(folder(), *location(parse(content)).split("/", 2))
    atomic.write(target, content)
    return target


def write_run(relative: PurePath, content: bytes) -> None:
    """Write an executed notebook, a log or a trace below `runs`, completely or not at all.

    Raises ValueError for a path that leads elsewhere, and atomic.CannotWrite."""
    target = within(runs(), *relative.parts)
    with atomic.as_cannot_write(target.parent):
        target.parent.mkdir(parents=True, exist_ok=True)
    atomic.write(target, content)


def read(file: Path) -> dict:
    """Read the record in a file. Raises ValueError unless it is valid and stored at its own path."""
    try:
        info = file.stat()
        if not stat.S_ISREG(info.st_mode):
            raise ValueError("file: expected a regular file")
        if info.st_size > LARGEST_BYTES:
            raise ValueError(too_large(info.st_size))
        record = parse(file.read_bytes())
    except OSError as error:
        raise ValueError(f"file: cannot be read: {error.strerror}") from None
    if "/".join(file.absolute().parts[-3:]) != location(record):
        raise ValueError("location: the file holds a record that belongs elsewhere")
    return record


@functools.lru_cache(maxsize=2_000)  # about 30 KiB each
def _cached(file: Path, *_: int) -> dict:
    return read(file)


@functools.lru_cache(maxsize=100_000)  # a supervisor asks for the status of every record again and again
def _without_metrics(file: Path, *version: int) -> dict:
    return {key: value for key, value in _cached(file, *version).items() if key != "metrics"}


def cached(file: Path) -> dict:
    """Return the record in a file, read again only if the file changed. Do not modify it."""
    return _cached(file, *_version(file))


def _version(file: Path) -> tuple[int, ...]:
    """Return values that change when the file is rewritten. Raises ValueError if it is missing."""
    try:
        info = file.stat()
    except OSError as error:
        raise ValueError(f"file: cannot be read: {error.strerror}") from None
    return info.st_ino, info.st_mtime_ns, info.st_ctime_ns, info.st_size


def status(file: Path) -> str | None:
    """Return the status of the record in a file, or None without a valid record."""
    try:
        return _without_metrics(file, *_version(file))["status"]
    except ValueError:
        return None


def files(machine: str, experiment: str = "*") -> list[Path]:
    """List a machine's files of records: those that sweeps made here, or else those kept in git."""
    own = [file for file in (folder() / machine).glob("*/*.json") if f".r{BY_HAND}." not in file.name]
    found = own or (REFERENCE / machine).glob("*/*.json")
    return sorted((file for file in found if experiment in ("*", file.parent.name)), key=str)  # paths compare slowly


def machines() -> list[str]:
    """List the machines with records.

    First come those measured here, the latest first; then those kept in git; last those with only damaged records."""
    latest = {entry.name: _latest(entry) for entry in sorted(folder().glob("*"))}
    whole = [machine for machine in sorted(latest, key=latest.get, reverse=True) if math.isfinite(latest[machine])]
    kept = sorted({file.parts[-3] for file in REFERENCE.glob("*/*/*.json")})
    return list(dict.fromkeys([*whole, *kept, *(machine for machine in latest if files(machine))]))


def _latest(machine: Path) -> float:
    """Return the time of a machine's latest valid record from a sweep, in seconds; -inf without any."""
    moments: dict[Path, float] = {}
    for file in machine.glob(f"*/*.r[!{BY_HAND}]*.json"):
        with contextlib.suppress(OSError):  # a broken link, or a file that was just set aside
            moments[file] = file.stat().st_mtime
    newest = sorted(moments, key=moments.get, reverse=True)
    return next((moments[file] for file in newest if status(file)), -math.inf)


def stale(file: Path) -> str:
    """Say why the record in a file is stale; empty if it is not. Records kept in git are never stale."""
    return staleness.reason(_without_metrics(file, *_version(file))) if file.is_relative_to(folder()) else ""


def quietest(machine: str) -> float:
    """Return the noise probe's time in ms when no other work disturbs a machine; NaN without records.

    It is the first decile of the medians in its records: the smallest may be a moment at a higher clock rate."""
    return _quietest(machine, version(machine))


def version(machine: str) -> int:
    """Return a number that differs after any write to a machine's records."""
    return _version_of(files(machine))


def _version_of(listed: list[Path]) -> int:
    return hash(tuple((str(file), file.lstat().st_mtime_ns) for file in listed))


@functools.lru_cache(maxsize=100)
def _quietest(machine: str, _version: int) -> float:
    """Compute `quietest` anew when a record has changed; every table asks for it."""
    whole = (file for file in files(machine) if status(file) == "ok" and not stale(file))
    probes = [cached(file)["metrics"].get("noise_probe_ms") for file in whole]
    return pd.Series([statistics.median(times) for times in probes if times], dtype=float).quantile(0.1)


@functools.lru_cache(maxsize=100)
def _ceilings(machine: str, _version: int) -> dict[str, float]:
    """Return the best FLOP/s of matrix products by precision in a machine's records, where complete.

    That is where products with different numbers of rows reach about the same rate: no larger one would be faster."""
    rates: dict[str, dict[int, float]] = {}  # by precision and rows
    for file in files(machine, "ceilings"):
        if status(file) == "ok" and not stale(file):
            record = cached(file)
            case, metrics = record["case"], record["metrics"]
            if case["operation"] == "matmul":
                by_rows = rates.setdefault(case["precision"], {})
                rate = metrics["flops"] / (statistics.median(metrics["total_ms"]) / 1e3)
                by_rows[case["rows"]] = max(rate, by_rows.get(case["rows"], 0.0))
    best = {precision: sorted(by_rows.values())[-2:] for precision, by_rows in rates.items()}
    return {precision: two[-1] for precision, two in best.items() if len(two) > 1 and two[-1] <= STEADY * two[0]}


def load(experiment: str, machine: str, round: int | None = None, whole: bool = False) -> pd.DataFrame:
    """Load a machine's records of an experiment, one per row; damaged files are left out with a warning.

    Columns: the fields of the case, the metrics (lists of samples), `machine, hardware, round, status, environment,
    code, started, seconds`, `quietest_ms` (see `quietest`), `known_ceiling` (the best FLOP/s of products in its
    precision) and `stale`, the reason or empty. The table's `experiment`, `fields` and `version` are set. A stale
    record has no metrics and the status `stale`, except with `whole`. Of each case only one version of code and PyTorch
    is returned: the latest that is not stale, else the latest. `round` selects one round; records measured by hand need
    `round=BY_HAND`. A switch that came to the notebook after a record was measured is off in it."""
    kept = ("round", "status", "environment", "code", "started", "seconds", "stale")
    found, rows, listed = [], [], files(machine)
    version = _version_of(listed)
    best, known = _quietest(machine, version), _ceilings(machine, version)
    own = sorted((folder() / machine).glob(f"{experiment}/*.r{round}.json"))
    for file in own if round is not None else (file for file in listed if file.parent.name == experiment):
        try:
            record = cached(file)
            found.append(record | {"case": _with_switches(experiment, record["case"]), "stale": stale(file)})
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
        where = {"machine": machine, "hardware": _setting(record["environment"]), "quietest_ms": best}
        where["known_ceiling"] = known.get(record["case"].get("precision"), math.nan)
        rows.append(record["case"] | record["metrics"] | {key: record[key] for key in kept} | where)
    frame = Frame(
        rows, columns=None if rows else [*fields, *kept, "machine", "hardware", "quietest_ms", "known_ceiling"]
    )
    if rows:
        frame = frame[staleness.latest(frame, fields)].reset_index(drop=True)
    return frame.with_origin(fields=fields, experiment=experiment, version=version)


def _with_switches(experiment: str, case: Mapping) -> Mapping:
    """Add to a case the fields of its notebook that it lacks, as off.

    Only if each of these is a switch that is off by default."""
    fields = notebooks.fields(experiment)
    missing = [name for name in fields if name not in case]
    off = all(notebooks.parameters(experiment)[name] is False for name in missing)
    return {name: case.get(name, False) for name in fields} if missing and off and {*case} <= {*fields} else case


def _setting(environment: Mapping) -> str:
    """Return the hardware of a record for a table's note, and whether freed memory was kept."""
    return environment["hardware"] + (", freed memory kept" if environment.get("allocator") == "keeps" else "")


def of_machines(experiment: str, names: list[str], whole: bool = False) -> pd.DataFrame:
    """Load several machines' records of an experiment into one table, like that of `load`."""
    parts = [load(experiment, machine, whole=whole) for machine in names]
    parts = [part for part in parts if len(part)] or [load(experiment, "no machine")]
    return pd.concat(parts, ignore_index=True)


def references(but: str = "") -> list[str]:
    """List the machines whose records are kept in git, except `but`."""
    return [name for name in machines() if name != but and (REFERENCE / name).is_dir()]


def reference(experiment: str, but: str) -> pd.DataFrame:
    """Load the records of the machines that `references` lists."""
    return of_machines(experiment, references(but))
