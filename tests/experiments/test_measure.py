"""Measuring gives a record whatever happens: right results with times, or the reason."""

import re
import subprocess
import sys
from dataclasses import asdict, dataclass, replace
from typing import ClassVar
from unittest.mock import Mock

import numpy as np
import pandas as pd
import pytest
import torch

from lib import records
from lib.experiments import attempt, cases, measure
from lib.experiments.adam import Adam
from lib.experiments.case import Recording, Work, errors
from lib.paths import ROOT
from lib.validate import BadInput

FUSED = Adam("fused", "equal", 2, 64, False, False, "cpu")
AXES = {"variant": ["single_tensor", "fused"], "shapes": "equal", "num_params": 2, "param_size": 64, "device": "cpu"}
NAMES = AXES | {"seconds": 0.02, "round": 0, "machine": ""}


@dataclass(frozen=True)
class Filling(Adam):
    """A case that allocates what no machine has, in its own part or in its reference."""

    experiment: ClassVar[str] = "adam"
    in_reference: ClassVar[bool] = False

    def setup(self) -> Work:
        def fill(*_):
            return torch.empty(2**50, dtype=torch.uint8)

        expected = fill if self.in_reference else dict
        return Work("cpu", fill, expected, dict, 1.0, {})


def test_a_record_has_times_memory_errors_pairs_and_probes(own_results):
    record = attempt.measure(FUSED, 1, 0.05)
    assert record["status"] == "ok"
    metrics = record["metrics"]
    assert metrics["moved_bytes"] == 28 * metrics["elements"] == 28 * 2 * 64
    assert len(metrics["paired_ms"]) == len(metrics["baseline_ms"]) >= 3
    assert metrics["update_error"][0] < 2e-3
    assert min(metrics["optimizer_ms"]) > 0
    assert metrics["peak_mib"][0] > 0
    assert len(metrics["noise_probe_ms"]) >= 6
    assert record["environment"]["torch"] == torch.__version__


def test_by_hand_the_grid_is_measured_and_the_records_returned(own_results, no_probe, capsys):
    # as a notebook has them, among other names; what it does not name has the case's default
    frame = measure.run("adam", NAMES | {"np": np, "In": [""], "_variant": 1, "total": "none"})
    assert frame["variant"].tolist() == ["single_tensor", "fused"]
    assert frame["amsgrad"].tolist() == [False, False]
    assert set(frame["round"]) == {0}
    assert "2 of 2 cases are measured" in capsys.readouterr().out
    # what is measured by hand is in no report, and is kept
    assert records.machines() == []
    assert records.load("adam", by_hand=True)["variant"].tolist() == ["fused", "single_tensor"]


def test_with_a_machine_nothing_is_measured(save_record, monkeypatch):
    save_record("adam", asdict(FUSED), total_ms=[1.0])
    monkeypatch.setattr(attempt, "measure", lambda *_: pytest.fail("measured"))
    for machine in ("test-1c", ("test-1c",)):
        assert measure.run("adam", {"machine": machine})["total_ms"].tolist() == [[1.0]]
    with pytest.raises(BadInput, match="machine: got 'nobody'"):
        measure.run("adam", {"machine": "nobody"})


BAD = [
    ({"varient": "fused"}, r"parameter: got 'varient', expected one of variant, .*\(nearest: variant\)"),
    ({"variant": "fuse"}, r"variant: got 'fuse', expected one of .*\(nearest: fused\)"),
    ({"num_params": "12"}, r"num_params: got '12' \(str\), expected int"),
    ({"num_params": []}, r"num_params: got \[\], expected at least one value"),
    ({"round": 1.5}, "round: got 1.5, expected 0 by hand"),
    ({"round": True}, "round: got True, expected 0 by hand"),
    ({"seconds": -1}, "seconds: got -1, expected a number"),
    ({"seconds": 0}, "seconds: got 0, expected a number"),
    ({"seconds": float("nan")}, "seconds: got nan, expected a number"),
    ({"machine": 3}, "machine: got 3, expected a name"),
    ({"skip": ["nobody"]}, "skip: got 'nobody', expected one of"),
    ({"skip": ["single_tensor-equal-2-64-cpu", "fused-equal-2-64-cpu"]}, "skip: got all 2 cases"),
]


