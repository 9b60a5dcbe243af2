"""Saves and loads records, one JSON file each, written once and whole; knows no torch and no experiment."""

import functools
import hashlib
import json
import math
import os
import statistics
import sys
import tempfile
import warnings
from collections.abc import Mapping
from pathlib import Path

import pandas as pd

from lib import notebook, staleness

REPORTS = Path(__file__).resolve().parent.parent / "reports"
REFERENCE = REPORTS / "reference"
PUBLISHED = REFERENCE / "published"
SCHEMA = 1
STATUSES = ("ok", "oom", "too_large", "timeout", "crashed")
FIELDS = [
    *("schema", "experiment", "case", "round", "status", "metrics", "environment"),
    *("code", "started", "seconds", "checksum"),
]
UNITS = ("_ms", "_us", "_s", "_mib", "_bytes", "_percent", "_error", "_flops")  # what has one is a number
BY_HAND = 0  # the round of what someone measures in JupyterLab: overwritten each time, in no report


def folder() -> Path:
    """Where this machine's records go: `reports/results`, or the folder that $RESULTS names."""
    return Path(os.environ.get("RESULTS", REPORTS / "results"))


def runs() -> Path:
    """Where the executed notebooks go: `runs` beside the records."""
    return folder().parent / "runs"


def name(case: Mapping) -> str:
    """A case as the stem of a file, for people to read; a boolean shows as its own name when it is true."""
    return "-".join(field if value is True else str(value) for field, value in case.items() if value is not False)


def called(experiment: str, case: Mapping, round: int) -> str:
    """What a record is called: its experiment, its case and its round; of its file the place below a machine's."""
    return f"{experiment}/{name(case)}.r{round}"


def path(machine: str, experiment: str, case: Mapping, round: int) -> Path:
    """The file of a record."""
    return folder() / machine / f"{called(experiment, case, round)}.json"


def checksum(record: Mapping) -> str:
    """SHA-256 over all fields but the checksum, in canonical JSON. Raises ValueError for NaN and infinity."""
    body = {name: value for name, value in record.items() if name != "checksum"}
    return hashlib.sha256(json.dumps(body, sort_keys=True, allow_nan=False).encode()).hexdigest()


def validate(record: Mapping) -> None:
    """Raise ValueError, saying what is wrong, unless this is a whole record of this schema whose metrics are numbers,
    texts, lists of either, or tables (columns of equally many), and whose numbers are finite and times positive."""
    if list(record) != FIELDS:
        raise ValueError(f"fields: {', '.join(record)} must be {', '.join(FIELDS)}")
    if record["schema"] != SCHEMA:
        raise ValueError(f"schema: {record['schema']!r} must be {SCHEMA}")
    if record["status"] not in STATUSES:
        raise ValueError(f"status: {record['status']!r} is not one of {', '.join(STATUSES)}")
    for name, value in record["metrics"].items():
        if isinstance(value, dict) and len({len(column) for column in value.values()}) > 1:
            raise ValueError(f"metrics.{name}: the columns of a table must be equally long")
        for key, column in value.items() if isinstance(value, dict) else [("", value)]:
            for entry in column if isinstance(column, list) else [column]:
                _validate_entry(f"{name}.{key}".strip("."), entry)
    if record["checksum"] != checksum(record):
        raise ValueError("checksum: does not match the record")


def _validate_entry(name: str, entry) -> None:
    if isinstance(entry, str) and not name.endswith(UNITS):
        return
    if type(entry) not in (int, float) or not math.isfinite(entry):
        raise ValueError(f"metrics.{name}: {entry!r} must be a finite number or a text")
    if name.endswith(("_ms", "_s")) and entry <= 0:
        raise ValueError(f"metrics.{name}: {entry!r} is a time and must be positive")


