"""Says on the title page which machine was measured, when and with what, from its records; lays out nothing."""

import datetime
from collections.abc import Iterable
from operator import itemgetter
from pathlib import Path

from lib.records import results, staleness

MOST = 4  # commits that are named; of more, the first and the last


def facts(machine: str) -> dict[str, str]:
    """What the title page says of a machine's records, by its label."""
    files = [file for file in results.files(machine) if results.status(file)]
    found = [results.read(file) for file in files]
    around = [record["environment"] for record in found]
    cases = {(record["experiment"], results.name(record["case"])) for record in found}
    rounds = len({record["round"] for record in found})
    return {
        "Machine": _all(each["hardware"] for each in around),
        "Measured": _days(record["started"][:10] for record in found),
        "PyTorch": _all(each["torch"] for each in around),
        "Python": _all(each.get("python", "") for each in around),
        "Commit": _all(_commit(record["environment"]) for record in sorted(found, key=itemgetter("started"))),
        "Records": f"{len(found):,}, of {len(cases):,} cases in {rounds} round{'s' * (rounds > 1)}",
    } | _versions(files, found)


def _versions(files: list[Path], found: list[dict]) -> dict[str, str]:
    """How many of a machine's own records are stale, or how many of those that git keeps are of older code, if any."""
    if stale := staleness.sentence([results.stale(file) for file in files]):
        return {"Stale": stale}
    kept = [record for file, record in zip(files, found, strict=True) if not file.is_relative_to(results.folder())]
    older = staleness.older(kept)
    said = f"{older:,} of {len(kept):,} records were measured by older code or another PyTorch"
    return {"Code": said} if older else {}


def _commit(environment: dict) -> str:
    return environment["commit"] + (" with changes" if environment["uncommitted"] else "")


def _all(values: Iterable[str]) -> str:
    """The different values in their order, or the first and the last of many."""
    seen = list(dict.fromkeys(filter(None, values)))
    return ", ".join(seen) if len(seen) <= MOST else f"{seen[0]} to {seen[-1]}, {len(seen)} in all"


def _days(days: Iterable[str]) -> str:
    """The first and the last day in words."""
    ends = [datetime.date.fromisoformat(day) for day in sorted(set(days))]
    return " to ".join(dict.fromkeys(f"{day.day} {day:%B %Y}" for day in ends[:1] + ends[-1:]))
