"""Timing on a simulated clock: what is measured is what passed, phase by phase, and pairs tell what differs."""

import gc
import itertools
import statistics
from dataclasses import replace

import numpy as np
import pytest

import simulated_noise
from lib import timing
from lib.stats import comparisons, intervals
from lib.timing import Plan, compare, measure
from simulated import Simulated

pytestmark = pytest.mark.usefixtures("little_garbage")


def test_phases_are_recovered_also_where_a_device_works_later_and_what_runs_before_is_not_timed(simulated):
    iteration = simulated.phases(forward=(0, 7_000_000), backward=(5_000_000, 0))
    metrics = measure(iteration, simulated.clock(), Plan(0, 4), lambda: simulated.queue(9_000_000)).metrics()
    assert metrics["forward_ms"] == [7.0] * 4
    assert metrics["backward_ms"] == [5.0] * 4
    assert metrics["total_ms"] == metrics["wall_ms"] == [12.0] * 4


def test_under_noise_phases_still_add_up_and_are_never_negative(simulated):
    factors = iter(simulated_noise.spiky(np.random.default_rng(1), 4000, 0.3).clip(min=0.1))

    def iteration(mark):
        simulated.work(round(5_000_000 * next(factors)))
        mark("forward")
        simulated.work(round(100_000 * next(factors)))
        mark("backward")

    metrics = measure(iteration, simulated.clock(), Plan(0, 400)).metrics()
    assert min(metrics["backward_ms"]) > 0
    sums = [a + b for a, b in zip(metrics["forward_ms"], metrics["backward_ms"], strict=True)]
    assert metrics["wall_ms"] == pytest.approx(sums, rel=1e-12)
    assert statistics.median(metrics["backward_ms"]) == pytest.approx(0.1, rel=0.1)


def test_a_gpu_is_timed_by_events_and_waited_for_once_an_iteration(simulated):
    waits, clock = [], simulated.event_clock()
    clock.synchronize = lambda: (waits.append(1), simulated.synchronize())
    iteration = simulated.phases(forward=(500_000, 7_000_000), backward=(0, 2_000_000))
    metrics = measure(iteration, clock, Plan(0, 3)).metrics()
    assert metrics["forward_ms"] == [7.5] * 3
    assert metrics["backward_ms"] == [2.0] * 3
    assert metrics["wall_ms"] == [9.5] * 3
    assert metrics["host_ms"] == [0.5] * 3
    assert len(waits) == 2 * 3  # before an iteration, so that nothing older is in it, and after


DEVICE_S = (0.2, 0.1)


@pytest.mark.parametrize("before", [timing.nothing, lambda: None])
def test_a_short_kernel_is_measured_once_the_devices_clock_has_risen(simulated, before):
    simulated.rising_ns = 200_000_000
    plan = Plan(5, 10, target=1, seconds=0.01)
    counted = measure(simulated.kernel(30_000), simulated.event_clock(), plan, before).metrics()
    assert min(counted["total_ms"]) > 0.06  # the control: warm-up and samples by count are over within 2 ms

    simulated.worked_ns = 0
    began_ns = simulated.ns
    metrics = measure(
        simulated.kernel(30_000), simulated.event_clock(), replace(plan, least_s=DEVICE_S), before
    ).metrics()
    assert metrics["total_ms"] == pytest.approx([0.03] * len(metrics["total_ms"]))
    assert 0.29e9 < simulated.ns - began_ns < 0.31e9


def test_a_least_time_alone_asks_for_some_thousands_of_samples_at_most(simulated):
    found = measure(simulated.kernel(100), simulated.event_clock(), Plan(0, 1, least_s=DEVICE_S), lambda: None)
    assert (found.warmup, len(found.total)) == (timing.MOST, 2 * timing.MOST)


def test_short_kernels_are_timed_in_batches_without_the_way_to_the_device(simulated):
    clock, plan = simulated.event_clock(), Plan(0, 10, least_s=DEVICE_S)
    iteration = simulated.kernel(20_000, launch_ns=6_000)
    single = measure(iteration, clock, plan, before=lambda: None).metrics()
    assert single["total_ms"] == pytest.approx([0.026] * len(single["total_ms"]))
    assert "calls_a_sample" not in single

    batched = measure(iteration, clock, plan).metrics()
    calls = batched["calls_a_sample"]
    assert calls == pytest.approx(timing.BATCH * timing.SHORT_NS / 26_000, abs=1)
    for name, ms in (("total_ms", 0.02 + 0.006 / calls), ("wall_ms", 0.02 + 0.006 / calls), ("host_ms", 0.006)):
        assert batched[name] == pytest.approx([ms] * len(batched[name]))
    assert 100 <= len(batched["total_ms"]) < 130


