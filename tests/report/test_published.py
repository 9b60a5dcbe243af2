"""The published tables are read as they are, and stand beside the cases that both have."""

import pandas as pd
import pytest

from lib.paths import PUBLISHED
from lib.report import published

TABLES = sorted(file.stem for file in PUBLISHED.glob("*.csv"))
SOURCES = set(pd.read_csv(PUBLISHED / "sources.csv")["source"])


@pytest.mark.parametrize("name", TABLES)
def test_a_table_is_that_of_its_file(name):
    pd.testing.assert_frame_equal(published.load(name), pd.read_csv(PUBLISHED / f"{name}.csv"))


def test_an_unknown_table_is_refused_in_one_line():
    with pytest.raises(ValueError, match=r"table: got 'adm', expected one of .* \(nearest: adam\)"):
        published.load("adm")


@pytest.mark.parametrize("name", [name for name in TABLES if name not in ("claims", "datasheets", "sources")])
def test_every_number_has_a_source_that_is_listed(name):
    assert set(published.load(name)["source"]) <= SOURCES


def test_there_are_22_claims_each_with_a_source_and_a_test():
    claims = published.claims()
    assert len(claims) == claims["id"].nunique() == 22
    assert claims[["source", "claim", "experiment", "how it can be tested"]].notna().all(axis=None)
    for source in claims["source"].str.split(" and ").explode():
        assert f"write-up {source}" in SOURCES


def test_our_cases_stand_beside_those_of_others():
    theirs = published.load("adam").rename(columns={"step_ms": "total_ms"})
    cases = theirs[["num_params", "param_size", "variant"]].drop_duplicates().head(2)
    own = cases.assign(total_ms=[0.5, 0.25], machine="test-1c")
    own.loc[len(theirs)] = [3, 7, "no such variant", 1.0, "test-1c"]
    both = published.beside(own, theirs, ["variant", "num_params", "param_size"], "total_ms")
    assert both["here"].tolist() == [0.5, 0.25]
    whose = [name for name in both if name.startswith("write-up")]
    assert len(whose) == 2
    for row in both.to_dict("records"):
        for name in whose:
            their = theirs[theirs["source"] == name.partition(",")[0]]
            for field in ("variant", "num_params", "param_size"):
                their = their[their[field] == row[field]]
            assert row[name] == their["total_ms"].iloc[0]


def test_the_hardware_of_each_source_is_told_apart_and_ours_without_a_time_is_left_out():
    theirs = pd.DataFrame(
        {"source": "write-up 1", "hardware": ["A", "B", None], "size": ["small", "small", "xl"], "ms": [1.0, 2.0, 3.0]}
    )
    own = pd.DataFrame({"size": ["small", "xl"], "ms": [5.0, None]})
    both = published.beside(own, theirs, ["size"], "ms")
    assert both["here"].tolist() == [5.0]
    assert both[["write-up 1, A", "write-up 1, B"]].iloc[0].tolist() == [1.0, 2.0]
    assert published.beside(own.iloc[1:], theirs, ["size"], "ms").empty
