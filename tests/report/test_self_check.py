"""What the checks of the measuring found is judged by what must hold."""

import numpy as np
import pytest

from lib.records import results
from lib.report import self_check
from simulated_noise import normal

SPREAD_MS = np.linspace(-90, 90, 8)


def found(save_record, check, **metrics):
    save_record(
        experiment="calibration", case={"check": check, "device": "cpu"}, noise_probe_ms=[1.0] * 20, **metrics
    )  # fmt: skip
    return list(self_check.table(results.load("calibration", "test-1c"))["holds"])


def timer(factor):
    """Two timers, of which one says so many times what the other does."""
    ours, theirs = (normal(np.random.default_rng(seed), 30, 0.01).tolist() for seed in (1, 2))
    return {"ours_ms": [factor * ms for ms in ours], "timer_ms": theirs}


def start(beyond_ms):
    """The start of kernels that takes so much longer than loading torch."""
    return {"kernel_ms": list(2500 + beyond_ms + SPREAD_MS), "torch_ms": [2500.0] * 8}


@pytest.mark.parametrize(
    ("check", "metrics", "holds"),
    [
        ("spin", {"known_ms": [1.0, 10.0], "median_ms": [1.004, 10.03]}, ["yes", "no"]),  # 4 of 4.5 µs, 30 of 22.5
        ("timer", timer(1.0), ["yes"]), ("timer", timer(1.05), ["no"]), ("timer", timer(1.02), ["unclear"]),
        ("overhead", {"marked_ms": [1.02] * 20, "plain_ms": [1.0] * 20}, ["no"]),
        ("repeated", {"product_gflops": [100.0, 103.0], "copy_gbs": [50.0, 80.0]}, ["yes", "no"]),
        ("start", start(1000.0), ["yes"]), ("start", start(2000.0), ["no"]), ("start", start(1500.0), ["unclear"]),
        ("between", {"case_ms": [61.0] * 20, "noise_probes_ms": [1.0] * 20}, ["no"]),
    ],
)  # fmt: skip
def test_a_finding_is_judged_by_its_limits(save_record, check, metrics, holds):
    assert found(save_record, check, **metrics) == holds


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
        holds = found(save_record, "programs", round=round, **metrics)
    assert holds == said


def test_a_machine_without_checks_has_nothing_to_judge_and_an_unknown_one_is_refused(save_record, capsys):
    save_record(total_ms=[1.0])
    assert self_check.main([]) == 1
    assert self_check.main(["--machine", "test-1d"]) == 2
    assert "nearest: test-1c" in capsys.readouterr().err.splitlines()[-1]
