"""The checks of the measuring run, keep what they find, and are judged by it."""

import numpy as np
import pytest

from lib.experiments import calibration, overheads
from lib.instruments import environment
from lib.records import results
from lib.report import self_check
from lib.stats.simulated_noise import normal


@pytest.fixture
def small(own_results, monkeypatch):
    monkeypatch.setattr(calibration, "COMPARISONS", 2)
    monkeypatch.setattr(environment, "device", lambda: "cpu")


def test_every_check_has_its_findings():
    assert list(calibration.CHECKS) == list(self_check.FINDINGS)


def test_checks_become_records_and_rows(small, capsys):
    assert calibration.main(["spin", "equal"]) == 0
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


def found(save_record, check, **metrics):
    save_record(
        experiment="calibration", case={"check": check, "device": "cpu"}, canary_ms=[1.0] * 20, **metrics
    )  # fmt: skip
    return self_check.table(results.load("calibration", "test-1c"))


def test_a_wait_that_is_measured_wrongly_does_not_hold(save_record):
    table = found(save_record, "spin", known_ms=[1.0, 10.0], median_ms=[1.004, 10.03])
    assert list(table["holds"]) == ["yes", "no"]  # 4 of 4.5 µs, 30 of 22.5 µs


@pytest.mark.parametrize(("factor", "said"), [(1.0, "yes"), (1.05, "no"), (1.02, "not shown")])
def test_another_timer_is_judged_by_the_interval(save_record, factor, said):
    ours, theirs = (normal(np.random.default_rng(seed), 30, 0.01).tolist() for seed in (1, 2))
    table = found(save_record, "timer", ours_ms=[factor * ms for ms in ours], timer_ms=theirs)
    assert list(table["holds"]) == [said]


def test_comparisons_beside_a_restless_canary_are_counted_apart(save_record):
    table = found(
        save_record, "planted", ratio=[1.05] * 100, pairs=[20.0] * 100, different=[1.0] * 80 + [0.0] * 20,
        beside_ms=[1.0] * 80 + [1.5] * 20, beside_percent=[1.0] * 100,
    )  # fmt: skip
    assert list(table["found"]) == ["80 of 80, so 95.5 to 100.0%", "80 of 100, so 70.8 to 87.3%"]
    assert list(table["holds"]) == ["yes", "no"]


def test_few_comparisons_show_nothing(save_record):
    table = found(
        save_record, "equal", ratio=[1.0] * 9, pairs=[20.0] * 9, different=[0.0] * 9, beside_ms=[1.0] * 9,
        beside_percent=[1.0] * 9,
    )  # fmt: skip
    assert list(table["holds"]) == ["not shown", "not shown"]


def test_overhead_and_repetition_are_judged(save_record):
    table = found(save_record, "overhead", marked_ms=[1.02] * 20, plain_ms=[1.0] * 20)
    assert list(table["holds"]) == ["no"]
    table = found(save_record, "repeated", product_gflops=[100.0, 103.0], copy_gbs=[50.0, 80.0])
    assert list(table["holds"])[-2:] == ["yes", "no"]


@pytest.mark.parametrize(("beyond_ms", "said"), [(1000.0, "yes"), (2000.0, "no"), (1500.0, "not shown")])
def test_the_start_of_a_kernel_is_judged_by_what_it_takes_beyond_torch(save_record, beyond_ms, said):
    spread = np.linspace(-90, 90, 8)
    table = found(save_record, "start", kernel_ms=list(2500 + beyond_ms + spread), torch_ms=[2500.0] * 8)
    assert list(table["holds"]) == [said]


def test_the_way_between_cases_and_a_rendering_are_judged(save_record):
    table = found(save_record, "between", case_ms=[61.0] * 20, canaries_ms=[1.0] * 20)
    assert list(table["holds"]) == ["no"]
    table = found(save_record, "page", render_ms=[39_000.0])
    assert list(table["holds"]) == ["no", "yes"]


def test_what_lies_between_two_cases_is_measured_beside_its_canaries(small):
    found = overheads.between("cpu")
    assert len(found["case_ms"]) == len(found["canaries_ms"]) == overheads.CASES - 1
    assert min(found["canaries_ms"]) > 0
    assert not results.machines() or "nothing" not in str(results.load("calibration", results.machines()[0])["check"])
