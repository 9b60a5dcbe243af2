"""Names the case that a case is compared with: the same in all but one field."""

from collections.abc import Mapping

from lib.catalog import CATALOG


def differing(experiment: str) -> Mapping[str, object]:
    """Return the fields in which variants of an experiment differ, and the value of the reference (see `catalog`)."""
    return CATALOG[experiment].baseline if experiment in CATALOG else {}


def of(experiment: str, case: Mapping) -> dict | None:
    """Return the fields of the case's baseline: the first that differs from the reference is set to it.

    None for a case that is a reference itself."""
    for name, value in differing(experiment).items():
        own = case.get(name)
        reference = value.get(own, own) if isinstance(value, Mapping) else value
        if name in case and own != reference:
            return {**case, name: reference}
    return None
