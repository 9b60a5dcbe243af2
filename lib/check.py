"""Says in one line what is wrong with a value: the field, the rule, the nearest valid name."""

import dataclasses
import difflib
import math
from collections.abc import Iterable


def nearest(name: object, names: Iterable[str]) -> str:
    """The one of `names` that is spelled most like `name`."""
    return difflib.get_close_matches(str(name), list(names), n=1, cutoff=0.0)[0]


def choice(field: str, value: object, names: Iterable[str]) -> None:
    """Raise ValueError unless `value` is one of `names`."""
    names = list(names)
    if value not in names:
        raise ValueError(
            f"{field}: {value!r} is not one of {', '.join(names)}; the nearest is {nearest(value, names)!r}"
        )


def at_least(field: str, value: float, least: float) -> None:
    """Raise ValueError unless `value` is `least` or more."""
    if not value >= least:
        raise ValueError(f"{field}: {value!r} must be {least} or more")


def fields(instance: object) -> None:
    """Raise ValueError unless every field of a dataclass instance has exactly its annotated type, is finite
    and, if it is an int, is positive, or at least what its metadata call `least`. A bool is no int here, and "12" no
    number."""
    for field in dataclasses.fields(instance):
        value = getattr(instance, field.name)
        allowed = (int, float) if field.type is float else (field.type,)
        if type(value) not in allowed:
            raise ValueError(f"{field.name}: {value!r} is {type(value).__name__}, must be {field.type.__name__}")
        if field.type is float and not math.isfinite(value):
            raise ValueError(f"{field.name}: {value!r} must be finite")
        if field.type is int:
            at_least(f"{field.name}", value, field.metadata.get("least", 1))
