"""A slot is made for each GPU that measures the same machine, and each kernel is in one shard."""

import json
from types import SimpleNamespace

import pytest

from lib.instruments.device import Cuda
from lib.records import results
from lib.sweep import plan
from lib.sweep.lock import Shard

TASKS = [SimpleNamespace(device="cuda")]


@pytest.mark.parametrize(
    ("given", "names", "pins", "said"),
    [
        (None, ["A", "A"], ["0", "1"], ""),
        ("", ["A", "A"], ["0", "1"], ""),
        ("1, 0", ["A", "A"], ["1", "0"], ""),
        ("3,5,7", ["A", "T", "A"], ["3", "7"], "5"),  # another GPU
        ("0,1,-1,2", ["A", "A"], ["0", "1"], "-1, 2"),  # what follows a number that is none is not seen
        ("0,1,2,3", ["A", "A"], ["0", "1"], "2, 3"),  # more than there are
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


def task(round, cases, last):
    named = {results.called("attention", case, round): case for case in cases.values()}
    return plan.Task(
        "attention", {"round": round}, 60.0, "cpu", "test-1c", named, dict.fromkeys(named, 1), {}, {}, {}, "", last
    )
