"""A slot is made for each GPU that measures the same machine, and each kernel is in one shard."""

import json
from dataclasses import replace
from types import SimpleNamespace

import pytest

from lib.instruments import allocator, device, processor
from lib.instruments.device import Cpu, Cuda
from lib.records import results
from lib.sweep import __main__, plan
from lib.sweep.lock import Shard

TASKS = [SimpleNamespace(device="cuda")]


@pytest.mark.parametrize(
    ("given", "names", "pins", "said"),
    [
        (None, ["A", "A"], ["0", "1"], ""),
        ("1, 0", ["A", "A"], ["1", "0"], ""),
        ("3,5,7", ["A", "T", "A"], ["3", "7"], "5"),  # another GPU
        ("0,1,-1,2", ["A", "A"], ["0", "1"], "-1, 2"),  # what follows a number that is none is not seen
        ("GPU-a,GPU-b", ["A", "A"], ["GPU-a", "GPU-b"], ""),
        ("MIG-a,MIG-b", ["A"], ["MIG-a", "MIG-b"], ""),  # of which a process sees but one
        ("0", [], [], "0"),
    ],
)
def test_each_gpu_that_is_here_and_like_the_first_is_a_slot(monkeypatch, capsys, given, names, pins, said):
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    if given is not None:
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", given)
    monkeypatch.setattr(Cuda, "models", lambda _: names)
    assert plan.pins(TASKS) == pins
    lines = capsys.readouterr().err.splitlines()
    assert [line.startswith(f"left out: GPU {said}, not") for line in lines] == [True] * bool(said)


def test_no_slot_is_made_for_a_gpu_that_nothing_asks_for(monkeypatch):
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "0,1")
    assert plan.pins([SimpleNamespace(device="cpu")]) == []


def test_shards_are_disjoint_complete_and_hold_all_rounds_of_a_kernel():
    tasks = plan.planned("smoke") + plan.planned("smoke")
    for count in (1, 2, 3, 50):
        parts = [plan.in_shard(tasks, Shard(number, count)) for number in range(1, count + 1)]
        assert sorted(id(task) for part in parts for task in part) == sorted(map(id, tasks))
        kernels = [{json.dumps(task.parameters | {"round": 0}) + task.experiment for task in part} for part in parts]
        assert sum(map(len, kernels)) == len(set().union(*kernels))


def test_a_case_takes_as_long_as_its_record_of_the_same_round_or_else_of_another(save_record, tmp_path, monkeypatch):
    monkeypatch.setattr(results, "REFERENCE", tmp_path / "reference")
    names = {round: save_record(round=round, seconds=10.0 * round).stem for round in (1, 3, 12)}
    took = {round: plan.earlier_s(f"attention/{name}") for round, name in names.items()}
    assert took == {1: 10, 3: 30, 12: 120}
    unmeasured = f"attention/{names[1].removesuffix('1')}2"
    assert plan.earlier_s(unmeasured) in took.values()
    assert plan.earlier_s(unmeasured, "test-2c") is None


def test_tiers_come_before_rounds_and_these_before_what_needs_the_whole_machine(planted, monkeypatch):
    adam = "[{num_params: 1, param_size: 8, tier: 2}, {num_params: 2, param_size: 8}]"
    planted("tiers", f"rounds: 2\nadam: {adam}\nceilings: {{operation: copy, rows: 8}}")
    monkeypatch.setattr(plan.Task, "alone", property(lambda task: task.experiment == "ceilings"))
    order = [(task.tier, task.round, task.experiment) for task in plan.planned("tiers")]
    assert order == [
        (1, 1, "ceilings"), (1, 1, "adam"), (1, 2, "ceilings"), (1, 2, "adam"), (2, 1, "adam"), (2, 2, "adam"),
    ]  # fmt: skip


def test_a_noisy_case_gets_one_round_more(save_record, own_results):
    calm, noisy = {"variant": "naive", "seq_len": 64}, {"variant": "sdpa", "seq_len": 64}
    for round in (1, 2):
        for each, percent in ((calm, 1.0), (noisy, 60.0 if round == 1 else 1.0)):
            around = {"others_percent": percent}
            save_record(case=each, round=round, total_ms=[1.0] * 8, noise_probe_ms=[1.0] * 20, environment=around)
    tasks = [task(round, {"naive": calm, "sdpa": noisy}, last=round == 2) for round in (1, 2)]
    (more,) = plan.further_rounds(tasks)
    assert (more.round, list(more.cases.values())) == (3, [noisy])
    assert more.todo() == ["attention/sdpa-64.r3"]


