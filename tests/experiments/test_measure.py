"""Cases are checked before they are timed, saved as they end, and refused when they cannot be."""

import contextlib
import json
from dataclasses import asdict

import pytest
import torch

from lib import adam, precision, timing
from lib.experiments import cases, measure
from lib.experiments.case import Work
from lib.instruments import cache, container, device, environment, peak_memory
from lib.instruments.device import Cpu
from lib.records import atomic, results
from plain import measured, one


@pytest.fixture
def setup(monkeypatch):
    """Let the set-up of a copy do something else."""
    return lambda other: monkeypatch.setattr(cases.EXPERIMENTS["ceilings"], "setup", lambda self: other())


@pytest.fixture
def fails(setup):
    """Let a copy raise an error."""

    def fails(error):
        def raising():
            raise error

        setup(raising)

    return fails


@pytest.mark.parametrize(
    "case",
    [
        one("step", attention="tiled", optimizer="foreach"),
        *(one("step", precision="bf16", mode=mode) for mode in ("forward_backward", "forward", "no_grad")),
        *(one("attention", variant=v, causal=False) for v in ("naive", "tiled", "sdpa")),
        one("attention", precision="fp16"),
        *(one("adam", variant=v, amsgrad=False) for v in ("single_tensor", "foreach", "fused")),
        one("adam", shapes="tiny", num_params=0, param_size=0),
        *(one("ceilings", operation=o, rows=8, columns=24) for o in ("matmul", "copy", "triad", "add", "adamw")),
        one("ceilings", operation="call", rows=1, columns=1),
    ],
    ids=str,
)
def test_every_family_gives_a_valid_record_of_its_phases(own_results, case):
    record = measured(case)
    metrics = record["metrics"]
    phases = [name for name in metrics if name.removesuffix("_ms") in ("forward", "backward", "optimizer", "run")]
    assert record["status"] == "ok"
    assert record["case"] == asdict(case)
    assert all(len(metrics[name]) == 6 for name in phases)
    sums = [sum(sample) for sample in zip(*(metrics[name] for name in phases), strict=True)]
    assert metrics["total_ms"] == pytest.approx(sums)
    assert any(name.endswith("_error") for name in metrics)
    assert metrics["peak_mib"][0] > 0


def wrong(mark):
    mark("run")


def test_a_variant_with_a_wrong_result_is_not_timed(own_results, setup):
    setup(lambda: Work("cpu", wrong, lambda: {"out": torch.ones(3)}, lambda: {"out": torch.full((3,), 1.1)}, 1e-3, {}))
    with pytest.raises(measure.WrongResult, match="out"):
        measured(one("ceilings"))
    assert not list(own_results.rglob("*.json"))


@pytest.mark.parametrize(
    ("count", "error", "wrong"), [(3, 5e-3, False), (3, 2e-2, True), (2000, 5e-3, True), (3, torch.nan, True)]
)
def test_a_few_values_may_miss_by_more_than_many_and_none_may_be_no_number(count, error, wrong):
    result, expected = {"out": torch.full((count,), 1 + error)}, {"out": torch.ones(count)}
    with pytest.raises(measure.WrongResult) if wrong else contextlib.nullcontext():
        measure._check(result, expected, 1e-3)


def test_a_case_that_cannot_fit_is_recorded_with_both_numbers_and_not_built(own_results, monkeypatch):
    case = one("step", size="2.7B", context_length=1024, batch_size=64)
    monkeypatch.setattr(cases.EXPERIMENTS["step"], "setup", lambda self: pytest.fail("it was built"))
    record = measured(case)
    assert record["status"] == "too_large"
    assert record["metrics"]["predicted_bytes"] == case.predicted_bytes() > record["metrics"]["available_bytes"]


def test_running_out_of_memory_is_recorded_with_the_bytes_asked_for(own_results, setup):
    setup(lambda: torch.empty(2**50))
    record = measured(one("ceilings"))
    assert (record["status"], record["metrics"]) == ("oom", {"asked_bytes": 2**52})


def test_by_hand_any_other_error_is_shown_and_leaves_no_record(own_results, fails):
    fails(ZeroDivisionError())
    with pytest.raises(ZeroDivisionError):
        measured(one("ceilings"), results.BY_HAND)
    assert not list(own_results.rglob("*.json"))