@pytest.mark.parametrize(("names", "line"), BAD)
def test_a_bad_parameter_is_one_line_and_nothing_is_measured(own_results, monkeypatch, names, line):
    monkeypatch.setattr(attempt, "measure", lambda *_: pytest.fail("measured"))
    with pytest.raises(BadInput, match=line) as refused:
        measure.run("adam", NAMES | names)
    assert "\n" not in str(refused.value)


def test_where_nothing_can_be_measured_by_hand_it_says_why_in_one_line(own_results):
    with pytest.raises(BadInput, match=r"nothing can be measured here: naive-.* is left out: .*CUDA"):
        measure.run("attention", {"precision": "tf32", "device": "cpu"})


@pytest.mark.parametrize("values", [(2, 3), range(2, 4), np.array([2, 3]), [np.int64(2), np.int32(3)]])
def test_a_tuple_a_range_and_what_is_numpys_are_lists_and_numbers(own_results, monkeypatch, values):
    asked = []
    monkeypatch.setattr(attempt, "measure", lambda case, *_, **__: asked.append(case))
    monkeypatch.setattr(records, "save", lambda record: None)
    monkeypatch.setattr(records, "frame", lambda *_: None)
    measure.run("adam", NAMES | {"variant": "fused", "num_params": values, "round": np.int64(2)})
    assert asked == cases.order([replace(FUSED, num_params=2), replace(FUSED, num_params=3)], 2)


@pytest.fixture
def in_sweep(monkeypatch):
    """Be the process of a sweep's kernel, of two that divide the machine."""
    monkeypatch.setenv("KERNEL", "/tmp/kernel")
    monkeypatch.setenv("SLOTS", "2")


def test_a_sweep_measures_its_grid_less_skip_in_the_rounds_order(own_results, no_probe, in_sweep):
    names = NAMES | {"num_params": [1, 2, 3], "skip": ["fused-equal-2-64-cpu"], "round": 3}
    # what a reader has saved in the notebook
    frame = measure.run("adam", names | {"machine": "nobody", "varient": "fused"})
    wanted = cases.order(cases.grid("adam", **AXES | {"num_params": [1, 2, 3]}), 3)
    wanted.remove(FUSED)
    assert frame["round"].tolist() == [3] * 5
    assert frame[["variant", "num_params"]].equals(pd.DataFrame(wanted)[["variant", "num_params"]])
    assert len(records.load("adam")) == 5


@pytest.mark.parametrize(("status", "metrics", "device"), [("oom", {"fresh": False}, "cpu"), ("failed", {}, "cuda")])
def test_a_sweep_leaves_the_rest_to_a_new_process_after_what_may_have_spoiled_this_one(
    own_results, in_sweep, monkeypatch, status, metrics, device
):
    around = {"machine": "test-1c", "hardware": "a test"}
    case = asdict(FUSED) | {"device": device}
    record = records.create("adam", case, 1, status, {"reason": "a test", **metrics}, around)
    monkeypatch.setattr(attempt, "measure", lambda *_: record)
    assert measure.run("adam", NAMES | {"round": 1})["status"].tolist() == [status]
    assert records.is_final(record) == (status == "failed")


@pytest.mark.parametrize("place", ["by_hand", "in_sweep"])
def test_an_interrupt_keeps_what_is_done(own_results, no_probe, monkeypatch, request, place):
    if place == "in_sweep":
        request.getfixturevalue("in_sweep")
    first = attempt.measure(replace(FUSED, variant="single_tensor"), 1, 0.02)
    monkeypatch.setattr(attempt, "measure", Mock(side_effect=[first, KeyboardInterrupt]))
    assert measure.run("adam", NAMES | {"round": 1})["variant"].tolist() == ["single_tensor"]


@pytest.mark.parametrize("part", ["case", "reference"])
def test_what_ran_out_of_memory_is_in_the_record(own_results, no_probe, monkeypatch, part):
    monkeypatch.setattr(Filling, "in_reference", part == "reference")
    record = attempt.measure(Filling(*vars(FUSED).values()), 1, 0.01)
    assert record["status"] == "oom"
    assert record["metrics"]["ran_out"] == part
    assert record["metrics"]["limit_bytes"] > 0


