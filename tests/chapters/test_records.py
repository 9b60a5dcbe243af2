"""All records can be seen, linked to and downloaded whole."""

import base64
import io
import re

import pandas as pd
import pytest

from lib import paths
from lib.chapters import records as chapter
from lib.records import damaged, results
from lib.report import sentences


@pytest.fixture
def records(save_record):
    for round in (1, 2):
        save_record(case={"variant": "naive", "seq_len": 64}, round=round, total_ms=[1.25, 1.5], note="<b>")
    save_record(case={"variant": "tiled", "seq_len": 64}, status="timeout")
    return {"attention": results.load("attention", "test-1c")}


def files(page):
    """The downloads that a page holds, by name."""
    links = re.findall(r'<a download="([^"]+)" href="data:[^,]+;base64,([^"]+)"', page)
    return {name: io.BytesIO(base64.b64decode(content)) for name, content in links}


def test_downloads_hold_every_sample_of_every_record_and_are_the_same_for_the_same_records(records):
    page = chapter.downloads("test-1c", records).data
    assert page == chapter.downloads("test-1c", records).data
    found = files(page)
    assert list(found) == ["records-test-1c.csv.gz", "records-test-1c.parquet"]
    csv = pd.read_csv(found["records-test-1c.csv.gz"], compression="gzip")
    for table in (csv, pd.read_parquet(found["records-test-1c.parquet"])):
        times = table[table["metric"] == "total_ms"]
        assert list(times["value"]) == [1.25, 1.5] * 2
        assert list(times["round"]) == [1, 1, 2, 2]
        assert set(times["case"]) == {'{"variant": "naive", "seq_len": 64}'}
        assert "timeout" in set(table["status"])


def test_what_would_be_too_large_leaves_its_tables_out_and_says_so(save_record):
    save_record(total_ms=[1.0], timeline={"ms": [float(i + 1) ** 0.5 for i in range(3000)]})
    frames = {"attention": results.load("attention", "test-1c")}
    whole, part, nothing = (
        chapter.downloads("test-1c", frames, budget).data for budget in (chapter.BUDGET_BYTES, 20_000, 10)
    )
    assert "every sample" in whole
    assert chapter.MAIN in part
    assert set(pd.read_parquet(files(part)["records-test-1c.parquet"])["metric"]) == {"total_ms"}
    assert "too large for this page" in nothing


def test_every_record_has_a_row_that_evidence_links_to(records):
    page = chapter.listing(records).data
    ids = re.findall(r'<tr id="([^"]+)"', page)
    assert ids == [sentences.anchor(name) for name in sentences.names(records["attention"], {})]
    assert "record-attention-naive-64-r2" in ids


def test_a_record_leads_to_its_notebook_where_there_is_one(records, monkeypatch, tmp_path):
    frame = records["attention"]
    frame["environment"] = [{"run": "a-run"}] * len(frame)
    monkeypatch.setattr(paths, "runs", lambda: tmp_path)
    assert "runs/" not in chapter.listing(records).data
    (tmp_path / "test-1c").mkdir()
    (tmp_path / "test-1c" / "a-run.ipynb").touch()
    assert '<a href="runs/test-1c/a-run.ipynb">a-run</a>' in chapter.listing(records).data


def test_damaged_files_are_counted_by_place_and_reason(save_record, kept):
    for round in (1, 2, 3, 4):
        save_record(round=round, total_ms=[1.0])
    first, second, third, _ = results.files("test-1c")
    misplaced = kept / "test-9c" / "attention" / first.name
    misplaced.parent.mkdir(parents=True)
    misplaced.write_bytes(first.read_bytes())
    first.write_text("{")
    damaged.clean_store(alone=True)
    for file in (second, third):
        file.write_text("")
    said, table = chapter.damage()
    assert said.text.endswith("2 in the store, 1 kept in git, 1 set aside. They are left out.")
    assert table.frame.to_numpy().tolist() == [
        ["test-1c", "attention", "in the store", "JSON: the file is empty", 2],
        ["test-1c", "attention", "set aside", "JSON: cut short or malformed", 1],
        ["test-9c", "attention", "kept in git", "location: the file holds a record that belongs elsewhere", 1],
    ]
