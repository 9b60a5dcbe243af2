"""Find this machine's stale records: those measured by other code or another PyTorch than today's.

Records kept in git are a snapshot that nobody here can measure again. They may be of older code, but are never stale.
"""

import functools
from collections import Counter
from collections.abc import Iterable, Mapping
from importlib import metadata

import pandas as pd

from lib.instruments import processor
from lib.records import code_digest

STALE = "stale"  # replaces the status of such a record in `results.load`
AGAIN = "make sweep SWEEP=… STALE=1"


def reason(record: Mapping) -> str:
    """Say why a record of this machine is stale; empty if it is not."""
    reasons = [] if _is_todays(record) else ["measured by other code"]
    own = processor.name()
    here = record["environment"].get("processor", own) == own  # results may be copied from another machine
    if here and (version := _other_torch(record)):
        reasons.append(f"measured with PyTorch {version}")
    return " and ".join(reasons)


def _is_todays(record: Mapping) -> bool:
    return record["code"] == code_digest.code(record["experiment"])


def _other_torch(record: Mapping) -> str:
    """Return the PyTorch version of a record if it differs from the installed one, else empty."""
    version = public(record["environment"].get("torch", ""))
    return version if version and installed() and version != installed() else ""


def public(version: str) -> str:
    """Strip the build from a version: 2.9.1+cpu becomes 2.9.1."""
    return version.partition("+")[0]


@functools.cache
def installed() -> str:
    """Return the installed PyTorch's version without its build; empty without one."""
    try:
        return public(metadata.version("torch"))
    except metadata.PackageNotFoundError:
        return ""


def latest(frame: pd.DataFrame, fields: list[str]) -> pd.Series:
    """Mark, for each case, the records of the code and PyTorch that measured it last.

    A version that is not stale wins over a later stale one. Versions are never mixed."""
    versions = frame["code"] + [f" {public(one.get('torch', ''))}" for one in frame["environment"]]
    order = frame.assign(version=versions, current=frame["stale"] == "").sort_values(["current", "started"])
    return versions == order.groupby(fields)["version"].transform("last").sort_index()


def left_out(*frames: pd.DataFrame) -> str:
    """Say how many records are left out as stale, why, and how to measure them again; empty if none."""
    return sentence([why for frame in frames if "stale" in frame for why in frame["stale"]])


def sentence(reasons: list[str]) -> str:
    """Write the sentence of `left_out` from one reason per record, empty for those that are not stale."""
    counts = Counter(filter(None, reasons))
    if not counts:
        return ""
    why = "; ".join(text for text, _ in counts.most_common())
    return f"{counts.total()} of {len(reasons)} records are stale ({why}) and left out; {AGAIN} measures them again."


def older(records: Iterable[Mapping]) -> int:
    """Count records of other code or another PyTorch than today's, wherever they are kept."""
    return sum(not _is_todays(record) or bool(_other_torch(record)) for record in records)
