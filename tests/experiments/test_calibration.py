"""The checks of the measuring run and keep what they find."""

import pytest

from lib.experiments import calibration
from lib.instruments import environment
from lib.records import results
from lib.report import self_check


@pytest.fixture
def small(own_results, monkeypatch):
    monkeypatch.setattr(calibration, "COMPARISONS", 2)
    monkeypatch.setattr(environment, "device", lambda: "cpu")


def test_every_check_has_its_findings():
    assert list(calibration.CHECKS) == list(self_check.FINDINGS)


def test_checks_become_records_and_rows(small, capsys):
    assert calibration.main(["spin", "equal"]) == 0
    assert self_check.main([]) == 0
    records = results.load("calibration", environment.machine("cpu"))
    assert sorted(records["check"]) == ["equal", "spin"]
    table = self_check.table(records)
    assert sum(table["tried"].str.startswith("a wait of")) == 4
    assert (
        table[table["tried"] == "a program called different from itself, in all"]["found"]
        .iloc[0]
        .startswith(("0 of 2", "1 of 2", "2 of 2"))
    )
    assert set(table["holds"]) <= {"yes", "no", "not shown"}
    assert "a wait of 10 ms" in capsys.readouterr().out


def test_what_lies_between_two_cases_is_measured_beside_its_probes(small):
    found = calibration.between("cpu")
    assert len(found["case_ms"]) == len(found["canaries_ms"]) == calibration.CASES - 1
    assert min(found["canaries_ms"]) > 0
    assert not results.machines() or "nothing" not in str(results.load("calibration", results.machines()[0])["check"])
