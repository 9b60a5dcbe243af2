"""Measuring gives a record whatever happens: right results with times, or the reason."""

import json
from dataclasses import asdict, dataclass, replace
from typing import ClassVar
from unittest.mock import Mock

import pytest
import torch

from lib import records
from lib.experiments import cases, measure
from lib.experiments.adam import Adam
from lib.experiments.case import Recording, Work, errors

FUSED = Adam("fused", "equal", 2, 64, True, False, "cpu")
AXES = {"variant": ["single_tensor", "fused"], "shapes": "equal", "num_params": 2, "param_size": 64, "device": "cpu"}


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
    record = measure.measure(FUSED, 1, 0.05)
    assert record["status"] == "ok"
    metrics = record["metrics"]
    assert metrics["moved_bytes"] == 36 * metrics["elements"] == 36 * 2 * 64
    assert len(metrics["paired_ms"]) == len(metrics["baseline_ms"]) >= 3
    assert metrics["update_error"][0] < 2e-3
    assert min(metrics["optimizer_ms"]) > 0
    assert metrics["peak_mib"][0] > 0
    assert len(metrics["noise_probe_ms"]) >= 6
    assert record["environment"]["torch"] == torch.__version__


def test_by_hand_the_grid_is_measured_and_the_records_returned(own_results, no_probe, capsys):
    frame = measure.run("adam", AXES | {"amsgrad": True, "cold": False}, 0.02)
    assert frame["variant"].tolist() == ["single_tensor", "fused"]
    assert set(frame["round"]) == {0}
    assert "2 of 2 cases are measured" in capsys.readouterr().out
    assert records.machines() == []  # what is measured by hand is in no report


def test_an_interrupt_keeps_what_is_done(own_results, no_probe, monkeypatch):
    first = measure.measure(replace(FUSED, variant="single_tensor"), 0, 0.02)
    monkeypatch.setattr(measure, "measure", Mock(side_effect=[first, KeyboardInterrupt]))
    frame = measure.run("adam", AXES | {"amsgrad": True, "cold": False}, 0.02)
    assert frame["variant"].tolist() == ["single_tensor"]


def test_with_a_machine_nothing_is_measured(save_record, monkeypatch):
    save_record("adam", asdict(FUSED), total_ms=[1.0])
    monkeypatch.setattr(measure, "measure", lambda *_: pytest.fail("measured"))
    assert measure.run("adam", {}, 0.02, machine="test-1c")["total_ms"].tolist() == [[1.0]]
    with pytest.raises(ValueError, match="machine: got 'nobody'"):
        measure.run("adam", {}, 0.02, machine="nobody")


def test_a_plan_says_which_cases_and_notes_how_far_it_is(own_results, no_probe, monkeypatch, tmp_path):
    plan = {"cases": [{"case": asdict(FUSED), "seconds": 0.01}], "round": 3, "slots": 1, "deadline": float("inf")}
    file = tmp_path / "plan.json"
    file.write_text(json.dumps(plan))
    monkeypatch.setenv("SWEEP_PLAN", str(file))
    frame = measure.run("adam", {}, 1.0)
    assert frame["round"].tolist() == [3]
    assert records.load("adam")["variant"].tolist() == ["fused"]
    assert json.loads((tmp_path / "note.json").read_text()) == {"begun": 1, "saved": 1}
    file.write_text(json.dumps(plan | {"deadline": 1.0}))
    assert measure.run("adam", {}, 1.0).empty
    # what found no memory in a used process is left to a new one
    file.write_text(json.dumps(plan | {"cases": plan["cases"] * 2}))
    monkeypatch.setattr(measure, "measure", lambda *_: {"status": "oom", "metrics": {"fresh": False}})
    assert measure.run("adam", {}, 1.0).empty
    assert json.loads((tmp_path / "note.json").read_text()) == {"begun": 0, "saved": 0}


@pytest.mark.parametrize("part", ["case", "reference"])
def test_what_ran_out_of_memory_is_in_the_record(own_results, no_probe, monkeypatch, part):
    monkeypatch.setattr(Filling, "in_reference", part == "reference")
    record = measure.measure(Filling(*vars(FUSED).values()), 1, 0.01)
    assert record["status"] == "oom"
    assert record["metrics"]["ran_out"] == part
    assert record["metrics"]["limit_bytes"] > 0


def test_a_case_that_fits_and_one_that_does_not_have_the_same_statuses_in_both_orders(own_results, no_probe):
    # it takes some 300 MiB, of which the process keeps freed pages
    fits = replace(FUSED, param_size=2**23)
    does_not_fit = Filling(*vars(FUSED).values())
    cases_in_turn = [does_not_fit, fits, does_not_fit, fits, fits, does_not_fit, does_not_fit]
    statuses = [measure.measure(case, 1, 0.01)["status"] for case in cases_in_turn]
    assert statuses == ["oom", "ok", "oom", "ok", "ok", "oom", "oom"]


def test_an_error_is_a_reason_in_a_sweep_and_an_error_by_hand(own_results, no_probe, monkeypatch):
    def wrong(self, record, seconds):
        raise OSError("cannot open /home/somebody/secret.txt")

    monkeypatch.setattr(Adam, "measure", wrong)
    record = measure.measure(FUSED, 1, 0.01)
    assert record["status"] == "failed"
    assert record["metrics"] == {"reason": "OSError: cannot open secret.txt"}
    monkeypatch.setattr(measure, "_measured_cases", 0)
    with pytest.raises(OSError, match="cannot open"):
        measure.measure(FUSED, 0, 0.01, raises=True)
    assert measure._measured_cases == 1


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
    record = measure.measure(FUSED, 1, 0.01)
    assert record["status"] == "ok"
    assert record["metrics"]["pairs_ran_out"] is True
    assert "paired_ms" not in record["metrics"]


def test_grids_sweep_lists_and_take_defaults_for_the_rest():
    grid = cases.grid("adam", variant=["foreach", "fused"], num_params=1, param_size=[8, 16], device="cpu")
    assert [(case.variant, case.param_size) for case in grid] == [
        ("foreach", 8), ("foreach", 16), ("fused", 8), ("fused", 16),
    ]  # fmt: skip
    with pytest.raises(ValueError, match=r"axis: got 'varant', expected one of .*nearest: variant"):
        cases.grid("adam", varant="fused")
    with pytest.raises(ValueError, match=r"experiment: got 'adm', .*nearest: adam"):
        cases.grid("adm")
