"""The published tables are read as they are, and stand beside the cases that both have."""

import pandas as pd
import pytest

from lib.paths import PUBLISHED
from lib.report import published

TABLES = sorted(file.stem for file in PUBLISHED.glob("*.csv"))
SOURCES = set(pd.read_csv(PUBLISHED / "sources.csv")["source"])


@pytest.mark.parametrize("name", [name for name in TABLES if name not in ("claims", "datasheets", "sources")])
def test_every_number_has_a_source_that_is_listed(name):
    assert set(published.load(name)["source"]) <= SOURCES


def test_each_claim_has_a_source_and_a_test():
    claims = published.load("claims")
    assert claims["id"].is_unique
    assert claims[["source", "claim", "experiment", "how it can be tested"]].notna().all(axis=None)
    assert {f"write-up {source}" for source in claims["source"].str.split(" and ").explode()} <= SOURCES


def test_our_cases_stand_beside_those_of_each_source_and_hardware():
    theirs = pd.DataFrame(
        {"source": "write-up 1", "hardware": ["A", "B", None], "size": ["small", "small", "xl"], "ms": [1.0, 2.0, 3.0]}
    )
    own = pd.DataFrame({"size": ["small", "xl", "tiny"], "ms": [5.0, None, 1.0]})
    both = published.beside(own, theirs, ["size"], "ms")
    assert both["here"].tolist() == [5.0]
    assert both[["write-up 1, A", "write-up 1, B"]].iloc[0].tolist() == [1.0, 2.0]
    assert published.beside(own.iloc[1:], theirs, ["size"], "ms").empty
