"""Find the baseline of a case: the case that it is compared with, equal in all but one field."""

from collections.abc import Mapping

from lib.catalog import CATALOG


def differing(experiment: str) -> Mapping[str, object]:
    """Return the fields that tell variants apart, each with its value in the reference."""
    return CATALOG[experiment].baseline if experiment in CATALOG else {}


def of(experiment: str, case: Mapping) -> dict | None:
    """Return the baseline of a case, or None if the case is itself the reference.

    The first field that differs from the reference takes the reference's value."""
    return next(({**case, name: value} for name, value in switched(experiment, case).items()), None)


def plain(experiment: str, case: Mapping) -> dict | None:
    """Return the reference of a case that differs from it in several fields.

    None for other cases, and where the experiment does not compare the two."""
    found = switched(experiment, case)
    return {**case, **found} if len(found) > 1 and CATALOG[experiment].plain else None


def switched(experiment: str, case: Mapping) -> dict[str, object]:
    """Return the fields in which a case differs from the reference, with the reference's values."""
    values = {
        name: value.get(case.get(name), case.get(name)) if isinstance(value, Mapping) else value
        for name, value in differing(experiment).items()
    }
    return {name: value for name, value in values.items() if name in case and case[name] != value}
