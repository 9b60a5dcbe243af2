"""Each check of the measuring compares what it says: known waits, two timers, and programs that differ by a tenth."""

import pandas as pd
import pytest
import torch

from lib.experiments import calibration
from lib.experiments.calibration import Calibration
from lib.timing import nothing
from plain import measured


def test_no_wait_is_shorter_than_it_is_known_to_be():
    waits = pd.DataFrame(measured(Calibration("wait", 1, "cpu"), 0.02)["waits"])
    assert set(waits["known_ms"]) == set(calibration.WAITS_MS)
    assert (waits["measured_ms"] >= waits["known_ms"]).all()


@pytest.mark.parametrize("check", ["timer", "equal", "planted"])
def test_comparisons_are_pairs(check):
    metrics = measured(Calibration(check, 1, "cpu"), 0.02)
    assert len(metrics["paired_ms"]) == len(metrics["baseline_ms"]) >= 3


def test_the_planted_program_does_a_tenth_more():
    counts = []
    for program in calibration.programs("cpu", [calibration.PLANTED_CALLS, calibration.CALLS]):
        with torch.profiler.profile() as profile:
            program(nothing)
        counts += [event.count for event in profile.key_averages() if event.key == "aten::mm"]
    assert counts[0] / counts[1] == pytest.approx(1.1)


def test_there_is_one_wait_and_one_timer_a_process():
    assert Calibration("timer", 2, "cpu").unavailable() == "timer is checked once a process"
    assert Calibration("equal", 2, "cpu").unavailable() is None