def save(
    *, machine: str, experiment: str, case: Mapping, round: int, status: str, metrics: Mapping,
    environment: Mapping, code: str, started: str, seconds: float,
) -> Path:  # fmt: skip
    """Write one record whole or not at all, and return its path. Raises ValueError for an invalid one."""
    record = {
        "schema": SCHEMA, "experiment": experiment, "case": dict(case), "round": round, "status": status,
        "metrics": dict(metrics), "environment": dict(environment), "code": code, "started": started,
        "seconds": seconds,
    }  # fmt: skip
    record["checksum"] = checksum(record)
    validate(record)
    target = path(machine, experiment, case, round)
    target.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.NamedTemporaryFile("w", dir=target.parent, suffix=".tmp", delete=False) as file:
        json.dump(record, file, indent=1, allow_nan=False)
        file.flush()
        os.fsync(file.fileno())
    os.replace(file.name, target)
    return target


def read(file: Path) -> dict:
    """The record in a file. Raises ValueError when it is not a valid one."""
    record = json.loads(file.read_text())
    if not isinstance(record, dict):
        raise ValueError("the file does not hold a record")
    validate(record)
    return record


@functools.lru_cache(maxsize=100_000)
def _unchanged(file: Path, modified_ns: int, size: int) -> dict:
    return read(file)


def _known(file: Path) -> dict:
    """The record in a file, read once as long as the file stays as it is; not to be changed."""
    found = file.stat()
    return _unchanged(file, found.st_mtime_ns, found.st_size)


def status(file: Path) -> str | None:
    """The status of the record in a file, or None when there is no valid one."""
    try:
        return _known(file)["status"]
    except (OSError, ValueError):
        return None


def files(machine: str, experiment: str = "*") -> list[Path]:
    """The files of a machine's records: those that sweeps made here, or else those kept in git."""
    own = [file for file in sorted((folder() / machine).glob("*/*.json")) if f".r{BY_HAND}." not in file.name]
    kept = sorted((REFERENCE / machine).glob("*/*.json"))
    return [file for file in own or kept if experiment in ("*", file.parent.name)]


def machines() -> list[str]:
    """The machines with records: those measured here, the latest first, then those kept in git."""
    latest: dict[str, float] = {}
    for file in folder().glob(f"*/*/*.r[!{BY_HAND}]*.json"):
        latest[file.parts[-3]] = max(file.stat().st_mtime, latest.get(file.parts[-3], 0))
    kept = sorted({file.parts[-3] for file in REFERENCE.glob("*/*/*.json")})
    return list(dict.fromkeys([*sorted(latest, key=latest.get, reverse=True), *kept]))


def stale(file: Path) -> str:
    """Why the valid record in a file is stale, in words; nothing where it is not, as none is that git keeps."""
    return staleness.reason(_known(file)) if file.is_relative_to(folder()) else ""


def quietest(machine: str) -> float:
    """The least median of the canary, in ms, in the records of a machine's sweeps: how fast it is when it is left
    alone. NaN without any."""
    records = (_known(file) for file in files(machine) if status(file) == "ok" and not stale(file))
    canaries = [record["metrics"].get("canary_ms") for record in records]
    return min((statistics.median(canary) for canary in canaries if canary), default=math.nan)


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
            found.append(_known(file) | {"stale": stale(file)})
        except ValueError as error:
            warnings.warn(f"{file.name} left out: {error}", stacklevel=2)
    newest = max(found, key=lambda record: record["started"], default=None)
    fields = list(newest["case"]) if newest else notebook.fields(experiment)
    for record in found:
        if list(record["case"]) != fields:
            warnings.warn(f"{name(record['case'])} left out: newer cases have other fields", stacklevel=2)
            continue
        record = staleness.withheld(record) if record["stale"] and not whole else record
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


def reference(experiment: str, but: str) -> pd.DataFrame:
    """The records kept in git of all machines other than `but`."""
    return of_machines(experiment, [name for name in machines() if name != but and (REFERENCE / name).is_dir()])


def published(table: str) -> pd.DataFrame:
    """A table of figures from public write-ups (`reports/reference/published/README.md` describes them)."""
    return pd.read_csv(PUBLISHED / f"{table}.csv")


def datasheets() -> pd.DataFrame:
    """The peaks that makers state for the GPUs of the published figures, one row a GPU and precision, in TFLOP/s and
    GB/s, each with its convention and source; `reports/reference/published/README.md` says more."""
    return pd.read_csv(REFERENCE / "datasheets.csv")


if __name__ == "__main__":
    from lib import shell  # which imports this module

    sys.exit(shell.main())
