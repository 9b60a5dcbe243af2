"""Cases are checked before they are timed, saved as they end, and refused when they cannot be."""

from dataclasses import asdict

import pytest
import torch

from lib import baseline, cases, environment, measure, memory, precision, results, timing
from lib.measure import Work
from lib.timing import Plan

STEP = {
    "size": "tiny", "context_length": 8, "batch_size": 1, "precision": "fp32", "compiled": False,
    "attention": "naive", "optimizer": "single_tensor", "mode": "train_step", "device": "cpu",
}  # fmt: skip
ATTENTION = {
    "variant": "naive", "seq_len": 8, "d_head": 4, "batch_size": 1, "causal": True, "precision": "fp32",
    "cold": False, "device": "cpu",
}  # fmt: skip
ADAM = {
    "variant": "fused", "shapes": "equal", "num_params": 2, "param_size": 8, "amsgrad": True, "cold": False,
    "device": "cpu",
}  # fmt: skip
CEILINGS = {"operation": "copy", "rows": 8, "columns": 8, "precision": "fp32", "device": "cpu"}
PLAIN = {"step": STEP, "attention": ATTENTION, "adam": ADAM, "ceilings": CEILINGS}


def one(experiment, **changed):
    (case,) = cases.grid(experiment, **PLAIN[experiment] | changed)
    return case


def measured(case, round=1):
    with measure.recording(case, round) as record:
        work = record.setup()
        record.metrics |= measure.errors(work)
        record.metrics |= measure.times(work, Plan(1, 6))
        record.metrics |= measure.peaks(work)
        record.metrics |= measure.pairs(record, 7, 1)
    return results.read(measure.record_path(case, round))


