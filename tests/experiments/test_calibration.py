"""The checks of the measuring run and keep what they find."""

import functools

import pytest

from lib.experiments import calibration
from lib.instruments import environment
from lib.records import results
from lib.report import self_check


@pytest.fixture
def small(own_results, monkeypatch):
    monkeypatch.setattr(calibration, "PROCESSES", 2)
    monkeypatch.setitem(calibration.CHECKS, "programs", functools.partial(calibration.programs, count=3))
    monkeypatch.setattr(environment, "device", lambda: "cpu")


def test_every_check_has_its_findings():
    assert list(calibration.CHECKS) == list(self_check.FINDINGS)


def test_checks_become_records_and_rows_of_programs_one_a_process(small, capsys):
    assert calibration.main(["spin", "programs"]) == 0
    assert self_check.main([]) == 0
    records = results.load("calibration", environment.machine("cpu"))
    assert sorted(zip(records["check"], records["round"], strict=True)) == [
        ("programs", 1),
        ("programs", 2),
        ("spin", 1),
    ]
    table = self_check.table(records)
    assert sum(table["tried"].str.startswith("a wait of")) == 4
    assert list(table["holds"])[-2:] == ["not shown"] * 2  # too few
    assert table["tried"].iloc[-1].endswith("over 2 processes")
    assert "a wait of 10 ms" in capsys.readouterr().out


def test_what_lies_between_two_cases_is_measured_beside_its_probes(small):
    found = calibration.between("cpu")
    assert len(found["case_ms"]) == len(found["noise_probes_ms"]) == calibration.CASES - 1
    assert min(found["noise_probes_ms"]) > 0
    assert not results.machines() or "nothing" not in str(results.load("calibration", results.machines()[0])["check"])
