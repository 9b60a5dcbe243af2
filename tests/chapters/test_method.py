"""What was measured is counted, beside what the whole grid would be."""

import pytest

from lib import notebooks
from lib.chapters import method
from lib.experiments import cases
from lib.records import results
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
