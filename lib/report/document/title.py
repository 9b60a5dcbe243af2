"""Collect the title page's facts: which machine was measured, when and with what."""

import datetime
from collections.abc import Iterable
from operator import itemgetter
from pathlib import Path

from lib.records import results, staleness

MOST = 4  # values listed; of more, only the first and the last


def facts(machine: str) -> dict[str, str]:
    """Return the title page's facts on a machine's records, by label."""
    files = [file for file in results.files(machine) if results.status(file)]
    found = [results.read(file) for file in files]
    around = [record["environment"] for record in found]
    cases = {(record["experiment"], results.name(record["case"])) for record in found}
    rounds = len({record["round"] for record in found})
    return {
        "Machine": _join(each["hardware"] for each in around),
        "Measured": _date_range(record["started"][:10] for record in found),
        "PyTorch": _join(each["torch"] for each in around),
        "Python": _join(each.get("python", "") for each in around),
        "Commit": _join(_commit_text(record["environment"]) for record in sorted(found, key=itemgetter("started"))),
        "Records": f"{len(found):,}, of {len(cases):,} cases in {rounds} round{'s' * (rounds > 1)}",
    } | _stale_facts(files, found)


def _stale_facts(files: list[Path], found: list[dict]) -> dict[str, str]:
    """Count a machine's stale records, or reference records of older code, if any."""
    if stale := staleness.sentence([results.stale(file) for file in files]):
        return {"Stale": stale}
    kept = [record for file, record in zip(files, found, strict=True) if not file.is_relative_to(results.folder())]
    older = staleness.older(kept)
    said = f"{older:,} of {len(kept):,} records were measured by older code or another PyTorch"
    return {"Code": said} if older else {}


def _commit_text(environment: dict) -> str:
    return environment["commit"] + (" with changes" if environment["uncommitted"] else "")


def _join(values: Iterable[str]) -> str:
    """Join the different values in their order, or the first and the last of many."""
    seen = list(dict.fromkeys(filter(None, values)))
    return ", ".join(seen) if len(seen) <= MOST else f"{seen[0]} to {seen[-1]}, {len(seen)} in all"


def _date_range(days: Iterable[str]) -> str:
    """Format the first and the last day."""
    ends = [datetime.date.fromisoformat(day) for day in sorted(set(days))]
    return " to ".join(dict.fromkeys(f"{day.day} {day:%B %Y}" for day in ends[:1] + ends[-1:]))
