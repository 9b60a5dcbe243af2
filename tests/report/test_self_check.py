"""What the checks of the measuring found is judged by what must hold."""

import numpy as np
import pytest

from lib.records import results
from lib.report import self_check
from lib.stats.simulated_noise import normal


def found(save_record, check, **metrics):
    save_record(
        experiment="calibration", case={"check": check, "device": "cpu"}, noise_probe_ms=[1.0] * 20, **metrics
    )  # fmt: skip
    return self_check.table(results.load("calibration", "test-1c"))


def test_a_wait_that_is_measured_wrongly_does_not_hold(save_record):
    table = found(save_record, "spin", known_ms=[1.0, 10.0], median_ms=[1.004, 10.03])
    assert list(table["holds"]) == ["yes", "no"]  # 4 of 4.5 µs, 30 of 22.5 µs


@pytest.mark.parametrize(("factor", "said"), [(1.0, "yes"), (1.05, "no"), (1.02, "unclear")])
def test_another_timer_is_judged_by_the_interval(save_record, factor, said):
    ours, theirs = (normal(np.random.default_rng(seed), 30, 0.01).tolist() for seed in (1, 2))
    table = found(save_record, "timer", ours_ms=[factor * ms for ms in ours], timer_ms=theirs)
    assert list(table["holds"]) == [said]


@pytest.mark.parametrize(
    ("processes", "effect", "said"), [(5, 1.1, ["yes", "yes"]), (5, 1.001, ["yes", "no"]), (2, 1.1, ["unclear"] * 2)]
)
def test_programs_are_judged_as_tables_over_all_processes(save_record, processes, effect, said):
    random = np.random.default_rng(3)
    for round in range(1, processes + 1):
        metrics = {}
        for kind, log in (("equal", 0.0), ("planted", np.log(effect))):
            metrics[f"{kind}_log"] = (log + 0.015 * random.standard_normal(100)).tolist()
            metrics |= {f"{kind}_log_error": [0.01] * 100, f"{kind}_pairs": [10] * 100, f"{kind}_ms": [0.6] * 100}
        table = found(save_record, "programs", round=round, **metrics)
    assert list(table["holds"]) == said


def test_overhead_and_repetition_are_judged(save_record):
    table = found(save_record, "overhead", marked_ms=[1.02] * 20, plain_ms=[1.0] * 20)
    assert list(table["holds"]) == ["no"]
    table = found(save_record, "repeated", product_gflops=[100.0, 103.0], copy_gbs=[50.0, 80.0])
    assert list(table["holds"])[-2:] == ["yes", "no"]


@pytest.mark.parametrize(("beyond_ms", "said"), [(1000.0, "yes"), (2000.0, "no"), (1500.0, "unclear")])
def test_the_start_of_a_kernel_is_judged_by_what_it_takes_beyond_torch(save_record, beyond_ms, said):
    spread = np.linspace(-90, 90, 8)
    table = found(save_record, "start", kernel_ms=list(2500 + beyond_ms + spread), torch_ms=[2500.0] * 8)
    assert list(table["holds"]) == [said]


def test_the_way_between_cases_is_judged(save_record):
    table = found(save_record, "between", case_ms=[61.0] * 20, noise_probes_ms=[1.0] * 20)
    assert list(table["holds"]) == ["no"]


def test_a_machine_without_checks_has_nothing_to_judge_and_an_unknown_one_is_refused(save_record, capsys):
    save_record(total_ms=[1.0])
    assert self_check.main([]) == 1
    assert self_check.main(["--machine", "test-1d"]) == 2
    assert "nearest: test-1c" in capsys.readouterr().err.splitlines()[-1]
