"""A record is whole, true to its checksum, and on disk entirely or not at all."""

import math
import os

import pytest

from lib.records import results
from lib.records.record import FIELDS
from resealed import reseal


def test_a_record_comes_back_as_it_was_saved(save_record):
    metrics = {
        "forward_ms": [1.25, 1.5],
        "kernels": {"name": ["mm", "add"], "total_us": [2.5, 0.5]},
        "reasons": ["one", "two"],
        "dtype": "float32",
    }
    record = results.read(save_record(**metrics))
    assert record["metrics"] == metrics
    assert list(record) == list(FIELDS)
    assert results.load("attention", "test-1c")["kernels"].iloc[0] == metrics["kernels"]


@pytest.mark.parametrize(
    ("metrics", "rule"),
    [
        *(
            ({"forward_ms": [1.0, value]}, "finite|positive|JSON")
            for value in (math.nan, math.inf, 0.0, -1.0, "3", True)
        ),
        ({"kernels": {"name": ["mm"], "total_us": [1.0, 2.0]}}, "equal length"),
        ({"kernels": {"total_us": [math.inf]}}, "finite|JSON"),
        ({"kernels": {"total_us": ["1"]}}, "finite"),
        ({"kernels": {"wait_ms": [0.0]}}, "positive"),
        ({"kernels": {"name": [None]}}, "finite number or a text"),
    ],
)
def test_no_impossible_time_and_no_table_of_unequal_columns_is_written(save_record, own_results, metrics, rule):
    with pytest.raises(ValueError, match=rule):
        save_record(**metrics)
    assert not list(own_results.rglob("*"))


def test_the_status_of_a_record_is_known_for_longer_than_what_it_measured(save_record, monkeypatch):
    """A supervisor asks for the statuses of many more records than it could keep whole."""
    assert results._cached.cache_info().maxsize <= 10_000
    read, files = results.read, [save_record(round=round, forward_ms=[1.0]) for round in (1, 2)]
    found = []
    monkeypatch.setattr(results, "read", lambda file: found.append(file) or read(file))
    for file in files * 2:
        assert (results.status(file), results.stale(file)) == ("ok", "")
        results._cached.cache_clear()  # as when many others were read
    assert found == files
    assert results.cached(files[0])["metrics"] == {"forward_ms": [1.0]}


def test_different_cases_have_different_files(own_results):
    cases = [{"a": a, "compiled": c, "amsgrad": s} for a in ("x", "y") for c in (True, False) for s in (True, False)]
    assert len({results.path("m", "e", case, r) for case in cases for r in (1, 2)}) == 16


def test_loading_gives_a_row_a_record_with_the_fields_of_the_case(save_record):
    save_record(forward_ms=[1.0])
    save_record(round=2, forward_ms=[2.0])
    frame = results.load("attention", "test-1c")
    assert frame.fields == ["variant", "seq_len"]
    assert sorted(frame["round"]) == [1, 2]
    assert set(frame["hardware"]) == {"a test"}


def test_what_was_measured_by_hand_is_in_no_report(save_record):
    save_record(round=results.BY_HAND, forward_ms=[1.0])
    assert results.load("attention", "test-1c").empty
    assert len(results.load("attention", "test-1c", results.BY_HAND)) == 1


def test_records_of_two_machines_do_not_mix(save_record):
    save_record(forward_ms=[1.0])
    save_record(machine="other-9c", forward_ms=[9.0])
    assert list(results.load("attention", "other-9c")["forward_ms"]) == [[9.0]]


def test_an_experiment_without_records_still_knows_the_fields_of_its_case(own_results):
    frame = results.load("adam", "test-1c")
    assert frame.empty
    fields = ["variant", "shapes", "num_params", "param_size", "amsgrad", "cold", "device"]
    assert frame.fields == fields
    assert set(fields) <= set(frame)


def test_records_by_hand_do_not_hide_those_kept_in_git(save_record, keep):
    keep(save_record(forward_ms=[1.0]))
    save_record(round=results.BY_HAND, forward_ms=[9.0])
    assert list(results.load("attention", "test-1c")["forward_ms"]) == [[1.0]]
    assert results.machines() == ["test-1c"]


def test_a_machines_own_records_are_not_completed_with_those_kept_in_git(save_record, keep):
    keep(save_record(experiment="adam", total_ms=[1.0]))
    save_record(experiment="attention", total_ms=[2.0])
    assert results.load("adam", "test-1c").empty
    assert not results.load("attention", "test-1c").empty


def test_the_machine_measured_last_comes_first(save_record):
    old, new = (save_record(machine=name, forward_ms=[1.0]) for name in ("a-1c", "b-1c"))
    os.utime(old, (1, 1))
    assert results.machines()[:2] == ["b-1c", "a-1c"]
    os.utime(new, (0, 0))
    assert results.machines()[:2] == ["a-1c", "b-1c"]


def test_records_whose_cases_have_other_fields_than_newer_ones_are_left_out_with_a_warning(save_record):
    save_record(case={"variant": "naive", "seq_len": 64}, total_ms=[1.0])
    old = save_record(case={"variant": "naive"}, total_ms=[2.0])
    reseal(old, started="2025-01-01T00:00:00+00:00")
    with pytest.warns(UserWarning, match="other fields"):
        frame = results.load("attention", "test-1c")
    assert list(frame["seq_len"]) == [64]


def test_a_switch_that_came_after_a_record_is_off_in_it(save_record):
    old = {"variant": "sdpa", "seq_len": 64, "d_head": 64, "batch_size": 8, "causal": True, "precision": "bf16"}
    save_record(case=old | {"cold": False, "device": "cpu"}, total_ms=[1.0])
    assert results.load("attention", "test-1c")["native"].tolist() == [False]
    new = old | {"native": True, "cold": False, "device": "cpu"}
    save_record(case=new, total_ms=[2.0], started="2026-02-01T00:00:00+00:00")
    frame = results.load("attention", "test-1c")
    assert frame.fields == list(new)
    assert sorted(frame["native"]) == [False, True]
