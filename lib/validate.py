"""Check values, and say in one line what is wrong.

The line has the field, the value, the rule and the nearest valid name.

>>> choice("size", "tny", ["tiny", "small"])
Traceback (most recent call last):
lib.validate.BadInput: size: got 'tny', expected one of tiny, small (nearest: tiny)
"""

import dataclasses
import difflib
import reprlib
import sys
from collections.abc import Iterable
from typing import Any

MOST = 10**9  # the largest integer: no dimension or count needs more, and products of a few stay small
_short = reprlib.Repr()
_short.maxstring = _short.maxlong = _short.maxother = 60


class BadInput(ValueError):
    """Report bad input; a notebook shows its one line without a traceback."""

    def _render_traceback_(self) -> list[str]:
        """Return what IPython shows instead of a traceback."""
        return [str(self)]


def shown(value: object) -> str:
    """Return the `repr` of a value on one line, shortened if it is long."""
    return _short.repr(value)


def choice(field: str, value: object, names: Iterable[str]) -> None:
    """Raise BadInput unless `value` is one of `names`."""
    names = list(names)
    if not names:
        raise BadInput(f"{field}: got {shown(value)}, but there is nothing to choose from")
    if value not in names:
        listed = ", ".join(names)
        nearest = difflib.get_close_matches(str(value), names, n=1, cutoff=0.0)[0]
        raise BadInput(f"{field}: got {shown(value)}, expected one of {listed} (nearest: {nearest})")


def at_least(field: str, value: float, least: float) -> None:
    """Raise BadInput unless `value` is `least` or more."""
    if not value >= least:
        raise BadInput(f"{field}: got {shown(value)}, expected at least {least}")


def at_most(field: str, value: float, most: float = MOST) -> None:
    """Raise BadInput unless `value` is `most` or less."""
    if not value <= most:
        raise BadInput(f"{field}: got {shown(value)}, expected at most {most}")


def one_of(names: Iterable[str], default: str) -> Any:
    """Declare a dataclass field whose value is one of `names`."""
    return dataclasses.field(default=default, metadata={"names": names})


def fields(instance: object) -> None:
    """Raise BadInput unless every field of a dataclass has its type and range.

    Types are exact: a bool is no int, and "12" no number; but a float may be an int. A float must be finite. An int
    must lie between `least` and `most` of the field's metadata, by default 1 and `MOST`. A field of `one_of` has one of
    its names."""
    for field in dataclasses.fields(instance):
        value = getattr(instance, field.name)
        allowed = (int, float) if field.type is float else (field.type,)
        if (kind := type(value)) not in allowed:
            raise BadInput(f"{field.name}: got {shown(value)} ({kind.__name__}), expected {field.type.__name__}")
        # an integer beyond all floats is not finite, either
        if field.type is float and not abs(value) <= sys.float_info.max:
            raise BadInput(f"{field.name}: got {shown(value)}, expected a finite number")
        if field.type is int:
            at_least(field.name, value, field.metadata.get("least", 1))
            at_most(field.name, value, field.metadata.get("most", MOST))
        if "names" in field.metadata:
            choice(field.name, value, field.metadata["names"])