def test_a_case_that_fits_and_one_that_does_not_have_the_same_statuses_in_both_orders(own_results, no_probe):
    # it takes some 150 MiB, of which the process keeps freed pages
    fits = replace(FUSED, param_size=2**22)
    does_not_fit = Filling(*vars(FUSED).values())
    cases_in_turn = [does_not_fit, fits, does_not_fit, fits, fits, does_not_fit, does_not_fit]
    statuses = [attempt.measure(case, 1, 0.01)["status"] for case in cases_in_turn]
    assert statuses == ["oom", "ok", "oom", "ok", "ok", "oom", "oom"]


def test_an_error_is_a_reason_in_a_sweep_and_an_error_by_hand(own_results, no_probe, monkeypatch):
    errors = Mock(side_effect=[OSError("cannot open /home/somebody/secret.txt"), SystemExit(0), OSError("cannot open")])
    monkeypatch.setattr(Adam, "measure", errors)
    for reason in ("OSError: cannot open secret.txt", "SystemExit: 0"):
        record = attempt.measure(FUSED, 1, 0.01)
        assert record["status"] == "failed"
        assert record["metrics"] == {"reason": reason}
    monkeypatch.setattr(attempt, "_measured_cases", 0)
    with pytest.raises(OSError, match="cannot open"):
        attempt.measure(FUSED, 0, 0.01, raises=True)
    assert attempt._measured_cases == 1


@pytest.mark.parametrize(
    ("message", "reason"),
    [
        ("open('/home/a person/b/c.txt')", "OSError: open('c.txt')"),
        ("g++ -I/home/me/include (/home/me/c.so)", "OSError: g++ -Iinclude (c.so)"),
        ("a/b from https://pytorch.org/x/y", "OSError: a/b from https://pytorch.org/x/y"),
    ],
)
def test_a_reason_has_no_folders(message, reason):
    assert attempt._reason(OSError(message)) == reason


def test_a_long_reason_keeps_its_end_without_pytorchs_advice():
    reason = attempt._reason(OSError(f"g++ {'x ' * 999}\nno -ltorch\n\nSet TORCHDYNAMO_VERBOSE=1 for more"))
    assert re.fullmatch(r"OSError: g\+\+ .+ no -ltorch", reason)
    assert len(reason) <= attempt.LONGEST_REASON


def test_a_wrong_result_is_found_before_anything_is_timed():
    right = torch.randn(100, 100)
    assert errors({"out": right}, {"out": right}, 1e-4) == {"out_error": [0.0]}
    with pytest.raises(Exception, match=r"out: got 1, expected at most 0\.0001"):
        errors({"out": 2 * right}, {"out": right}, 1e-4)
    with pytest.raises(Exception, match="out: got nan"):
        errors({"out": right * float("nan")}, {"out": right}, 1e-4)


def test_pairs_that_do_not_fit_leave_the_cases_own_times(own_results, no_probe, monkeypatch):
    def no_second(self, case=None):
        if case is not None:
            raise MemoryError
        return real(self)

    real = Recording.setup
    monkeypatch.setattr(Recording, "setup", no_second)
    record = attempt.measure(FUSED, 1, 0.01)
    assert record["status"] == "ok"
    assert record["metrics"]["pairs_ran_out"] is True
    assert "paired_ms" not in record["metrics"]


def test_later_rounds_shuffle_a_grid_always_in_the_same_way():
    grid = cases.grid("adam", num_params=list(range(1, 30)))
    assert cases.order(grid, 0) == cases.order(grid, 1) == grid
    second, third = cases.order(grid, 2), cases.order(grid, 3)
    assert second == cases.order(grid, 2) != third
    assert set(second) == set(third) == set(grid)


def test_grids_sweep_lists_and_take_defaults_for_the_rest():
    grid = cases.grid("adam", variant=["foreach", "fused"], num_params=1, param_size=[8, 16], device="cpu")
    assert [(case.variant, case.param_size) for case in grid] == [
        ("foreach", 8), ("foreach", 16), ("fused", 8), ("fused", 16),
    ]  # fmt: skip
    with pytest.raises(ValueError, match=r"axis: got 'varant', expected one of .*nearest: variant"):
        cases.grid("adam", varant="fused")
    with pytest.raises(ValueError, match=r"experiment: got 'adm', .*nearest: adam"):
        cases.grid("adm")


def test_loading_records_needs_no_torch():
    blocked = "import sys; sys.modules['torch'] = None; from lib.experiments import measure"
    load = "measure.run('adam', {'machine': measure.records.machines()[-1]})"
    subprocess.run([sys.executable, "-c", f"{blocked}; {load}"], cwd=ROOT, check=True)
