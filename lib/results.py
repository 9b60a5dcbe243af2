"""Saves and loads records, one JSON file each, written once and whole; knows no torch and no experiment."""

import hashlib
import json
import math
import os
import tempfile
import warnings
from collections.abc import Mapping
from pathlib import Path

import pandas as pd

REPORTS = Path(__file__).resolve().parent.parent / "reports"
REFERENCE = REPORTS / "reference"
PUBLISHED = REFERENCE / "published"
SCHEMA = 1
STATUSES = ("ok", "oom", "too_large", "timeout", "crashed")
FIELDS = [
    *("schema", "experiment", "case", "round", "status", "metrics", "environment"),
    *("code", "started", "seconds", "checksum"),
]
BY_HAND = 0  # the round of what someone measures in JupyterLab: overwritten each time, in no report


def folder() -> Path:
    """Where this machine's records go: `reports/results`, or the folder that $RESULTS names."""
    return Path(os.environ.get("RESULTS", REPORTS / "results"))


def runs() -> Path:
    """Where the executed notebooks go: `runs` beside the records."""
    return folder().parent / "runs"


def path(machine: str, experiment: str, case: Mapping, round: int) -> Path:
    """The file of a record. Its name is for people; a boolean shows as its own name when it is true."""
    shown = [name if value is True else str(value) for name, value in case.items() if value is not False]
    return folder() / machine / experiment / f"{'-'.join(shown)}.r{round}.json"


def checksum(record: Mapping) -> str:
    """SHA-256 over all fields but the checksum, in canonical JSON. Raises ValueError for NaN and infinity."""
    body = {name: value for name, value in record.items() if name != "checksum"}
    return hashlib.sha256(json.dumps(body, sort_keys=True, allow_nan=False).encode()).hexdigest()


def validate(record: Mapping) -> None:
    """Raise ValueError, saying what is wrong, unless this is a whole record of this schema whose numbers are
    finite and whose times are positive."""
    if list(record) != FIELDS:
        raise ValueError(f"fields: {', '.join(record)} must be {', '.join(FIELDS)}")
    if record["schema"] != SCHEMA:
        raise ValueError(f"schema: {record['schema']!r} must be {SCHEMA}")
    if record["status"] not in STATUSES:
        raise ValueError(f"status: {record['status']!r} is not one of {', '.join(STATUSES)}")
    for name, value in record["metrics"].items():
        for number in value if isinstance(value, list) else [value]:
            if type(number) not in (int, float) or not math.isfinite(number):
                raise ValueError(f"metrics.{name}: {number!r} must be a finite number")
            if name.endswith(("_ms", "_s")) and number <= 0:
                raise ValueError(f"metrics.{name}: {number!r} is a time and must be positive")
    if record["checksum"] != checksum(record):
        raise ValueError("checksum: does not match the record")


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


def status(file: Path) -> str | None:
    """The status of the record in a file, or None when there is no valid one."""
    try:
        return read(file)["status"]
    except (OSError, ValueError):
        return None


def sources(machine: str) -> list[Path]:
    """The folders that hold a machine's records: its own results, or else those kept in git."""
    own = folder() / machine
    return [own if own.is_dir() else REFERENCE / machine]


def machines() -> list[str]:
    """The machines with records, this one's results first, then those kept in git."""
    roots = (folder(), REFERENCE)
    found = [entry.name for root in roots if root.is_dir() for entry in sorted(root.iterdir()) if entry.is_dir()]
    return [name for name in dict.fromkeys(found) if name != PUBLISHED.name]


def load(experiment: str, machine: str, round: int | None = None) -> pd.DataFrame:
    """A machine's records of an experiment, one a row: the fields of the case, the metrics (lists of samples),
    and `machine, hardware, round, status, environment, code, started, seconds`; `attrs["fields"]` names the
    fields of the case. Rounds done by hand are left out unless `round` asks for them. A file that is no valid
    record is left out with a warning."""
    rows, fields = [], []
    for file in sorted(file for source in sources(machine) for file in source.glob(f"{experiment}/*.json")):
        try:
            record = read(file)
        except ValueError as error:
            warnings.warn(f"{file.name} left out: {error}", stacklevel=2)
            continue
        if record["round"] == round or (round is None and record["round"] != BY_HAND):
            fields = list(record["case"])
            kept = ("round", "status", "environment", "code", "started", "seconds")
            rows.append(
                record["case"] | record["metrics"] | {name: record[name] for name in kept}
                | {"machine": machine, "hardware": record["environment"]["hardware"]}
            )  # fmt: skip
    if not rows:
        return _empty(experiment, but=machine)
    frame = pd.DataFrame(rows)
    frame.attrs["fields"] = fields
    return frame


def _empty(experiment: str, but: str) -> pd.DataFrame:
    """No records, with the columns that another machine's records of the experiment have."""
    others = (folder.name for folder in REFERENCE.iterdir() if any(folder.glob(f"{experiment}/*.json")))
    other = next((name for name in others if name != but), None)
    frame = load(experiment, other) if other else pd.DataFrame()
    empty = frame.iloc[:0]
    empty.attrs = {"fields": frame.attrs.get("fields", [])}
    return empty


def reference(experiment: str, but: str) -> pd.DataFrame:
    """The records kept in git of all machines other than `but`."""
    frames = [load(experiment, machine) for machine in machines() if machine != but and (REFERENCE / machine).is_dir()]
    return pd.concat(frames, ignore_index=True) if frames else pd.DataFrame()


def published(table: str) -> pd.DataFrame:
    """A table of figures from public write-ups (`reports/reference/published/README.md` describes them)."""
    return pd.read_csv(PUBLISHED / f"{table}.csv")
