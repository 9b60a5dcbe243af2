"""Sentences of the assignment's own sizes follow from the records, and compare only what ran alike."""

import re

import pandas as pd
import pytest

from lib.report import assignment, table

MACHINE = "xeon-2c-0e51"  # of the records kept in git


def row(way, wait_ms, total_ms):
    ends = {}
    for name, value in {"synchronization_ms": wait_ms, "total_ms": total_ms}.items():
        ends |= {f"{name}_low": 0.9 * value, f"{name}_high": 1.1 * value}
    return {"size": "tiny", "way": way} | ends


def test_small_buckets_are_said_to_gain_only_where_intervals_lie_apart():
    whole = row("flat", 20.0, 100.0)
    waits_less = pd.DataFrame([whole, row("bucketed, 1 MiB", 5.0, 95.0)])
    assert assignment.align_buckets(waits_less) == ["in tiny they wait less and do not step faster"]
    faster = pd.DataFrame([whole, row("bucketed, 1 MiB", 5.0, 80.0)])
    assert assignment.align_buckets(faster) == ["in tiny they wait less and step faster"]
    assert assignment.align_buckets(waits_less.head(1)) == []


def test_the_share_of_communication_is_the_wait_of_naive_over_its_step(reference):
    steps = table(reference["parallel"]).query("variant == 'naive' and size == 'tiny' and total_ms > 0")
    share = 100 * steps["synchronization_ms"].item() / steps["total_ms"].item()
    told = assignment.tell(MACHINE)
    assert told["naive"].startswith("Of the naive step communication takes in tiny ")
    assert int(re.search(r"in tiny [^;]*, (\d+)%", told["naive"])[1]) == pytest.approx(share, abs=0.51)


def test_without_records_only_formulas_are_told():
    assert set(assignment.tell("nobody-1c")) == {"peaks", "bf16"}
