"""Ways in which the file of a record can be damaged, each a function from its bytes to others."""

import hashlib
import json
import random

TIME = "987.654321"  # what the record that is damaged measured, and nothing may show


def sealed(record) -> bytes:
    """A record's bytes with a checksum that is right for whatever it holds, NaN too."""
    body = {name: value for name, value in record.items() if name != "checksum"}
    digest = hashlib.sha256(json.dumps(body, sort_keys=True).encode()).hexdigest()
    return json.dumps(body | {"checksum": digest}, indent=1).encode()


def altered(change):
    """The damage of a record whose parts are changed, and whose checksum is right again."""

    def damage(content: bytes) -> bytes:
        record = json.loads(content)
        change(record)
        return sealed(record)

    return damage


def times(value):
    return altered(lambda record: record["metrics"].update(total_ms=[value]))


def field(name, value):
    return altered(lambda record: record.update({name: value}))


def renamed(old: str, new: str):
    return lambda content: content.replace(old.encode(), new.encode())


DAMAGES = {
    "empty": lambda content: b"",
    "another schema": field("schema", 2),
    "NaN": times(float("nan")),
    "an infinity in digits": renamed(TIME, "1e999"),
    "a number too long to be one": renamed(TIME, "9" * 5000),
    "a negative time": times(-float(TIME)),
    "a time as text": times(TIME),
    "lists in lists": times([float(TIME)]),
    "a table whose column is none": altered(lambda record: record["metrics"].update(table={"total_us": 3})),
    "a field twice": renamed('"round": 1,', '"round": 1,\n "round": 1,'),
    "a field more": altered(lambda record: record.update(comment="")),
    "fields in another order": altered(lambda record: record.update(code=record.pop("code"))),
    "an unknown status": field("status", "fine"),
    "a round that is true": field("round", True),
    "a case with a list": altered(lambda record: record["case"].update(seq_len=[64])),
    "an environment without machine": altered(lambda record: record["environment"].pop("machine")),
    "a start that is no date": field("started", "yesterday"),
    "a checksum of something else": renamed(TIME, "987.654322"),
    "no checksum": lambda content: content[: content.rindex(b'"checksum"')] + b'"checksum": ""\n}',
    "an exponent in capitals": renamed("1e-07", "1E-07"),
    "on one line": lambda content: json.dumps(json.loads(content)).encode(),
    "UTF-16": lambda content: content.decode().encode("utf-16"),
    "not UTF-8": lambda content: content.replace(b"naive", b"na\xefve"),
    "twice in one file": lambda content: content + content,
    "a list": lambda content: b"[]",
    "nested deeply": lambda content: b"[" * 1_000_000,
    "noise": lambda content: random.Random(0).randbytes(5000),
    "a pickle": lambda content: b"\x80\x04\x95\x1a\x00\x00\x00\x00\x00\x00\x00\x8c\x05posix\x94\x8c\x06system\x94\x93.",
    "the record of another machine": altered(lambda record: record["environment"].update(machine="test-2c")),
    "the record of another experiment": field("experiment", "adam"),
    "the record of another case": altered(lambda record: record["case"].update(seq_len=128)),
    "the record of another round": field("round", 2),
}
