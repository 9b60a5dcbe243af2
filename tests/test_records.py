"""Records are whole or absent, and a record of other code is stale."""

import json
import math
import os

import pytest

from by_hand import ADAM as CASE
from lib import records, validate, watched

AROUND = {"machine": "test-1c", "hardware": "a test"}


def test_a_name_shows_what_is_on(own_results):
    assert records.name(CASE | {"param_size": 16.0}) == "fused-equal-8-16-amsgrad-cpu"
    assert records.path("test-1c", "adam", CASE, 2).name == "fused-equal-8-16-amsgrad-cpu.r2.json"


def test_saving_and_loading_gives_what_was_saved(save_record):
    file = save_record("adam", CASE, total_ms=[1.0, 2.0], update_error=[1e-7])
    assert records.read(file)["metrics"] == {"total_ms": [1.0, 2.0], "update_error": [1e-7]}
    frame = records.load("adam", "test-1c")
    assert frame.loc[0, ["variant", "machine", "round", "status", "stale"]].tolist() == [
        "fused", "test-1c", 1, "ok", False,
    ]  # fmt: skip
    assert frame.loc[0, "total_ms"] == [1.0, 2.0]
    assert [name for name in frame if name in CASE] == list(CASE)


@pytest.mark.parametrize("value", [math.nan, math.inf, [1.0, -1.0]])
def test_no_record_has_nan_infinity_or_a_negative_time(own_results, value):
    with pytest.raises(ValueError, match=r"Out of range|negative|not JSON compliant"):
        records.create("adam", CASE, 1, "ok", {"total_ms": value}, AROUND)


DAMAGES = {
    "cut": lambda text: text[:-30],
    "changed": lambda text: text.replace("1.0", "1.1"),
    "empty": lambda text: "",
    "binary": lambda text: "\udcff",
    "no object": lambda text: "[]",
    "field": lambda text: text.replace("seconds", "secs"),
    "schema": lambda text: text.replace('"schema": 2', '"schema": 1'),
    "nested": lambda text: "[" * 100_000,
}


@pytest.mark.parametrize("damage", DAMAGES)
def test_a_damaged_file_is_skipped_with_a_warning(save_record, damage):
    save_record("adam", CASE, total_ms=[1.0])
    file = save_record("adam", CASE, round=2, total_ms=[1.0])
    file.write_text(DAMAGES[damage](file.read_text()), errors="surrogateescape")
    with pytest.warns(UserWarning, match=f"{file.name}: skipped: "):
        assert records.load("adam", "test-1c")["round"].tolist() == [1]


def test_a_full_disk_leaves_no_trace(save_record, monkeypatch):
    file = save_record("adam", CASE, total_ms=[1.0])
    before = file.read_text()

    def full(*_):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(records.CannotWrite, match="cannot be written: No space left on device"):
        save_record("adam", CASE, total_ms=[2.0])
    assert file.read_text() == before
    assert os.listdir(file.parent) == [file.name]


@pytest.fixture
def reference(save_record, tmp_path):
    """The file that git keeps of a machine, test-1c, with a record of Adam and a damaged line; nothing is measured."""
    file = save_record("adam", CASE, total_ms=[1.0])
    lines = tmp_path / "reference" / "test-1c" / "adam.jsonl"
    records.write(lines, json.dumps(json.loads(file.read_text())) + "\n{}\n")
    file.unlink()
    return lines


def test_records_in_git_are_read_line_by_line(reference):
    assert records.machines() == ["test-1c"]
    with pytest.warns(UserWarning, match=r"adam\.jsonl, line 2: skipped"):
        assert len(records.load("adam", "test-1c")) == 1


@pytest.mark.parametrize("round", [0, 1])
def test_records_in_git_never_stand_in_for_what_a_machine_has_not_measured_here(reference, save_record, round):
    step = dict.fromkeys(records.fields("step"), "any")
    save_record("step", step, round=round, total_ms=[1.0])
    assert not records.is_in_git("test-1c")
    assert list(records.of_machine("adam", "test-1c")) == []
    assert records.machines() == (["test-1c"] if round else [])
    assert len(list(records.of_machine("step", "test-1c"))) == round


def test_without_a_machine_those_of_git_are_told_by_name_only_where_nothing_was_measured(reference, save_record):
    with pytest.warns(UserWarning, match="nothing was measured here: these are records of test-1c, kept in git"):
        assert records.load("adam")["machine"].unique().tolist() == ["test-1c"]
    save_record("adam", CASE, machine="here-1c", total_ms=[1.0])
    assert records.load("adam")["machine"].unique().tolist() == ["here-1c"]
    assert records.machines() == ["here-1c", "test-1c"]


def test_the_machine_measured_last_is_told_and_others_follow_in_their_order(save_record):
    for moment, machine in enumerate(["late-1c", "early-1c"]):
        os.utime(save_record("adam", CASE, machine=machine, total_ms=[1.0]), (9 - moment, 9 - moment))
    assert records.machines() == ["late-1c", "early-1c"]
    assert records.load("adam")["machine"].tolist() == ["late-1c"]
    assert records.load("adam", ["early-1c", "late-1c"])["machine"].tolist() == ["early-1c", "late-1c"]
    with pytest.raises(ValueError, match=r"machine: got 'lat-1c', expected one of .*nearest: late-1c"):
        records.load("adam", "lat-1c")


def test_measured_by_hand_and_cases_with_other_axes_are_left_out(save_record):
    save_record("adam", CASE, round=0, total_ms=[1.0])
    save_record("adam", CASE, total_ms=[1.0])
    save_record("adam", {"variant": "fused"}, total_ms=[1.0])
    with pytest.warns(UserWarning, match="has other fields"):
        assert records.load("adam", "test-1c")["round"].tolist() == [1]


def test_without_any_records_a_notebook_shows_one_line(own_results):
    with pytest.raises(validate.BadInput, match="machine: nothing was measured on any, expected one"):
        records.load("adam")


def test_a_record_of_other_code_is_stale(save_record, monkeypatch):
    save_record("adam", CASE, total_ms=[1.0])
    assert records.load("adam", "test-1c")["stale"].tolist() == [False]
    monkeypatch.setattr(watched, "digest", lambda experiment: "0123456789abcdef")
    assert records.load("adam", "test-1c")["stale"].tolist() == [True]


def test_the_digest_covers_what_measures_and_nothing_that_only_shows():
    reached = watched.modules("adam")
    measured_by = ["experiments.adam", "experiments.measure", "adam", "timing", "instruments.device"]
    assert {f"lib.{name}" for name in measured_by} <= set(reached)
    assert not [name for name in reached if name.split(".")[1] in ("report", "sweep", "catalog", "records")]
    assert "lib.parallel.ranks" not in reached
    assert "lib.parallel.ranks" in watched.modules("collectives")


def test_comments_and_docstrings_do_not_change_the_digest():
    def plain(text):
        return watched._plain(watched.ast.parse(text))

    assert plain('"""Say."""\nx = 1  # one') == plain("x = 1")
    assert plain("x = 1") != plain("x = 2")