@pytest.mark.parametrize(
    ("error", "reason"),
    [
        (RuntimeError("in /home/me/a b/x.py:\n\n\tno kernel \x00"), "RuntimeError: in a b/x.py: | no kernel"),
        (KeyError("https://pytorch.org/a/b or a/b"), "KeyError: 'https://pytorch.org/a/b or a/b'"),
        (ValueError(""), "ValueError:"),
    ],
)
def test_in_a_sweep_any_other_error_is_a_record_with_the_reason(own_results, monkeypatch, capsys, fails, error, reason):
    monkeypatch.setenv("SWEEP_RUN", "a run")
    fails(error)
    record = measured(one("ceilings"))
    assert (record["status"], record["metrics"]) == ("failed", {"reason": reason})
    assert "Traceback" in capsys.readouterr().err  # for the executed notebook


def test_an_error_that_spoils_the_device_is_recorded_before_the_notebook_ends(own_results, monkeypatch, fails):
    class Spoilt(device.Cpu):
        def release(self):
            raise RuntimeError("CUDA error: an illegal memory access was encountered")

    monkeypatch.setenv("SWEEP_RUN", "a run")
    monkeypatch.setitem(device.KINDS, "cpu", Spoilt())
    fails(RuntimeError("CUDA error: an illegal memory access was encountered"))
    case = one("ceilings")
    with pytest.raises(RuntimeError, match="illegal"):
        measured(case)
    assert results.status(measure.record_path(case, 1)) == "failed"


def test_a_store_that_cannot_be_written_is_no_fault_of_the_case(own_results, monkeypatch, fails):
    monkeypatch.setenv("SWEEP_RUN", "a run")
    fails(atomic.CannotWrite(28, "the disk is full", "/tmp/x"))
    with pytest.raises(atomic.CannotWrite):
        measured(one("ceilings"))
    assert not list(own_results.rglob("*.json"))


def test_what_finds_no_room_is_tried_again_and_what_can_never_fit_is_not(own_results, monkeypatch):
    case = one("ceilings")
    for total, status, available, left in ((10**9, "no_room", 9, [case]), (0, "too_large", 0, [])):
        monkeypatch.setattr(device.Cpu, "total_bytes", lambda _, total=total: total)
        monkeypatch.setattr(device.Cpu, "free_bytes", lambda _: 10)
        record = measured(case)
        assert record["status"] == status
        assert record["metrics"] == {"predicted_bytes": case.predicted_bytes(), "available_bytes": available}
        assert measure.remaining([case], 1) == measure.remaining([case], 2) == left


def test_a_case_uses_no_more_threads_than_the_quota_of_the_container(own_results, monkeypatch, one_thread):
    monkeypatch.setattr(environment, "_cores_seen", lambda: 8)
    monkeypatch.setattr(container, "cores", lambda: 2.0)
    torch.set_num_threads(4)
    assert measured(one("ceilings"))["environment"]["threads"] == 2


def test_what_a_case_built_is_freed_although_the_notebook_still_names_it(own_results):
    with measure.recording(one("ceilings"), 1) as record:
        work = record.setup()
        record.metrics |= measure.errors(work)
    assert not vars(work)


EVERY = [one("ceilings", rows=8 * n) for n in range(1, 9)]


def test_a_round_leaves_out_what_is_done_and_what_ended_badly_before(own_results):
    first, second, third = EVERY[:3]
    measured(first)
    measure.save(second, 1, "timeout", {}, "2026-01-01T00:00:00+00:00", 1.0)
    assert measure.remaining([first, second, third], 1) == [third]
    assert set(measure.remaining([first, second, third], 2)) == {first, third}
    assert measure.remaining([first, second, third], results.BY_HAND) == [first, second, third]


def test_rounds_measure_in_different_orders(own_results):
    orders = {tuple(measure.remaining(EVERY, round)) for round in (1, 2, 3)}
    assert len(orders) == 3
    assert all(set(order) == set(EVERY) for order in orders)


