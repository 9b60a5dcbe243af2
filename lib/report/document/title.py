"""Collect the title page's facts: which machine was measured, when and with what."""

import datetime
import re
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
        **_processor_facts(around),
        "Measured": _date_range(record["started"][:10] for record in found),
        "PyTorch": _join(each["torch"] for each in around),
        "Python": _join(each.get("python", "") for each in around),
        "Commit": _join(_commit_text(record["environment"]) for record in sorted(found, key=itemgetter("started"))),
        "Records": f"{len(found):,}, of {len(cases):,} cases in {rounds} round{'s' * (rounds > 1)}",
    } | _stale_facts(files, found)


def _processor_facts(around: list[dict]) -> dict[str, str]:
    """Return instruction sets, last cache and memory, if the records have them."""
    known = [each for each in around if each.get("instruction_sets")]
    return {"Processor": _join(map(_processor_text, known))} if known else {}


def _processor_text(environment: dict) -> str:
    """Describe a processor and its memory: AVX-512, AMX · L3 32 MiB · 23.5 GiB."""
    caches = sorted(name for name in environment if re.fullmatch(r"l\d_mib", name))
    last = [f"{name[:2].upper()} {environment[name]:g} MiB" for name in caches[-1:]]
    return " · ".join(
        [", ".join(environment["instruction_sets"]), *last, f"{environment['memory_mib'] / 1024:.1f} GiB"]
    )


def _stale_facts(files: list[Path], found: list[dict]) -> dict[str, str]:
    """Count a machine's stale records, or reference records of older code, if any."""
    if stale := staleness.sentence([results.stale(file) for file in files]):
        return {"Stale": stale}
    kept = [record for file, record in zip(files, found, strict=True) if not file.is_relative_to(results.folder())]
    older = staleness.older(kept)
    said = f"Older code or another PyTorch measured {older:,} of {len(kept):,} records"
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
