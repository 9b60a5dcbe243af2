"""A sweep's duration is predicted from records of this machine, or else from costs and rates."""

from dataclasses import replace

import pytest

from lib import notebooks
from lib.experiments import cases
from lib.instruments import cache, device, environment
from lib.instruments.device import Cuda
from lib.records import results
from lib.report.published import datasheets
from lib.sweep import duration, plan
from reference import MACHINE

FLOP_S = dict.fromkeys(("fp32", "tf32", "bf16", "fp16"), 1e-11)
RATES = duration.UnitSeconds(FLOP_S, byte=1e-10, operation=1e-5, draw=1e-8, start=4.0)
SETTINGS = {"warmup": 2, "samples": 8, "target_percent": 0, "seconds": 1, "pairs": 4, "round": 1}


def made(experiment, **others):
    axes = {name: notebooks.parameters(experiment)[name] for name in notebooks.fields(experiment)}
    return cases.grid(experiment, **axes | {"device": "cpu"} | others)[-1]


@pytest.mark.parametrize("experiment", cases.EXPERIMENTS)
def test_each_case_takes_time_and_longer_with_more_samples(experiment):
    seconds = [duration.case_seconds(made(experiment), SETTINGS | {"samples": n}, RATES) for n in (8, 800)]
    assert seconds[0] > 0
    assert seconds[1] > seconds[0] or experiment in ("precision", "memory")


def test_what_is_larger_compiled_or_cold_takes_longer():
    def seconds(experiment, **others):
        return duration.case_seconds(made(experiment, **others), SETTINGS, RATES)

    assert seconds("step", size="small") > 5 * seconds("step", size="tiny")
    assert seconds("step", compiled=True) > 5 + seconds("step", compiled=False)
    assert seconds("adam", cold=True) > seconds("adam", cold=False)


def test_the_limit_of_seconds_bounds_adaptive_sampling():
    case = made("attention", variant="naive", seq_len=4096)
    settings = SETTINGS | {"warmup": 50, "samples": 200, "target_percent": 1, "seconds": 0.1, "pairs": 0}
    assert duration.case_seconds(case, settings, RATES) < 20 * RATES.iteration_s(case)


def test_a_gpu_has_least_times_and_short_sides_of_a_pair_run_twice():
    case, gpu = made("adam", variant="fused", param_size=1024), RATES._replace(least_s=Cuda.least_s)
    few = SETTINGS | {"warmup": 1, "samples": 1, "pairs": 0}
    without = duration.case_seconds(case, few, RATES)
    paired = [duration.case_seconds(case, few | {"pairs": n}, RATES) for n in (2, 4)]
    base = replace(case, variant="single_tensor")
    assert paired[1] - paired[0] == pytest.approx(2 * 2 * sum(map(RATES.iteration_s, (case, base))))
    assert duration.case_seconds(case, few, gpu) == pytest.approx(without + sum(Cuda.least_s), rel=0.05)
    assert duration.case_seconds(case, few | {"pairs": 2}, gpu) > without + sum(Cuda.least_s) + Cuda.least_s[0]


def test_a_case_with_a_record_takes_as_long_again_and_one_that_is_done_nothing(monkeypatch, own_results):
    tasks = plan.planned("smoke")
    monkeypatch.setattr(duration, "rates", lambda device: RATES)
    monkeypatch.setattr(plan, "earlier_s", lambda name, machine: 100.0 * name.startswith("attention/"))
    found = duration.predicted(tasks)
    assert found["attention"] == pytest.approx(600, abs=30)
    assert 0 < found["adam"] < 60
    monkeypatch.setattr(plan.Task, "status", lambda _, name, again=frozenset(): None if "stale" in again else "ok")
    assert sum(duration.predicted(tasks).values()) == 0
    assert duration.predicted(tasks, frozenset({"stale"})) == found


def test_the_reference_machines_records_took_about_as_long(monkeypatch, own_results):
    """The settings are those that each record shows; the machine's speed comes from the records of its limits."""
    monkeypatch.setattr(environment, "machine", lambda device: MACHINE)
    monkeypatch.setattr(cache, "flushed_bytes", lambda device: 2 * 32 * 2**20)  # twice its last cache, at that time
    duration.rates.cache_clear()
    rates = duration.rates("cpu")._replace(draw=2.5e-8)  # as no record tells
    duration.rates.cache_clear()
    predicted = taken = 0.0
    for experiment in cases.EXPERIMENTS:
        newer = {name: notebooks.parameters(experiment)[name] for name in notebooks.fields(experiment)}
        for file in results.files(MACHINE, experiment)[::3]:
            record = results.cached(file)
            if record["status"] == "ok":
                counts = {"warmup": "warmup_ms", "samples": "total_ms", "pairs": "paired_ms"}
                if experiment == "warmup":
                    counts |= {"samples": "first_total_ms"}
                settings = {name: len(record["metrics"].get(metric, ())) for name, metric in counts.items()}
                case = cases.EXPERIMENTS[experiment](**newer | record["case"])
                predicted += duration.case_seconds(case, SETTINGS | settings | {"round": record["round"]}, rates)
                taken += record["seconds"]
    assert 1 / 1.5 < predicted / taken < 1.5


@pytest.fixture
def without_cuda(monkeypatch):
    monkeypatch.setitem(device.KINDS, "cuda", Absent())


class Absent(Cuda):
    def missing(self):
        return "PyTorch sees no CUDA device"


@pytest.mark.usefixtures("without_cuda", "own_results")
@pytest.mark.parametrize(("sweep", "minutes"), [("gpu", 25), ("quick-gpu", 15)])
def test_the_first_tier_of_a_gpu_sweep_fits_by_the_datasheet_of_a_gpu_that_is_not_here(sweep, minutes):
    tasks = plan.planned(sweep, dry=True)
    assert {task.device for task in tasks} == {plan.CARD} <= set(datasheets()["hardware"])
    first = [task for task in tasks if task.tier == 1]
    assert first == tasks[: len(first)]
    assert 0.8 * minutes < sum(duration.predicted(first).values()) / 60 < minutes
    said = duration.sentence(tasks)
    assert f"on an {plan.CARD}, by its datasheet since no CUDA device is here:" in said
    assert [line.split()[1] for line in said.splitlines() if "tier" in line] == list("123" if sweep == "gpu" else "")


def test_a_gpu_computes_while_python_calls_and_a_processor_after():
    case = made("step")
    both = RATES.iteration_s(case), RATES._replace(overlaps=True).iteration_s(case)
    called = duration.SLOWDOWN * case.costs().operations * RATES.operation
    assert both[1] == pytest.approx(max(called, both[0] - called))


def test_what_the_ladder_searches_and_trains_takes_time():
    case = made("ladder", compiled=True, projections=True)
    plain, trained, searched = (
        duration.case_seconds(case, SETTINGS | own, RATES) for own in ({}, {"steps": 50}, {"search": True})
    )
    assert trained == pytest.approx(plain + 2 * 50 * RATES.iteration_s(case))
    assert searched > plain + 2 * SETTINGS["pairs"] * RATES.iteration_s(case)