def test_no_case_begins_once_the_sweeps_time_is_up(own_results, monkeypatch):
    monkeypatch.setenv("SWEEP_SECONDS_LEFT", "1000")
    begun = []
    for case in measure.pending(EVERY, 1):
        begun.append(case)
        monkeypatch.setattr(measure, "_BEGAN", measure.time.monotonic() - 1001)
    assert len(begun) == 1


def test_a_kernel_far_from_the_store_measures_what_is_named_and_has_no_record_there(own_results, tmp_path, monkeypatch):
    named = [measure.record_name(case, 2) for case in EVERY[:5]] + [measure.record_name(EVERY[6], 1)]
    (tmp_path / "todo.json").write_text(json.dumps(named))
    order = measure.remaining(EVERY, 2)
    measured(EVERY[0], 2)
    measure.save(EVERY[1], 1, "timeout", {}, "2026-01-01T00:00:00+00:00", 1.0)  # whoever names cases has seen to that
    monkeypatch.setenv("SWEEP_CASES", str(tmp_path / "todo.json"))
    assert measure.remaining(EVERY, 2) == [case for case in order if case in EVERY[1:5]]


def test_a_record_has_the_noise_probe_before_and_after_and_pairs_with_the_baseline(own_results):
    metrics = measured(one("attention", variant="tiled"))["metrics"]
    assert len(metrics["noise_probe_ms"]) == 20
    assert len(metrics["paired_ms"]) == len(metrics["baseline_ms"]) == 7
    for side in ("paired", "baseline"):
        phases = zip(metrics[f"{side}_forward_ms"], metrics[f"{side}_backward_ms"], strict=True)
        assert [sum(pair) for pair in phases] == pytest.approx(metrics[f"{side}_ms"])
    assert "paired_ms" not in measured(one("attention"))["metrics"]


class Gpu(Cpu):
    """A device that says before a case and after it how it is, and that its clock rises."""

    least_s = (0.02, 0.01)

    def __init__(self):
        self.states = iter([{"sm_clock_mhz": [345], "throttled": []}, {"sm_clock_mhz": [1980], "throttled": ["power"]}])

    def state(self):
        return next(self.states)


@pytest.mark.parametrize(("cold", "clocks", "throttled"), [(False, [345, 1980], ["power"]), (True, [345], [])])
def test_the_state_of_a_gpu_before_and_after_is_in_the_environment(own_results, monkeypatch, cold, clocks, throttled):
    monkeypatch.setitem(device.KINDS, "cpu", Gpu())
    with measure.recording(one("ceilings"), 1, cold):
        pass  # before a cold start, a question would begin to warm up the process
    found = results.read(measure.record_path(one("ceilings"), 1))["environment"]
    assert (found["sm_clock_mhz"], found["throttled"]) == (clocks, throttled)


def test_times_of_a_gpu_last_as_long_as_its_clock_rises(own_results, monkeypatch):
    monkeypatch.setitem(device.KINDS, "cpu", Gpu())
    plans, seconds = [], []
    monkeypatch.setattr(timing, "measure", lambda i, clock, plan, *_: (plans.append(plan), timing.Samples(0))[1])
    monkeypatch.setattr(timing, "compare", lambda *_, least_s: (seconds.append(least_s), timing.Pairs())[1])
    record = measure.Recording(one("attention", variant="tiled"), 1)
    measure.times(record.setup(), timing.Plan(1, 6))
    measure.pairs(record, 7, 1)
    assert (plans, seconds) == ([timing.Plan(1, 6, least_s=Gpu.least_s)], [Gpu.least_s[0]])


@pytest.mark.parametrize("error", [RuntimeError("CUBLAS_STATUS_ALLOC_FAILED"), MemoryError()])
def test_the_probe_after_a_case_runs_without_it_and_costs_no_times(own_results, monkeypatch, error):
    works = []

    def probe(name):
        if not works:
            return [1.0] * 10
        assert not vars(works[0])
        raise error

    monkeypatch.setattr(measure.noise, "probe", probe)
    with measure.recording(one("ceilings"), 1) as record:
        works.append(record.setup())
        record.metrics |= measure.times(works[0], timing.Plan(1, 6))
    saved = results.read(measure.record_path(one("ceilings"), 1))
    assert (saved["status"], len(saved["metrics"]["total_ms"])) == ("ok", 6)
    assert saved["metrics"]["noise_probe_ms"] == [1.0] * 10


