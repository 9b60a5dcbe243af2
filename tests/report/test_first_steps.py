"""The first steps of a process are described by plain means, deviations and ratios."""

import math
import statistics

import pytest

from lib.report.first_steps import describe


def test_a_long_first_step_lifts_the_mean_of_ten_and_is_gone_after_one_warm_up():
    numbers = describe([30.0] + [10.0] * 29)
    assert numbers["first_over_later"] == 3.0
    assert numbers["steady_step"] == 2.0
    assert (numbers["mean_0_ms"], numbers["mean_1_ms"]) == (12.0, 10.0)
    assert numbers["zero_over_five"] == pytest.approx(1.2)
    assert numbers["one_over_five"] == 1.0
    deviation = statistics.stdev([30.0] + [10.0] * 9)
    assert numbers["deviation_0_ms"] == pytest.approx(deviation)
    assert numbers["deviation_0_percent"] == pytest.approx(100 * deviation / 12)


def test_times_that_drift_are_never_level():
    assert math.isnan(describe([100.0 - 2 * step for step in range(30)])["steady_step"])
