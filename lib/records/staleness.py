"""Says which of this machine's own records are stale, and what that means for a table of them.

A record is stale when other code than today's measured it, or another version of PyTorch than the installed one. What
git keeps is a snapshot of its commit, which nobody here can measure again: it may be of older code, and is not stale.
"""

import functools
from collections import Counter
from collections.abc import Iterable, Mapping
from importlib import metadata

import pandas as pd

from lib.instruments import processor
from lib.records import code_digest

STALE = "stale"  # the status that `results.load` gives such a record in place of its own
AGAIN = "make sweep STALE=1"


def reason(record: Mapping) -> str:
    """Why a record of this machine's own is stale, in words; nothing where it is not."""
    found = [] if _is_todays(record) else ["measured by other code"]
    own = processor.name()
    here = record["environment"].get("processor", own) == own  # results may be copied from another machine
    if here and (version := _other_torch(record)):
        found.append(f"measured with PyTorch {version}")
    return " and ".join(found)


def _is_todays(record: Mapping) -> bool:
    return record["code"] == code_digest.code(record["experiment"])


def _other_torch(record: Mapping) -> str:
    """Return the version of PyTorch that measured a record, if it is known to be another than the installed one."""
    version = public(record["environment"].get("torch", ""))
    return version if version and installed() and version != installed() else ""


def public(version: str) -> str:
    """A version without what it was built for: 2.9.1 of 2.9.1+cpu."""
    return version.partition("+")[0]


@functools.cache
def installed() -> str:
    """The public version of PyTorch that is installed; nothing where none is."""
    try:
        return public(metadata.version("torch"))
    except metadata.PackageNotFoundError:
        return ""


def latest(frame: pd.DataFrame, fields: list[str]) -> pd.Series:
    """Which records are of the code and PyTorch that measured their case last, those that are not stale before all
    others: records of different versions are no samples of the same thing."""
    versions = frame["code"] + [f" {public(found.get('torch', ''))}" for found in frame["environment"]]
    order = frame.assign(version=versions, current=frame["stale"] == "").sort_values(["current", "started"])
    return versions == order.groupby(fields)["version"].transform("last").sort_index()


def left_out(*frames: pd.DataFrame) -> str:
    """How many of these records are left out as stale, why, and what measures them again, in a sentence; nothing where
    none is."""
    return told([why for frame in frames if "stale" in frame for why in frame["stale"]])


def told(reasons: list[str]) -> str:
    """`left_out` of so many records by the reason of each, which is empty where it is not stale."""
    why = Counter(filter(None, reasons))
    if not why:
        return ""
    said = "; ".join(text for text, _ in why.most_common())
    return f"{why.total()} of {len(reasons)} records are stale ({said}) and left out; {AGAIN} measures them again."


def older(records: Iterable[Mapping]) -> int:
    """Count the records, kept in git, of another code than today's or another PyTorch than the installed one."""
    return sum(not _is_todays(record) or bool(_other_torch(record)) for record in records)
