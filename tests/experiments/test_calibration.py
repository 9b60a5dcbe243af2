"""The checks of the measuring run and keep what they find."""

import pytest

from lib.experiments import calibration
from lib.instruments import environment
from lib.records import results
from lib.report import self_check
from lib.stats import intervals


@pytest.fixture
def small(own_results, monkeypatch):
    monkeypatch.setattr(calibration, "SHORT_PROCESSES", 2)
    monkeypatch.setattr(calibration, "SHORT_COMPARISONS", 3)
    monkeypatch.setattr(calibration, "named", lambda: "cpu")


def test_checks_become_records_and_rows_and_the_short_form_measures_what_has_none_of_todays_code(
    small, monkeypatch, capsys
):
    monkeypatch.setattr(calibration, "SHORT", ("spin", "programs"))
    machine = environment.machine("cpu")
    assert calibration.main(["spin"]) == 0
    (spin,) = results.files(machine, "calibration")
    before = spin.read_bytes()
    capsys.readouterr()
    assert calibration.main(["--short"]) == 0
    assert [line.partition(":")[0] for line in capsys.readouterr().out.splitlines()] == ["programs"]
    assert spin.read_bytes() == before

    assert self_check.main([]) == 0
    assert "a wait of 10 ms" in capsys.readouterr().out
    records = results.load("calibration", machine)
    assert sorted(zip(records["check"], records["round"], strict=True)) == [
        ("programs", 1), ("programs", 2), ("spin", 1),
    ]  # fmt: skip
    table = self_check.table(records)
    assert sum(table["tried"].str.startswith("a wait of")) == 4
    assert list(table["holds"])[-2:] == ["unclear"] * 2  # too few
    assert table["tried"].iloc[-1].endswith("over 2 processes")

    monkeypatch.setattr(results, "stale", lambda _: "measured by other code")
    assert calibration.main(["--short", "spin"]) == 0
    assert spin.read_bytes() != before


def test_the_short_form_is_long_enough_to_be_judged_and_every_check_has_its_findings():
    assert calibration.SHORT_COMPARISONS >= self_check.FEWEST
    assert calibration.SHORT_PROCESSES >= intervals.ENOUGH_ROUNDS
    assert list(calibration.CHECKS) == list(self_check.FINDINGS)


def test_what_lies_between_two_cases_is_measured_beside_its_probes(small, monkeypatch):
    monkeypatch.setattr(calibration, "CASES", 4)
    found = calibration.between("cpu")
    assert len(found["case_ms"]) == len(found["noise_probes_ms"]) == calibration.CASES - 1
    assert min(found["noise_probes_ms"]) > 0
    assert not results.machines() or "nothing" not in str(results.load("calibration", results.machines()[0])["check"])