@pytest.mark.parametrize(
    "case",
    [
        *(one("step", attention=a, optimizer=o) for a, o in (("tiled", "foreach"), ("sdpa", "fused"))),
        one("step", precision="bf16"),
        *(one("step", mode=mode) for mode in ("forward_backward", "forward", "no_grad")),
        *(one("attention", variant=v, causal=c) for v in ("naive", "tiled", "sdpa") for c in (True, False)),
        one("attention", precision="fp16"),
        *(one("adam", variant=v, amsgrad=a) for v in ("single_tensor", "foreach", "fused") for a in (True, False)),
        one("adam", shapes="tiny", num_params=0, param_size=0),
        *(one("ceilings", operation=o, rows=8, columns=24) for o in ("matmul", "copy", "triad", "add")),
        one("ceilings", operation="matmul", rows=24, precision="bf16"),
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


@pytest.mark.parametrize(
    ("operation", "facts"),
    [
        ("matmul", {"flops": 2 * 4 * 4 * 6}),
        ("copy", {"moved_bytes": 2 * 4 * 6 * 4}),
        ("triad", {"moved_bytes": 3 * 4 * 6 * 4}),
        ("add", {"moved_bytes": 3 * 4 * 6 * 4}),
    ],
)
def test_a_ceiling_knows_what_it_computes_or_moves(operation, facts):
    assert one("ceilings", operation=operation, rows=4, columns=6).setup().facts == facts


def test_a_call_is_made_a_thousand_times():
    work = one("ceilings", operation="call", rows=1, columns=1).setup()
    with torch.profiler.profile() as profile:
        work.iteration(lambda name: None)
    (row,) = (event for event in profile.key_averages() if event.key == "aten::add")
    assert work.facts == {"calls": row.count} == {"calls": 1000}


def test_the_facts_of_a_step_and_of_attention_hold_what_theory_says_of_each_phase():
    facts = one("step").setup().facts
    assert facts["backward_flops"] == 2 * facts["forward_flops"]
    assert facts["optimizer_flops"] == 14 * facts["parameters"]
    assert facts["optimizer_bytes"] == 28 * facts["parameters"]
    assert 0 < facts["forward_bytes"] < facts["backward_bytes"]
    moved = 12 * 4 * 8 * 4  # Q, K, V, the output and their gradients, and 19 or 15 times the scores
    causal = {"forward_flops": 4 * 64 * 4, "causal_flops": 4 * 36 * 4, "moved_bytes": moved + 19 * 4 * 64}
    assert one("attention").setup().facts == causal
    assert one("attention", causal=False).setup().facts == {
        "forward_flops": 4 * 64 * 4,
        "moved_bytes": moved + 15 * 4 * 64,
    }


def test_a_compiled_variant_is_timed_apart_from_its_compilation(own_results):
    metrics = measured(one("attention", variant="compiled"))["metrics"]
    assert metrics["first_iteration_ms"][0] > 10 * max(metrics["total_ms"])
    assert "peak_mib" not in metrics


def wrong(mark):
    mark("run")


def test_a_variant_with_a_wrong_result_is_not_timed(own_results, monkeypatch):
    bad = Work(
        "cpu", wrong, lambda: {"out": torch.ones(3)}, lambda: {"out": torch.tensor([1, 1, 1.1])}, 1e-3, {}
    )  # fmt: skip
    monkeypatch.setattr(cases.Ceilings, "setup", lambda self: bad)
    with pytest.raises(measure.WrongResult, match="out"):
        measured(one("ceilings"))
    assert not list(own_results.rglob("*.json"))


def test_a_result_that_is_not_a_number_is_wrong(own_results, monkeypatch):
    bad = Work("cpu", wrong, lambda: {"out": torch.ones(1)}, lambda: {"out": torch.tensor([torch.nan])}, 1e9, {})
    monkeypatch.setattr(cases.Ceilings, "setup", lambda self: bad)
    with pytest.raises(measure.WrongResult):
        measured(one("ceilings"))


def test_a_case_that_cannot_fit_is_recorded_with_both_numbers_and_not_built(own_results, monkeypatch):
    case = one("step", size="2.7B", context_length=1024, batch_size=64)
    monkeypatch.setattr(cases.Step, "setup", lambda self: pytest.fail("it was built"))
    record = measured(case)
    assert record["status"] == "too_large"
    assert record["metrics"]["predicted_bytes"] == case.predicted_bytes() > record["metrics"]["available_bytes"]


def test_running_out_of_memory_is_recorded_with_the_bytes_asked_for(own_results, monkeypatch):
    monkeypatch.setattr(cases.Ceilings, "setup", lambda self: torch.empty(2**50))
    record = measured(one("ceilings"))
    assert (record["status"], record["metrics"]) == ("oom", {"asked_bytes": 2**52})


def test_any_other_error_goes_on_and_leaves_no_record(own_results, monkeypatch):
    monkeypatch.setattr(cases.Ceilings, "setup", lambda self: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        measured(one("ceilings"))
    assert not list(own_results.rglob("*.json"))


def test_what_a_case_built_is_freed_although_the_notebook_still_names_it(own_results):
    case = one("ceilings", rows=1024, columns=1024)
    with measure.recording(case, 1) as record:
        work = record.setup()
        record.metrics |= measure.errors(work)
    assert not vars(work)


def test_a_round_leaves_out_what_is_done_and_what_ended_badly_before(own_results):
    first, second, third = (one("ceilings", rows=rows) for rows in (8, 16, 24))
    measured(first)
    measure.save(second, 1, "timeout", {}, "2026-01-01T00:00:00+00:00", 1.0)
    assert measure.remaining([first, second, third], 1) == [third]
    assert set(measure.remaining([first, second, third], 2)) == {first, third}
    assert measure.remaining([first, second, third], results.BY_HAND) == [first, second, third]


def test_rounds_measure_in_different_orders(own_results):
    every = [one("ceilings", rows=8 * n) for n in range(1, 9)]
    orders = {tuple(measure.remaining(every, round)) for round in (1, 2, 3)}
    assert len(orders) == 3
    assert all(set(order) == set(every) for order in orders)


def test_no_case_begins_after_the_deadline(own_results, monkeypatch):
    monkeypatch.setenv("SWEEP_DEADLINE", "0")
    assert list(measure.pending([one("ceilings")], 1)) == []


def test_what_the_machine_has_no_means_for_is_left_out_and_says_why():
    case = one("attention", precision="tf32")
    assert "CUDA" in case.unavailable()
    assert measure.available([case]) == []


@pytest.mark.parametrize(
    ("experiment", "changed", "said"),
    [
        ("step", {"size": "smal"}, r"size: 'smal'.*nearest is 'small'"),
        ("step", {"context_length": 0}, "context_length: 0 must be 1 or more"),
        ("step", {"compiled": "yes"}, "compiled: 'yes' is str, must be bool"),
        ("step", {"optimizer": "adamw"}, "optimizer: 'adamw'"),
        ("attention", {"variant": "sdap"}, "nearest is 'sdpa'"),
        ("attention", {"seq_len": "64"}, "seq_len: '64' is str, must be int"),
        ("attention", {"seq_len": True}, "seq_len: True is bool"),
        ("attention", {"precision": "fp8"}, "precision: 'fp8'"),
        ("attention", {"device": "gpu"}, "device: 'gpu'.*nearest is"),
        ("adam", {"num_params": -1}, "num_params: -1 must be 1 or more"),
        ("adam", {"param_size": 1.5}, "param_size: 1.5 is float"),
        ("adam", {"num_params": 0}, "num_params: 0 must be 1 or more"),
        ("adam", {"shapes": "smal"}, "shapes: 'smal'.*nearest is 'small'"),
        ("adam", {"shapes": "tiny", "param_size": 0}, "num_params: 2 must be 0 for tiny, which has its own"),
        ("ceilings", {"operation": "divide"}, "operation: 'divide'"),
        ("ceilings", {"operation": "call", "rows": 1}, "columns: 8 must be 1 for call"),
        ("ceilings", {"operation": "call", "columns": 1}, "rows: 8 must be 1 for call"),
    ],
)
def test_an_impossible_case_names_field_rule_and_nearest_name(experiment, changed, said):
    with pytest.raises(ValueError, match=said):
        one(experiment, **changed)


@pytest.mark.skipif(torch.cuda.is_available(), reason="the machine has what this test needs to be missing")
def test_a_device_that_is_not_there_is_refused():
    with pytest.raises(ValueError, match="not on this machine"):
        environment.device("cuda")


def test_the_environment_holds_no_path_and_only_allowed_variables(monkeypatch):
    monkeypatch.setenv("SECRET_TOKEN", "s3cr3t")
    monkeypatch.setenv("OMP_NUM_THREADS", "2")
    found = environment.describe("cpu")
    assert found["variables"]["OMP_NUM_THREADS"] == "2"
    assert "s3cr3t" not in str(found)
    assert str(environment.ROOT) not in str(found)


@pytest.mark.parametrize(
    ("name", "slug"),
    [
        ("Intel(R) Xeon(R) Processor", "xeon-2c"),
        ("AMD EPYC 7B13", "epyc-2c"),
        ("Apple M4", "apple-m4-2c"),
        ("13th Gen Intel(R) Core(TM) i7-1360P", "core-2c"),
    ],
)
def test_a_machine_is_named_after_its_processor_and_cores(monkeypatch, name, slug):
    monkeypatch.setattr(environment, "processor", lambda: name)
    monkeypatch.setattr(environment, "cores", lambda: 2)
    assert environment.machine("cpu") == slug


def test_memory_is_predicted_from_above_for_every_family(own_results):
    big = [
        one("step", context_length=128, batch_size=4),
        one("attention", seq_len=512, d_head=32, batch_size=2),
        one("attention", variant="tiled", seq_len=512, d_head=32, batch_size=2),
        one("adam", variant="foreach", num_params=4, param_size=2**18),
        one("ceilings", operation="matmul", rows=512, columns=512),
        one("ceilings", operation="matmul", rows=1024, columns=256),
        one("ceilings", operation="matmul", rows=256, columns=1024),
        *(one("ceilings", operation=o, rows=512, columns=256) for o in ("copy", "triad")),
    ]
    for case in big:
        peak = measured(case)["metrics"]["peak_mib"][0]
        assert peak <= case.predicted_bytes() / memory.MIB <= 4 * peak, case


def test_a_record_has_the_canary_before_and_after_and_pairs_with_the_baseline(own_results):
    metrics = measured(one("attention", variant="tiled"))["metrics"]
    assert len(metrics["canary_ms"]) == 20
    assert len(metrics["paired_ms"]) == len(metrics["baseline_ms"]) == 7
    for side in ("paired", "baseline"):
        phases = zip(metrics[f"{side}_forward_ms"], metrics[f"{side}_backward_ms"], strict=True)
        assert [sum(pair) for pair in phases] == pytest.approx(metrics[f"{side}_ms"])
    assert "paired_ms" not in measured(one("attention"))["metrics"]


def test_only_the_forward_pass_without_a_graph_has_that_with_one_as_baseline():
    fields = asdict(one("step", mode="no_grad"))
    assert baseline.of("step", fields) == fields | {"mode": "forward"}
    assert all(baseline.of("step", fields | {"mode": mode}) is None for mode in ("forward", "train_step"))


def test_without_a_graph_a_forward_pass_keeps_less(own_results):
    with_graph, without = (
        measured(one("step", mode=mode, context_length=64))["metrics"]["forward_end_mib"][0]
        for mode in ("forward", "no_grad")
    )
    assert without < with_graph


def test_pairs_that_do_not_fit_side_by_side_say_so(own_results, monkeypatch):
    case = one("adam", variant="foreach")
    needed, available = case.predicted_bytes(), iter([10**9, 10])  # for the case, and then for the baseline beside it
    monkeypatch.setattr(memory, "available_bytes", lambda device: next(available))
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
    assert seen.count("bf16") == timing.UNCOUNTED + 7


def test_a_cold_case_flushes_the_caches_outside_the_timed_region(own_results, monkeypatch):
    flushes = []
    monkeypatch.setattr(timing, "flush", lambda device: lambda: flushes.append(1))
    measured(one("adam", cold=True))
    assert len(flushes) >= 1 + 7 + 1  # the check, the warm-up with the samples, the memory


def test_each_case_and_round_pairs_in_an_order_of_its_own(own_results, monkeypatch):
    seeds = []
    original = timing.compare
    monkeypatch.setattr(timing, "compare", lambda *a: (seeds.append(a[5]), original(*a))[1])
    for case in (one("attention", variant="tiled"), one("attention", variant="sdpa")):
        for round in (1, 2):
            measured(case, round)
    assert len(set(seeds)) == 4


def test_memory_that_runs_out_in_the_pairs_leaves_the_times_of_the_case(own_results, monkeypatch):
    case, original = one("adam", variant="fused"), type(one("adam")).setup

    def setup(self):
        if self.variant == "single_tensor":
            raise MemoryError
        return original(self)

    monkeypatch.setattr(type(case), "setup", setup)
    record = measured(case)
    assert record["status"] == "ok"
    assert len(record["metrics"]["total_ms"]) == 6
    assert "pair_asked_bytes" in record["metrics"]
