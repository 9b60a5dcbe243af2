"""The chapter on the training step sets each phase below the roof, and its predictions turn with the records."""

import pytest

from lib.chapters import step
from lib.records import results
from lib.report import tidy

MACHINE = "epyc-2c"
pytestmark = pytest.mark.usefixtures("own_results")  # so that it is what git keeps, whatever was measured here


def test_the_intensity_of_the_optimizer_is_its_flops_over_its_bytes():
    points = step.points(tidy.select(results.load("step", MACHINE), mode="train_step"))
    assert set(points.query("name == 'optimizer'")["intensity"]) == {14 / 28}


def test_without_records_there_is_no_point_and_no_number_for_a_claim():
    assert step.points(results.load("step", "no-machine")).empty
    assert step.backward_twice_forward({}) == []


def test_faster_records_turn_the_verdict():
    ceilings, steps = results.load("ceilings", MACHINE), results.load("step", MACHINE)
    fast = steps.assign(
        total_ms=steps["total_ms"].map(lambda ms: [x / 100 for x in ms] if isinstance(ms, list) else ms)
    )
    fast.attrs = steps.attrs
    before, after = (step.theory(records, ceilings)[2].verdict for records in (steps, fast))
    assert (before, after) == ("kept", "broken")
