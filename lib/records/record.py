"""Defines a record: its fields, their rules, its checksum, its name, and its one form in bytes.

A reason why something is no record names the field and the rule and never the value, so that a report can show it.
"""

import hashlib
import json
import sys
from collections.abc import Mapping
from datetime import datetime

SCHEMA = 1
STATUSES = ("ok", "oom", "too_large", "timeout", "crashed")
FIELDS = {  # in their order, with the types that each may have
    "schema": (int,), "experiment": (str,), "case": (dict,), "round": (int,), "status": (str,), "metrics": (dict,),
    "environment": (dict,), "code": (str,), "started": (str,), "seconds": (int, float), "checksum": (str,),
}  # fmt: skip
UNITS = ("_ms", "_us", "_s", "_mib", "_bytes", "_percent", "_error", "_flops")  # what has one is a number
LARGEST_BYTES = 64 * 2**20  # of a file; the records of this repository have some kilobytes
LONGEST = 160  # characters of a reason


def name(case: Mapping) -> str:
    """A case as the stem of a file, for people to read; a boolean shows as its own name when it is true."""
    return "-".join(field if value is True else str(value) for field, value in case.items() if value is not False)


def called(experiment: str, case: Mapping, round: int) -> str:
    """What a record is called: its experiment, its case and its round; of its file the place below a machine's."""
    return f"{experiment}/{name(case)}.r{round}"


def place(record: Mapping) -> str:
    """Where the file of a record stands in a folder of records: the one place that its content allows."""
    return f"{record['environment']['machine']}/{called(record['experiment'], record['case'], record['round'])}.json"


def checksum(record: Mapping) -> str:
    """SHA-256 over all fields but the checksum, in canonical JSON. Raises ValueError for NaN and infinity."""
    body = {name: value for name, value in record.items() if name != "checksum"}
    return hashlib.sha256(json.dumps(body, sort_keys=True, allow_nan=False).encode()).hexdigest()


def made(**content) -> bytes:
    """The bytes of a new record of all fields but its schema and checksum, which `parse` tells whether they are valid.

    Raises ValueError for NaN and infinity, and for a field that no record has."""
    record = {"schema": SCHEMA} | {field: content[field] for field in sorted(content, key=list(FIELDS).index)}
    return dump(record | {"checksum": checksum(record)})


def dump(record: Mapping) -> bytes:
    """The bytes of a record's file, which `parse` turns back. Raises ValueError for NaN and infinity."""
    return json.dumps(record, indent=1, allow_nan=False).encode()


def parse(content: bytes) -> dict:
    """The record that these are the bytes of. Raises ValueError, saying in one line why, for whatever `dump` would not
    have written of a valid record: a bit that changed is found even where the value that it belongs to is the same."""
    if len(content) > LARGEST_BYTES:
        raise ValueError(too_large(len(content)))
    try:
        record = json.loads(content.decode(), object_pairs_hook=_without_twins, parse_constant=_refuse_constant)
        validate(record)
        if dump(record) != content:
            raise ValueError("bytes: not those that this record is written as")
    except UnicodeDecodeError:
        raise ValueError("JSON: not in UTF-8") from None
    except json.JSONDecodeError:
        raise ValueError("JSON: cut short or malformed" if content else "JSON: the file is empty") from None
    except RecursionError:
        raise ValueError("JSON: nested too deeply") from None
    except ValueError as error:
        raise ValueError(one_line(str(error))) from None
    return record


def too_large(size_bytes: int) -> str:
    """Why a file of that size is not even read."""
    return f"size: {size_bytes / 2**20:,.0f} MiB, more than {LARGEST_BYTES // 2**20}"


def one_line(reason: str) -> str:
    """A reason in one line that is not too long and that any output can show, whatever names it quotes."""
    line = " ".join("".join(letter if letter.isprintable() else " " for letter in reason).split())
    return line if len(line) <= LONGEST else line[:LONGEST] + " ..."


def _without_twins(pairs: list[tuple[str, object]]) -> dict:
    if len(found := dict(pairs)) < len(pairs):
        raise ValueError("JSON: a key stands there twice")
    return found


def _refuse_constant(name: str) -> None:
    raise ValueError(f"JSON: {name} is no number")


def validate(record: Mapping) -> None:
    """Raise ValueError, saying what is wrong, unless this is a whole record of this schema whose metrics are numbers,
    texts, lists of either, or tables (columns of equally many), and whose numbers are finite and times positive."""
    if isinstance(record, dict) and record.get("schema", SCHEMA) != SCHEMA:
        raise ValueError(f"schema: must be {SCHEMA}")
    if not isinstance(record, dict) or list(record) != list(FIELDS):
        raise ValueError(f"fields: they must be {', '.join(FIELDS)}")
    for field, types in FIELDS.items():
        if type(record[field]) not in types:  # a bool is no int
            raise ValueError(f"{field}: must be {' or '.join(kind.__name__ for kind in types)}")
    if record["status"] not in STATUSES:
        raise ValueError(f"status: must be one of {', '.join(STATUSES)}")
    if record["round"] < 0 or not (_finite(record["seconds"]) and record["seconds"] >= 0):
        raise ValueError("round, seconds: must be finite and not negative")
    for field, value in record["case"].items():
        if type(value) not in (str, bool) and not _finite(value):
            raise ValueError(f"case.{field}: must be a text, a truth value or a finite number")
    for field in ("machine", "hardware"):
        if type(record["environment"].get(field)) is not str:
            raise ValueError(f"environment.{field}: must be a text")
    _validate_moment(record["started"])
    _validate_metrics(record["metrics"])
    if record["checksum"] != checksum(record):
        raise ValueError("checksum: does not match the record")


def _validate_moment(started: str) -> None:
    try:
        datetime.fromisoformat(started)
    except ValueError:
        raise ValueError("started: must be a date and time in ISO 8601") from None


def _validate_metrics(metrics: Mapping) -> None:
    for name, value in metrics.items():
        columns = value.values() if isinstance(value, dict) else ()
        if any(not isinstance(column, list) for column in columns):
            raise ValueError(f"metrics.{name}: the columns of a table must be lists")
        if len({len(column) for column in columns}) > 1:
            raise ValueError(f"metrics.{name}: the columns of a table must be equally long")
        for key, column in value.items() if isinstance(value, dict) else [("", value)]:
            for entry in column if isinstance(column, list) else [column]:
                _validate_entry(f"{name}.{key}".strip("."), entry)


def _validate_entry(name: str, entry) -> None:
    if isinstance(entry, str) and not name.endswith(UNITS):
        return
    if not _finite(entry):
        raise ValueError(f"metrics.{name}: must be a finite number or a text")
    if name.endswith(("_ms", "_s")) and entry <= 0:
        raise ValueError(f"metrics.{name}: is a time and must be positive")


def _finite(value) -> bool:
    """Whether it is a number that double precision holds; a whole number of JSON may have any length."""
    return type(value) in (int, float) and abs(value) <= sys.float_info.max