def test_what_takes_long_for_its_clock_or_runs_on_the_host_is_timed_one_by_one(simulated):
    slow = timing.HostClock(lambda: simulated.ns, simulated.synchronize, short_ns=2_000_000)
    expected = [
        (simulated.event_clock(), 100_000, 1), (simulated.clock(), 20_000, 1),
        (slow, 1_000_000, 20), (slow, 3_000_000, 1),
    ]  # fmt: skip
    for clock, cost_ns, calls in expected:
        assert measure(simulated.kernel(cost_ns), clock, Plan(20, 10)).calls == calls


def test_phases_of_a_batch_are_marked_in_every_call_and_prepared_once(simulated):
    prepared = []

    several = simulated.phases(forward=(6_000, 10_000), backward=(6_000, 20_000))
    alone = simulated.phases(forward=(0, 60_000))
    found = measure(several, simulated.event_clock(), Plan(20, 10), lambda: prepared.append(1), repeats=True)
    assert found.calls == pytest.approx(timing.BATCH * timing.SHORT_NS / 36_000, abs=1)
    assert len(prepared) == 30
    late = 0.006 / found.calls  # the first launch alone keeps the device waiting
    for name, ms in (("forward_ms", 0.01 + late), ("backward_ms", 0.02), ("total_ms", 0.03 + late)):
        assert found.metrics()[name] == pytest.approx([ms] * 10)
    pairs = compare(several, alone, simulated.event_clock(), repeats=True, before=(prepared.clear, prepared.clear))
    assert min(pairs.calls) > 1
    assert pairs.phases.keys() == {"forward"}


def test_pairs_of_short_kernels_are_batches_and_begin_once_the_clock_has_risen(simulated):
    simulated.rising_ns = 180_000_000  # a little less, since launching takes part of the least time
    sides = simulated.kernel(30_000, 5_000), simulated.kernel(150_000, 5_000)
    metrics = compare(*sides, simulated.event_clock(), least_s=0.2).metrics()
    own, other = metrics["calls_a_pair"]
    assert own > other > 1
    assert metrics["paired_ms"] == pytest.approx([0.03 + 0.005 / own] * len(metrics["paired_ms"]))
    assert metrics["baseline_ms"] == pytest.approx([0.15 + 0.005 / other] * len(metrics["baseline_ms"]))

    alone = compare(*sides, simulated.event_clock(), least_s=0.2, before=(lambda: None, timing.nothing)).metrics()
    assert alone["paired_ms"] == pytest.approx([0.035] * len(alone["paired_ms"]))
    assert "calls_a_pair" not in alone


@pytest.mark.parametrize("clock", ["clock", "event_clock"])
def test_neither_side_of_a_pair_pays_for_the_other_ones_caches(simulated, clock):
    last = []

    def side(name, cost_ns):
        def iteration(mark):
            missed = last[-1:] != [name]
            last.append(name)
            simulated.queue(cost_ns + 300_000 * missed)
            mark("run")

        return iteration

    pairs = compare(side("a", 500_000), side("b", 1_000_000), getattr(simulated, clock)())
    assert (set(pairs.first), set(pairs.second)) == ({500_000}, {1_000_000})


def test_a_long_iteration_needs_no_uncounted_one_before_it(simulated):
    runs = []
    sides = [
        lambda mark, name=name, ms=ms: (runs.append(name), simulated.work(ms * 1_000_000), mark("run"))
        for name, ms in (("long", 51), ("short", 49))
    ]
    pairs = compare(*sides, simulated.clock(), most=10)
    assert len(pairs.first) == 10
    assert (runs.count("long"), runs.count("short")) == (timing.UNCOUNTED + 10, 2 * timing.UNCOUNTED - 1 + 20)


def test_without_a_target_every_sample_is_kept_in_order_and_warm_ups_apart(simulated):
    metrics = measure(simulated.program([90, 50, 10, 11, 500]), simulated.clock(), Plan(2, 3, seconds=1e-9)).metrics()
    assert metrics["warmup_ms"] == [90.0, 50.0]
    assert metrics["run_ms"] == [10.0, 11.0, 500.0]


def test_the_garbage_collector_is_off_meanwhile_and_restored_also_after_an_error(simulated):
    seen = []
    with pytest.raises(ZeroDivisionError):
        measure(lambda mark: (seen.append(gc.isenabled()), 1 / 0), simulated.clock(), Plan(1, 1))
    assert seen == [False]
    assert gc.isenabled()


@pytest.mark.parametrize("names", [[[]], [["run", "run"]], [["forward"], ["backward"]]])
def test_phases_without_a_name_of_their_own_or_other_than_before_are_refused(simulated, names):
    iterations = iter(names)
    with pytest.raises(ValueError, match="phases"):
        measure(lambda mark: [mark(name) for name in next(iterations)], simulated.clock(), Plan(0, 2))


def test_an_adaptive_warm_up_ends_when_the_series_is_steady(simulated):
    factors = itertools.chain([9, 4, 2], itertools.repeat(1))
    found = measure(simulated.program(factors), simulated.clock(), Plan(50, 10, target=1))
    assert found.warmup == 3 + 10
    assert set(found.metrics()["run_ms"]) == {1.0}