def test_pairs_that_do_not_fit_side_by_side_say_so(own_results, monkeypatch):
    case = one("adam", variant="foreach")
    needed, available = case.predicted_bytes(), iter([10**9, 10])  # for the case, and then for the baseline beside it
    monkeypatch.setattr(peak_memory, "available_bytes", lambda device: next(available))
    record = measured(case)
    assert record["status"] == "ok"
    assert record["metrics"]["pair_predicted_bytes"] == needed
    assert record["metrics"]["pair_available_bytes"] == 10
    assert "paired_ms" not in record["metrics"]


def test_a_pair_computes_each_side_in_its_own_precision(own_results, monkeypatch):
    seen = []
    original = precision.activate
    monkeypatch.setattr(precision, "activate", lambda name, device: (seen.append(name), original(name, device))[1])
    with measure.recording(one("attention", precision="bf16"), 1) as record:
        record.setup()
        seen.clear()
        measure.pairs(record, 7, 1)
    assert sorted(set(seen)) == ["bf16", "fp32"]
    assert seen.count("bf16") >= 1 + 7


def test_a_cold_case_flushes_the_caches_outside_the_timed_region(own_results, monkeypatch):
    flushes = []
    monkeypatch.setattr(cache, "flush", lambda device: lambda: flushes.append(1))
    measured(one("adam", cold=True))
    assert len(flushes) >= 1 + 7 + 1  # the check, the warm-up with the samples, the memory


def test_each_case_and_round_pairs_in_an_order_of_its_own(own_results, monkeypatch):
    seeds = []
    monkeypatch.setattr(timing, "compare", lambda *a, **_: (seeds.append(a[5]), timing.Pairs())[1])
    for variant in ("tiled", "sdpa"):
        for round in (1, 2):
            record = measure.Recording(one("attention", variant=variant), round)
            record.setup()
            measure.pairs(record, 7, 1)
    assert len(set(seeds)) == 4


def test_memory_that_runs_out_in_the_pairs_leaves_the_times_of_the_case(own_results, monkeypatch):
    def no_memory():
        raise MemoryError

    build = measure.Recording.build
    monkeypatch.setattr(
        measure.Recording, "build", lambda self, case: build(self, case) if case == self.case else no_memory()
    )
    record = measured(one("adam", variant="fused"))
    assert record["status"] == "ok"
    assert len(record["metrics"]["total_ms"]) == 6
    assert "pair_asked_bytes" in record["metrics"]


def test_an_optimizer_that_does_nothing_in_a_step_is_found(monkeypatch):
    monkeypatch.setitem(adam.VARIANTS, "foreach", lambda *lists: None)
    with pytest.raises(measure.WrongResult, match="update"):
        measure.errors(one("step", optimizer="foreach").setup())


@pytest.mark.parametrize("name", ["bf16", "fp16"])
def test_a_model_without_its_last_layer_is_wrong_in_narrow_types_too(name):
    work = one("step", precision=name, mode="no_grad", context_length=64).setup()
    work.iteration.__self__.module.layers[-1].forward = lambda x_BTC: x_BTC
    with pytest.raises(measure.WrongResult, match="logits"):
        measure.errors(work)


@pytest.mark.parametrize(("compiled", "count"), [(False, 0), (True, 2)])  # before and after the case
def test_what_a_case_compiled_is_forgotten_after_it(own_results, monkeypatch, setup, compiled, count):
    resets = []
    monkeypatch.setattr(measure.compilation, "reset", lambda: resets.append(1))
    setup(lambda: Work("cpu", wrong, dict, dict, 1e-3, {}, compiled=compiled))
    with measure.recording(one("ceilings"), 0) as record:
        record.setup()
    assert len(resets) == count


def test_an_allocator_that_had_to_give_memory_back_is_in_the_record(own_results, monkeypatch):
    counts = iter((3, 5))
    monkeypatch.setattr(device.Cpu, "retries", lambda _: next(counts))
    with measure.recording(one("ceilings"), 1):
        pass
    assert results.read(measure.record_path(one("ceilings"), 1))["metrics"]["alloc_retries"] == 2
