"""Timing on a simulated clock: what is measured is what passed, phase by phase, and one rule says how long."""

import gc
import itertools
import statistics

import numpy as np
import pytest

from lib import timing
from lib.timing import compare, exactly, measure

pytestmark = pytest.mark.usefixtures("little_garbage")
SECOND = 1_000_000_000


def test_phases_are_recovered_also_where_a_device_works_later_and_what_runs_before_is_not_timed(simulated):
    iteration = simulated.phases(forward=(0, 7_000_000), backward=(5_000_000, 0))
    metrics = exactly(iteration, simulated.clock(), 4, lambda: simulated.queue(9_000_000)).metrics()
    assert metrics["forward_ms"] == [7.0] * 4
    assert metrics["backward_ms"] == [5.0] * 4
    assert metrics["total_ms"] == [12.0] * 4


def test_a_gpu_is_timed_by_events_and_waited_for_once_an_iteration(simulated):
    waits = []
    clock = simulated.event_clock()
    clock.synchronize = lambda: (waits.append(1), simulated.synchronize())
    iteration = simulated.phases(forward=(500_000, 7_000_000), backward=(0, 2_000_000))
    metrics = exactly(iteration, clock, 3).metrics()
    assert metrics["forward_ms"] == [7.5] * 3
    assert metrics["backward_ms"] == [2.0] * 3
    assert len(waits) == 2 * 3  # before an iteration, so that nothing older is in it, and after


@pytest.mark.parametrize(
    ("cost_s", "seconds", "least", "warmups", "samples"),
    [
        (10, 0.4, timing.LEAST, 1, timing.FEWEST),  # however long
        (0.9, 0.4, timing.LEAST, 1, 5),
        (1, 0.1, 10, 1, 10),  # as many as the assignment asks for
        (0.1, 0.45, timing.LEAST, 2, 5),  # a third of the time, then all of it
        (25e-6, 1000, timing.LEAST, 10, 10),  # equal times have a narrow interval at the first look
    ],
)
def test_one_rule_says_how_long(simulated, cost_s, seconds, least, warmups, samples):
    program = simulated.program(itertools.repeat(1), round(cost_s * SECOND))
    measured = measure(program, simulated.clock(), seconds, least=least)
    assert (measured.warmup, len(measured.total) - measured.warmup) == (warmups, samples)


def test_short_noisy_iterations_end_at_the_most(simulated):
    factors = np.random.default_rng(0).lognormal(sigma=1, size=10_000)
    measured = measure(simulated.program(factors, 25_000), simulated.clock(), 0.2)
    assert len(measured.total) - measured.warmup == timing.MOST


def test_short_kernels_run_in_batches_without_the_way_to_the_device(simulated):
    clock = simulated.event_clock()
    metrics = measure(simulated.phases(run=(1_000, 20_000)), clock, 0.2).metrics()
    assert metrics["calls_a_sample"] > 10
    assert statistics.median(metrics["total_ms"]) == pytest.approx(0.02, rel=0.1)


def test_phases_must_stay_the_same(simulated):
    names = iter(["run", "walk"])
    with pytest.raises(ValueError, match=r"phases: got \['walk'\], expected those of the first, \['run'\]"):
        exactly(lambda mark: (simulated.work(1), mark(next(names))), simulated.clock(), 2)
    with pytest.raises(ValueError, match="expected each phase to be marked once"):
        exactly(lambda mark: None, simulated.clock(), 1)


def test_pairs_cancel_a_drift_that_both_sides_share(simulated):
    drift = (1 + 0.01 * step for step in itertools.count())
    fast, slow = (simulated.program(drift, cost_ns) for cost_ns in (60_000_000, 120_000_000))
    pairs = compare(fast, slow, simulated.clock(), seconds=20)
    assert statistics.median(pairs.ratios) == pytest.approx(2, rel=0.02)


def test_pairs_follow_the_rule_and_each_side_goes_first_equally_often(simulated):
    order = []

    def program(name):
        def iteration(mark):
            order.append(name)
            simulated.work(SECOND)
            mark("run")

        return iteration

    pairs = compare(program("a"), program("b"), simulated.clock(), seconds=8)
    assert len(pairs.ratios) == 4
    counted = order[-8:]
    assert {first + second for first, second in zip(counted[::2], counted[1::2], strict=True)} == {"ab", "ba"}
    assert counted[::2].count("a") == 2


def test_phases_of_both_sides_are_paired(simulated):
    first = simulated.phases(forward=(0, 7_000_000), backward=(0, 2_000_000))
    second = simulated.phases(forward=(0, 14_000_000), backward=(0, 2_000_000))
    metrics = compare(first, second, simulated.clock(), seconds=0.1).metrics()
    assert set(metrics["paired_forward_ms"]) == {7.0}
    assert set(metrics["baseline_forward_ms"]) == {14.0}


def test_the_garbage_collector_is_off_while_timing_and_on_again_after_an_error(simulated):
    seen = []
    exactly(lambda mark: (seen.append(gc.isenabled()), simulated.work(1), mark("run")), simulated.clock(), 1)
    with pytest.raises(ZeroDivisionError):
        exactly(lambda mark: 1 / 0, simulated.clock(), 1)
    assert seen == [False]
    assert gc.isenabled()
