"""Create, save and load records: one case in one round, as one JSON file.

A record exists or it does not: it is written to a temporary file, flushed to the disk and renamed. A file that does not
parse, or whose checksum is wrong, is skipped with a warning, and a sweep measures its case again.
"""

import contextlib
import hashlib
import json
import os
import warnings
from collections.abc import Iterator, Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path

import pandas as pd

from lib import catalog, paths, validate, watched
from lib.paths import REFERENCE
from lib.validate import BadInput

SCHEMA = 2
STATUSES = {  # what reports call them; the worst last
    "ok": "", "oom": "out of memory", "timeout": "took too long", "crashed": "crashed", "failed": "failed",
}  # fmt: skip
COLUMNS = ("experiment", "machine", "hardware", "round", "status", "environment", "code", "started", "seconds", "stale")
# the files of all rounds but 0, which is for what someone measures in JupyterLab, and which no report shows
NOT_BY_HAND = "*.r[1-9]*.json"
BY_HAND = "*.r0.json"


class CannotWrite(OSError):
    """Say that a file cannot be written, for example because the disk is full."""


def name(case: Mapping) -> str:
    """Name a case for people and files: `sdpa-512-64-causal-fp32-cpu`.

    A boolean shows its field's name if it is true and nothing if it is false; 10.0 is written as 10."""
    words = []
    for field, value in case.items():
        if value is True:
            words.append(field)
        elif isinstance(value, float) and value.is_integer():
            words.append(str(int(value)))
        elif value is not False:
            words.append(str(value))
    return "-".join(words)


def path(machine: str, experiment: str, case: Mapping, round: int) -> Path:
    """Return the only file into which a record of this case and round is saved."""
    return paths.results() / machine / experiment / f"{name(case)}.r{round}.json"


def create(
    experiment: str, case: Mapping, round: int, status: str, metrics: Mapping, environment: Mapping,
    started: str = "", seconds: float = 0.0,
) -> dict:  # fmt: skip
    """Return a record of today's code with its checksum.

    `started` is now by default. Raises ValueError for NaN, infinity, an unknown status, and a negative time among the
    metrics."""
    validate.choice("status", status, STATUSES)
    for metric, value in metrics.items():
        samples = value if isinstance(value, list) else [value]
        if metric.endswith("_ms") and any(isinstance(sample, int | float) and sample < 0 for sample in samples):
            raise ValueError(f"metrics.{metric}: expected no negative time")
    record = {
        "schema": SCHEMA,
        "experiment": experiment,
        "case": dict(case),
        "round": round,
        "status": status,
        "metrics": dict(metrics),
        "environment": dict(environment),
        "code": watched.digest(experiment),
        "started": started or now(),
        "seconds": float(seconds),
    }
    return record | {"checksum": checksum_of(record)}


def now() -> str:
    """Return the time in UTC, to the millisecond, as records write it."""
    return datetime.now(UTC).isoformat(timespec="milliseconds")


def is_final(record: Mapping) -> bool:
    """Tell if a record settles its case.

    One that ran out of memory in a used process does not, since a new process may have enough."""
    return record["status"] != "oom" or record["metrics"].get("fresh", True)


def ends_process(record: Mapping) -> bool:
    """Tell if the process that made a record should measure no more.

    An error may have left its GPU unusable."""
    lost_gpu = record["status"] == "failed" and record["case"]["device"] != "cpu"
    return lost_gpu or not is_final(record)


def fields(experiment: str) -> list[str]:
    """List the fields of an experiment's cases; raises ValueError for an unknown one."""
    validate.choice("experiment", experiment, catalog.CATALOG)
    return list(catalog.CATALOG[experiment].fields)


def checksum_of(record: Mapping) -> str:
    """Hash all fields but `checksum`; raises ValueError for NaN or infinity."""
    content = {field: value for field, value in record.items() if field != "checksum"}
    return hashlib.sha256(json.dumps(content, sort_keys=True, allow_nan=False).encode()).hexdigest()


def save(record: Mapping) -> Path:
    """Write a record, all or nothing, and return its file. Raises CannotWrite."""
    target = path(record["environment"]["machine"], record["experiment"], record["case"], record["round"])
    write(target, json.dumps(record, indent=1, allow_nan=False))
    return target


def write(target: Path, text: str) -> None:
    """Write a text file by renaming a temporary one. Raises CannotWrite."""
    # its name does not end as a record's does, so that no one reads it meanwhile
    temporary = target.with_name(f".writing-{os.getpid()}-{target.stem}")
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        with temporary.open("w", encoding="utf-8") as file:
            file.write(text)
            file.flush()
            os.fsync(file.fileno())
        os.replace(temporary, target)
    except OSError as error:
        raise CannotWrite(f"{target.name}: cannot be written: {error.strerror}") from None
    finally:
        # an interrupt leaves none, either
        with contextlib.suppress(OSError):
            temporary.unlink()


def read(file: Path) -> dict:
    """Read the record in a file. Raises ValueError, in one line, unless it is whole."""
    try:
        return parse(file.read_bytes())
    except OSError as error:
        raise ValueError(f"file: cannot be read: {error.strerror}") from None