def test_an_adaptive_warm_up_waits_for_a_slow_decay():
    left = []
    for seed in range(9):
        simulated = Simulated()
        decay = 1 + 0.5 ** (np.arange(3000) / 10)
        factors = simulated_noise.normal(np.random.default_rng(seed), 3000, 0.01) * decay
        warmup = measure(simulated.program(factors), simulated.clock(), Plan(100, 10, target=1)).warmup
        left.append(decay[warmup] - 1)
    assert statistics.median(left) <= 0.05


def test_an_adaptive_warm_up_that_never_ends_is_cut_short(simulated):
    factors = (2 + i for i in itertools.count())
    assert measure(simulated.program(factors), simulated.clock(), Plan(20, 3, target=1)).warmup == 20


def test_adaptive_sampling_takes_at_least_15_and_more_of_what_spreads_more(simulated):
    def taken(spread):
        factors = simulated_noise.normal(np.random.default_rng(3), 5000, spread)
        return len(measure(simulated.program(factors), simulated.clock(), Plan(0, 3000, target=1)).wall)

    assert 15 == taken(0.0001) < taken(0.01) < taken(0.03) < 3000


@pytest.mark.parametrize(("plan", "expected"), [(Plan(0, 25, 0.01), 25), (Plan(0, 3000, 0.01, seconds=0.0305), 31)])
def test_adaptive_sampling_ends_at_its_caps(simulated, plan, expected):
    factors = np.tile([0.9, 1.1], 3000)
    assert len(measure(simulated.program(factors), simulated.clock(), plan).wall) == expected


@pytest.mark.parametrize("noise", simulated_noise.INDEPENDENT)
def test_after_adaptive_stopping_the_interval_covers_and_the_median_has_no_bias(noise):
    plan, covered, medians = Plan(0, 3000, target=1), 0, []
    for seed in range(1000):
        draws = (1e6 * simulated_noise.NOISES[noise](np.random.default_rng(seed), 3000, 0.03)).round().tolist()
        taken = next(n for n in range(3001) if plan.enough(draws[:n], 0))
        found = intervals.median([draws[:taken]])
        covered += found.low <= 1e6 <= found.high
        medians.append(found.value / 1e6)
    assert 0.93 <= covered / 1000 <= 0.99
    assert statistics.fmean(medians) == pytest.approx(1, abs=1e-3)


# Two programs in interleaved pairs: what differs is found, and what does not is not


def verdicts(noise, effect):
    """The verdicts of 100 comparisons of two programs of which the first takes `effect` longer."""
    found = []
    for seed in range(100):
        simulated = Simulated()
        factors = iter(simulated_noise.NOISES[noise](np.random.default_rng(seed), 2500, 0.03))
        first, second = (simulated.program(factors, cost) for cost in (1_000_000 * (1 + effect), 1_000_000))
        pairs = compare(first, second, simulated.clock(), seed=seed)
        found += comparisons.verdicts([comparisons.paired(pairs.first, pairs.second)])
    return found


@pytest.mark.parametrize("noise", simulated_noise.NOISES)
def test_a_planted_difference_is_found_within_the_planned_pairs_and_seldom_one_that_is_none(noise):
    none = verdicts(noise, 0)
    assert none.count("faster") + none.count("slower") <= 11  # 5 are expected; chance gives more once in 200
    assert none.count("same") >= 89
    effect, least = (0.02, 90) if noise in simulated_noise.INDEPENDENT else (0.05, 95)
    assert verdicts(noise, effect).count("slower") >= least


def test_pairs_run_in_turns_in_an_order_that_chance_gives(simulated):
    order = []
    first, second = (lambda mark, name=name: (order.append(name), simulated.work(1), mark("run")) for name in "ab")
    pairs = compare(first, second, simulated.clock())
    uncounted = 4 * timing.UNCOUNTED - 2  # in the first pair each runs once, and then twice
    counted = order[uncounted + 1 :: 2]
    assert counted == order[uncounted::2]
    turns = list(zip(counted[::2], counted[1::2], strict=True))
    assert len(pairs.first) == len(pairs.second) == len(turns)
    assert all(set(turn) == {"a", "b"} for turn in turns)
    twice = [before[0] + after[0] for before, after in zip(turns[::2], turns[1::2], strict=True)]
    assert set(twice) == {"ab", "ba"}  # each goes first equally often


@pytest.mark.parametrize(("seconds", "pairs"), [(0, 5), (0.0275, 7)])  # of 4 ms each, with what does not count
def test_pairs_stop_when_their_time_is_up_but_not_before_the_fifth(simulated, seconds, pairs):
    programs = (simulated.program(itertools.repeat(1)) for _ in range(2))
    assert len(compare(*programs, simulated.clock(), seconds=seconds).first) == pairs
