"""Define a record: its fields and their rules, its name, its checksum and its bytes.

An error names the field and the rule but never the value, so that a report can show it.
"""

import hashlib
import json
import re
import sys
from collections.abc import Mapping
from datetime import datetime

SCHEMA = 1
STATUSES = ("ok", "oom", "too_large", "no_room", "timeout", "crashed", "failed")
FIELDS = {  # in this order, each with its types
    "schema": (int,), "experiment": (str,), "case": (dict,), "round": (int,), "status": (str,), "metrics": (dict,),
    "environment": (dict,), "code": (str,), "started": (str,), "seconds": (int, float), "checksum": (str,),
}  # fmt: skip
UNITS = ("_ms", "_us", "_s", "_mib", "_bytes", "_percent", "_error", "_flops")  # endings of metrics that are numbers
LARGEST_BYTES = 64 * 2**20  # of a file; a typical record has a few kilobytes
LONGEST = 160  # characters of an error
FOLDERS = re.compile(r"(?<![\w/])/(?:[^\s/'\"]+/)+")  # before the name of a file


def name(case: Mapping) -> str:
    """Name a case, for people and as the stem of a file.

    A boolean that is true shows its field's name, and 10.0 is written as 10."""
    whole = {name: int(one) for name, one in case.items() if isinstance(one, float) and one.is_integer()}
    fields = {**case, **whole}.items()
    return "-".join(field if value is True else str(value) for field, value in fields if value is not False)


def called(experiment: str, case: Mapping, round: int) -> str:
    """Name a record by experiment, case and round; also its path below the machine's folder."""
    return f"{experiment}/{name(case)}.r{round}"


def location(record: Mapping) -> str:
    """Return the only path below a folder of records where this record may be stored."""
    return f"{record['environment']['machine']}/{called(record['experiment'], record['case'], record['round'])}.json"


def checksum(record: Mapping) -> str:
    """Compute SHA-256 of all other fields as canonical JSON; NaN and infinity are a ValueError."""
    body = {name: value for name, value in record.items() if name != "checksum"}
    return hashlib.sha256(json.dumps(body, sort_keys=True, allow_nan=False).encode()).hexdigest()


def create(**content) -> bytes:
    """Return the bytes of a new record from all its fields except schema and checksum.

    Raises ValueError for NaN, infinity and unknown fields; `parse` checks the rest."""
    record = {"schema": SCHEMA} | {field: content[field] for field in sorted(content, key=list(FIELDS).index)}
    return dump(record | {"checksum": checksum(record)})


def dump(record: Mapping) -> bytes:
    """Return a record's bytes, which `parse` reads; NaN and infinity are a ValueError."""
    return json.dumps(record, indent=1, allow_nan=False).encode()


def parse(content: bytes) -> dict:
    """Read a record from its bytes.

    Raises ValueError, in one line, unless these are exactly the bytes that `dump` writes for a valid record."""
    if len(content) > LARGEST_BYTES:
        raise ValueError(too_large(len(content)))
    try:
        record = json.loads(content.decode())
        validate(record)
        if dump(record) != content:  # also where a key was there twice
            raise ValueError("bytes: expected those that `dump` writes for this record")
    except UnicodeDecodeError:
        raise ValueError("JSON: expected UTF-8") from None
    except json.JSONDecodeError:
        raise ValueError("JSON: cut short or malformed" if content else "JSON: the file is empty") from None
    except RecursionError:
        raise ValueError("JSON: nested too deeply") from None
    except ValueError as error:
        raise ValueError(one_line(str(error))) from None
    return record


def too_large(size_bytes: int) -> str:
    """Say why a file of this size is not read."""
    return f"size: got {size_bytes / 2**20:,.0f} MiB, expected at most {LARGEST_BYTES // 2**20} MiB"


def one_line(reason: str) -> str:
    """Shorten an error to one printable line of at most `LONGEST` characters."""
    line = " ".join("".join(letter if letter.isprintable() else " " for letter in reason).split())
    return line if len(line) <= LONGEST else line[:LONGEST] + " ..."


def without_folders(text: str) -> str:
    """Shorten the paths in an error to the names of their files; a folder may name a person."""
    return FOLDERS.sub("", text)


def validate(record: Mapping) -> None:
    """Raise ValueError, naming the field and the rule, unless a record is complete and valid.

    A metric is a number, a text, a list of these, or a table of columns of equal length.
    Numbers are finite and times positive."""
    if isinstance(record, dict) and record.get("schema", SCHEMA) != SCHEMA:
        raise ValueError(f"schema: expected {SCHEMA}")
    if not isinstance(record, dict) or list(record) != list(FIELDS):
        raise ValueError(f"fields: expected {', '.join(FIELDS)}")
    for field, types in FIELDS.items():
        if type(record[field]) not in types:  # isinstance takes a bool for an int
            raise ValueError(f"{field}: expected {' or '.join(kind.__name__ for kind in types)}")
    if record["status"] not in STATUSES:
        raise ValueError(f"status: expected one of {', '.join(STATUSES)}")
    if record["round"] < 0 or not (_is_finite(record["seconds"]) and record["seconds"] >= 0):
        raise ValueError("round, seconds: expected finite numbers of at least 0")
    for field, value in record["case"].items():
        if type(value) not in (str, bool) and not _is_finite(value):
            raise ValueError(f"case.{field}: expected a text, a boolean or a finite number")
    for field in ("machine", "hardware"):
        if type(record["environment"].get(field)) is not str:
            raise ValueError(f"environment.{field}: expected a text")
    _validate_start(record["started"])
    _validate_metrics(record["metrics"])
    if record["status"] == "failed" and type(record["metrics"].get("reason")) is not str:
        raise ValueError("metrics.reason: expected a text in a record with status failed")
    try:
        expected = checksum(record)
    except ValueError:
        raise ValueError("environment: expected finite numbers") from None
    if record["checksum"] != expected:
        raise ValueError("checksum: expected that of the record's other fields")


def _validate_start(started: str) -> None:
    try:
        datetime.fromisoformat(started)
    except ValueError:
        raise ValueError("started: expected a date and time in ISO 8601") from None


def _validate_metrics(metrics: Mapping) -> None:
    for name, value in metrics.items():
        columns = value.values() if isinstance(value, dict) else ()
        if any(not isinstance(column, list) for column in columns):
            raise ValueError(f"metrics.{name}: expected a table whose columns are lists")
        if len({len(column) for column in columns}) > 1:
            raise ValueError(f"metrics.{name}: expected columns of equal length")
        for key, column in value.items() if isinstance(value, dict) else [("", value)]:
            for entry in column if isinstance(column, list) else [column]:
                _validate_entry(f"{name}.{key}".strip("."), entry)


def _validate_entry(name: str, entry) -> None:
    if isinstance(entry, str) and not name.endswith(UNITS):
        return
    if not _is_finite(entry):
        raise ValueError(f"metrics.{name}: expected a finite number or a text")
    if name.endswith(("_ms", "_s")) and entry <= 0:
        raise ValueError(f"metrics.{name}: expected a positive time")


def _is_finite(value) -> bool:
    """Tell if a value is a number within double precision; a JSON integer may be too long."""
    return type(value) in (int, float) and abs(value) <= sys.float_info.max
