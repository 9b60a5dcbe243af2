"""Says in one line what is wrong with a value: the field, the rule, the nearest valid name."""

import dataclasses
import difflib
import math
import reprlib
from collections.abc import Iterable

MOST = 10**9  # of any whole number: no dimension or count needs more, and products of a few stay small
_short = reprlib.Repr()
_short.maxstring = _short.maxlong = _short.maxother = 60


def shown(value: object) -> str:
    """A value as Python writes it, on one line, and shortened where it is long."""
    return _short.repr(value)


def nearest(name: object, names: Iterable[str]) -> str:
    """The one of `names` that is spelled most like `name`."""
    return difflib.get_close_matches(str(name), list(names), n=1, cutoff=0.0)[0]


def choice(field: str, value: object, names: Iterable[str]) -> None:
    """Raise ValueError unless `value` is one of `names`."""
    names = list(names)
    if not names:
        raise ValueError(f"{field}: {shown(value)} is not there, and nothing else is")
    if value not in names:
        known = ", ".join(names)
        raise ValueError(f"{field}: {shown(value)} is not one of {known}; the nearest is {nearest(value, names)!r}")


def at_least(field: str, value: float, least: float) -> None:
    """Raise ValueError unless `value` is `least` or more."""
    if not value >= least:
        raise ValueError(f"{field}: {shown(value)} must be {least} or more")


def at_most(field: str, value: float, most: float = MOST) -> None:
    """Raise ValueError unless `value` is `most` or less."""
    if not value <= most:
        raise ValueError(f"{field}: {shown(value)} must be {most} or less")


def fields(instance: object) -> None:
    """Raise ValueError unless every field of a dataclass instance has exactly its annotated type, is finite
    and, if it is an int, is positive, or at least what its metadata call `least`, and no more than `MOST`, or than what
    they call `most`. A bool is no int here, and "12" no number."""
    for field in dataclasses.fields(instance):
        value = getattr(instance, field.name)
        allowed = (int, float) if field.type is float else (field.type,)
        if type(value) not in allowed:
            raise ValueError(f"{field.name}: {shown(value)} is {type(value).__name__}, must be {field.type.__name__}")
        if field.type is float and not math.isfinite(value):
            raise ValueError(f"{field.name}: {value!r} must be finite")
        if field.type is int:
            at_least(field.name, value, field.metadata.get("least", 1))
            at_most(field.name, value, field.metadata.get("most", MOST))
