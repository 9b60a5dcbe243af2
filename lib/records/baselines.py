"""Find the baseline of a case: the case that it is compared with, equal in all but one field."""

from collections.abc import Mapping

from lib.catalog import CATALOG


def differing(experiment: str) -> Mapping[str, object]:
    """Return the fields that tell variants apart, each with its value in the reference."""
    return CATALOG[experiment].baseline if experiment in CATALOG else {}


def of(experiment: str, case: Mapping) -> dict | None:
    """Return the baseline of a case, or None if the case is itself the reference.

    The first field that differs from the reference takes the reference's value."""
    for name, value in differing(experiment).items():
        own = case.get(name)
        reference = value.get(own, own) if isinstance(value, Mapping) else value
        if name in case and own != reference:
            return {**case, name: reference}
    return None