def parse(text: str | bytes) -> dict:
    """Read a record from its JSON. Raises ValueError in one line unless it is whole."""
    try:
        record = json.loads(text)
        checksum = checksum_of(record)
    except (ValueError, AttributeError, RecursionError):
        raise ValueError("JSON: cut short or malformed") from None
    if record.get("schema") != SCHEMA:
        raise ValueError(f"schema: got {record.get('schema')}, expected {SCHEMA}")
    # a record whose checksum is right is as `create` made it
    if record.get("checksum") != checksum:
        raise ValueError("checksum: expected that of the other fields")
    return record


def machines(by_hand: bool = False) -> list[str]:
    """List machines with records.

    Those that measured here come first, the latest at the head. Those that only git keeps follow; records `by_hand` are
    never in git."""
    latest = {}
    for folder in paths.results().glob("[!.]*"):
        moments = [file.stat().st_mtime for file in folder.glob(f"*/{BY_HAND if by_hand else NOT_BY_HAND}")]
        if moments:
            latest[folder.name] = max(moments)
    names = sorted(latest, key=latest.get, reverse=True)
    if not by_hand:
        names += [folder.name for folder in sorted(REFERENCE.glob("*")) if is_in_git(folder.name)]
    return names


def is_in_git(machine: str) -> bool:
    """Tell if a machine's records are those that git keeps.

    The machine has some there, and has measured nothing here, not even by hand. Records in git never stand in for what
    a machine has not measured here."""
    if any((paths.results() / machine).glob("*/*.r[0-9]*.json")):
        return False
    return any((REFERENCE / machine).glob("*.jsonl"))


def of_machine(experiment: str, machine: str, by_hand: bool = False) -> Iterator[dict]:
    """Yield an experiment's records, of sweeps or `by_hand`.

    They are those measured here, or, if nothing was, those kept in git. Warns of each damaged file, and skips it."""
    if is_in_git(machine):
        yield from _kept_in_git(experiment, machine)
        return
    for file in sorted((paths.results() / machine / experiment).glob(BY_HAND if by_hand else NOT_BY_HAND)):
        try:
            yield read(file)
        except ValueError as error:
            warnings.warn(f"{experiment}/{file.name}: skipped: {error}", stacklevel=3)


def _kept_in_git(experiment: str, machine: str) -> Iterator[dict]:
    """Yield an experiment's records in `reports/reference`, one a line of its file."""
    file = REFERENCE / machine / f"{experiment}.jsonl"
    if not file.exists():
        return
    for number, line in enumerate(file.read_text(encoding="utf-8").splitlines(), start=1):
        try:
            yield parse(line)
        except ValueError as error:
            warnings.warn(f"{machine}/{file.name}, line {number}: skipped: {error}", stacklevel=4)


def load(experiment: str, machine: str | Sequence[str] = "", by_hand: bool = False) -> pd.DataFrame:
    """Load records of an experiment, one a row, those of the first machine first.

    With `by_hand` they are what notebooks measured outside of sweeps, round 0, which no report tells.

    Columns: the fields of the case, each metric under its own name (a number, a text, a list of samples, or a dict of
    columns), and `COLUMNS`. A record of other code than today's has `stale` set. `attrs["machine"]` is the first one's
    name. Without a `machine` it is the latest one measured here. Where nothing was, it is the first that git keeps, and
    a warning names it. Raises BadInput for a machine without records."""
    known = machines(by_hand)
    if not known:
        raise BadInput(
            "machine: nothing was measured on any, expected one with records (make report measures this one)"
        )
    if not machine and is_in_git(known[0]):
        warnings.warn(f"nothing was measured here: these are records of {known[0]}, kept in git", stacklevel=2)
    machine = machine or known[0]
    names = [machine] if isinstance(machine, str) else machine
    loaded = []
    for machine_name in names:
        validate.choice("machine", machine_name, known)
        loaded += of_machine(experiment, machine_name, by_hand)
    table = frame(experiment, loaded)
    table.attrs["machine"] = names[0]
    return table


def load_any(experiment: str, machine: str) -> pd.DataFrame:
    """Load records of a machine, or an empty table if it has none.

    Someone who measures by hand on a new machine has none of other experiments."""
    if machine in machines():
        return load(experiment, machine)
    return frame(experiment, [])


def frame(experiment: str, loaded: Sequence[Mapping]) -> pd.DataFrame:
    """Make the table of `load`; cases with other fields than today's are left out."""
    names = fields(experiment)
    rows = []
    for record in loaded:
        if set(record["case"]) != set(names):
            warnings.warn(f"{name(record['case'])}: skipped: a case of {experiment} has other fields", stacklevel=3)
            continue
        row = {field: record["case"][field] for field in names}
        row |= record["metrics"]
        row |= {column: record[column] for column in COLUMNS if column in record}
        row |= {fact: record["environment"][fact] for fact in ("machine", "hardware")}
        row["stale"] = record["code"] != watched.digest(experiment)
        rows.append(row)
    if rows:
        return pd.DataFrame(rows)
    return pd.DataFrame(columns=[*names, *COLUMNS])
