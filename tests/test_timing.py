"""Timing on a simulated clock: what is measured is what passed, phase by phase."""

import gc

import pytest

from lib.timing import HostClock, measure


class Simulated:
    """A clock that stands still unless work passes."""

    def __init__(self):
        self.ns, self.waited = 0, 0

    def now(self):
        return self.ns

    def synchronize(self):
        self.ns += self.waited
        self.waited = 0

    def work(self, ns):
        self.ns += ns

    def queue(self, ns):
        """Work that a device does later, and that only waiting for it makes pass."""
        self.waited += ns

    def clock(self):
        return HostClock(self.now, self.synchronize)


@pytest.fixture
def simulated():
    return Simulated()


def test_phases_are_recovered_and_add_up(simulated):
    def iteration(mark):
        simulated.work(3_000_000)
        mark("forward")
        simulated.work(5_000_000)
        mark("backward")

    metrics = measure(iteration, simulated.clock(), warmup=0, samples=4).metrics()
    assert metrics["forward_ms"] == [3.0] * 4
    assert metrics["backward_ms"] == [5.0] * 4
    assert metrics["total_ms"] == metrics["wall_ms"] == [8.0] * 4


def test_work_that_a_device_does_later_counts_in_the_phase_that_gave_it(simulated):
    def iteration(mark):
        simulated.queue(7_000_000)
        mark("forward")
        simulated.work(1_000_000)
        mark("backward")

    metrics = measure(iteration, simulated.clock(), warmup=0, samples=1).metrics()
    assert (metrics["forward_ms"], metrics["backward_ms"]) == ([7.0], [1.0])


def test_what_runs_before_an_iteration_is_not_timed(simulated):
    def iteration(mark):
        simulated.work(2_000_000)
        mark("run")

    metrics = measure(iteration, simulated.clock(), 0, 3, before=lambda: simulated.queue(9_000_000)).metrics()
    assert metrics["total_ms"] == [2.0] * 3


def test_every_sample_is_kept_in_order_and_warm_ups_apart(simulated):
    durations = iter([90, 50, 10, 11, 500])

    def iteration(mark):
        simulated.work(next(durations) * 1_000_000)
        mark("run")

    metrics = measure(iteration, simulated.clock(), warmup=2, samples=3).metrics()
    assert metrics["warmup_ms"] == [90.0, 50.0]
    assert metrics["run_ms"] == [10.0, 11.0, 500.0]


def test_the_garbage_collector_is_off_meanwhile_and_restored(simulated):
    seen = []
    measure(lambda mark: (seen.append(gc.isenabled()), mark("run")), simulated.clock(), 1, 1)
    assert seen == [False, False]
    assert gc.isenabled()


def test_the_garbage_collector_is_restored_after_an_error(simulated):
    with pytest.raises(ZeroDivisionError):
        measure(lambda mark: 1 / 0, simulated.clock(), 0, 1)
    assert gc.isenabled()


@pytest.mark.parametrize("names", [[], ["run", "run"]])
def test_phases_without_a_name_of_their_own_are_refused(simulated, names):
    with pytest.raises(ValueError, match="phases"):
        measure(lambda mark: [mark(name) for name in names], simulated.clock(), 0, 1)


def test_iterations_with_different_phases_are_refused(simulated):
    names = iter(["forward", "backward"])
    with pytest.raises(ValueError, match="differ from the first"):
        measure(lambda mark: mark(next(names)), simulated.clock(), 0, 2)
