"""What was measured is counted, beside what the whole grid would be."""

import pytest

from lib import notebooks
from lib.chapters import method
from lib.experiments import cases
from lib.records import damaged, results
from lib.sweep import sweep_file


def test_coverage_counts_how_cases_ended_and_how_many_of_the_whole_grid_were_tried(save_record):
    case = {
        "variant": "naive", "seq_len": 1024, "d_head": 64, "batch_size": 8, "causal": True, "precision": "fp32",
        "cold": False, "device": "cpu",
    }  # fmt: skip
    for seq_len, status in ((1024, "ok"), (16384, "timeout"), (77, "ok")):
        save_record(case=case | {"seq_len": seq_len}, status=status, **({"total_ms": [1.0]} if status == "ok" else {}))
    (row,) = method.coverage({"attention": results.load("attention", "test-1c")}).to_dict("records")
    assert (row["cases here"], row["measured"], row["took longer than its time limit"]) == (3, 2, 1)
    assert row["of them here"] == 2
    assert row["cases of the whole grid"] == len(method.whole_grid("attention"))


@pytest.mark.parametrize("experiment", cases.EXPERIMENTS)
def test_the_whole_grid_is_that_of_the_gpu_sweep(experiment):
    names = [name for name in notebooks.fields(experiment) if name != "device"]
    expected = {
        tuple(str(getattr(case, name)) for name in names)
        for kernel in sweep_file.load("gpu")
        for case in kernel.cases
        if case.experiment == experiment
    }
    assert method.whole_grid(experiment) == expected


def test_damaged_files_are_counted_by_place_and_reason(save_record, tmp_path, monkeypatch):
    monkeypatch.setattr(results, "REFERENCE", tmp_path / "reference")
    for round in (1, 2, 3, 4):
        save_record(round=round, total_ms=[1.0])
    first, second, third, _ = results.files("test-1c")
    kept = results.REFERENCE / "test-9c" / "attention" / first.name
    kept.parent.mkdir(parents=True)
    kept.write_bytes(first.read_bytes())
    first.write_text("{")
    damaged.tidy(alone=True)
    for file in (second, third):
        file.write_text("")
    said, table = method.damage()
    assert said.text.endswith("2 in the store, 1 kept in git, 1 set aside. They are left out.")
    assert table.frame.to_numpy().tolist() == [
        ["test-1c", "attention", "in the store", "JSON: the file is empty", 2],
        ["test-1c", "attention", "set aside", "JSON: cut short or malformed", 1],
        ["test-9c", "attention", "kept in git", "place: the record is another's", 1],
    ]