def test_cases_in_bf16_or_others_in_their_place_are_left_out_by_what_the_processor_can_do(planted, monkeypatch):
    blocks = ("64, precision: [fp32, bf16], needs: bf16", "32, precision: bf16", "16, needs: emulated_bf16")
    planted("both", f"attention: [{', '.join(f'{{variant: naive, seq_len: {block}}}' for block in blocks)}]")
    for emulates, counts in ((True, [1, 1, 1]), (False, [2, 1, 0])):
        monkeypatch.setattr(processor, "emulates_bf16", lambda so=emulates: so)
        assert [len(task.todo()) for task in plan.planned("both")] == counts


@pytest.mark.parametrize("chosen", ["keeps", "default"])
def test_records_that_no_kernel_writes_name_the_allocator_of_the_others(planted, monkeypatch, chosen):
    monkeypatch.setenv("ALLOCATOR", chosen)
    monkeypatch.setattr(allocator, "can_keep", lambda: True)
    plan._environment.cache_clear()
    planted("one", "attention: {variant: naive, seq_len: 64}")
    assert plan.planned("one")[0].environment["allocator"] == chosen
    plan._environment.cache_clear()


class Small(Cpu):
    def total_bytes(self):
        return 1000

    def free_bytes(self):
        return 500


def test_a_dry_run_tells_what_can_never_fit_and_what_has_no_room_now(monkeypatch, own_results):
    monkeypatch.setitem(device.KINDS, "cpu", Small())
    predicted = {"attention/naive-64.r1": 450, "attention/sdpa-64.r1": 451, "attention/tiled-64.r1": 901}
    cases = {name: {"variant": name, "seq_len": 64} for name in ("naive", "sdpa", "tiled")}
    one = replace(task(1, cases, last=True), predicted=predicted)
    *rows, totals = plan.dry([one]).splitlines()
    fates = {"naive": "runs", "sdpa": "no room now", "tiled": "too large"}
    assert all(any(f"{name}-64" in row and fate in row for row in rows) for name, fate in fates.items())
    assert set(totals.partition("MiB: ")[2].split("; ")) == {f"{fate}: 1" for fate in fates.values()}


@pytest.mark.parametrize(
    ("metrics", "around", "again"),
    [
        ({"asked_bytes": 91 * 2**20}, {"memory_mib": 100}, False),
        ({"asked_bytes": 89 * 2**20}, {"memory_mib": 100}, True),
        ({"asked_bytes": 89 * 2**20}, {"memory_mib": 200, "gpu_memory_mib": 90}, False),
        ({}, {"memory_mib": 100}, True),  # the system killed its process
    ],
)
def test_a_retry_leaves_what_asked_for_more_than_the_machine_has(save_record, metrics, around, again):
    case = {"variant": "naive", "seq_len": 64}
    save_record(case=case, status="oom", environment=around, **metrics)
    one = task(1, {"naive": case}, last=True)
    assert one.todo() == []
    assert one.todo(frozenset(__main__.AGAIN["retry"])) == (["attention/naive-64.r1"] if again else [])


def test_the_summary_counts_and_lists_what_failed_and_what_had_no_room(save_record):
    cases = {name: {"variant": name, "seq_len": 64} for name in ("naive", "sdpa", "tiled")}
    save_record(case=cases["naive"], total_ms=[1.0])
    save_record(case=cases["sdpa"], status="failed", reason="KeyError: 'a bug'")
    save_record(case=cases["tiled"], status="no_room", predicted_bytes=2, available_bytes=1)
    counts, *listed = plan.summary([task(1, cases, last=True)]).splitlines()
    assert set(counts.split("  ")) == {"ok: 1", "failed: 1", "no_room: 1"}
    assert [line.split()[:3] for line in listed[1:]] == [
        ["failed", "attention", "sdpa-64"], ["no_room", "attention", "tiled-64"]
    ]  # fmt: skip


def task(round, cases, last):
    named = {results.called("attention", case, round): case for case in cases.values()}
    return plan.Task(
        "attention", {"round": round}, 60.0, "cpu", "test-1c", named, dict.fromkeys(named, 1), {}, {}, "", last
    )
