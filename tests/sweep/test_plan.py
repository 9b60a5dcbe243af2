"""A plan orders the work, deals it to shards and slots, and leaves out what cannot run."""

import dataclasses
import itertools
import json

import pytest

import cheap
from lib import catalog
from lib.instruments.device import Cuda
from lib.sweep import plan, sweep_file
from lib.sweep.__main__ import main
from lib.sweep.shard import Shard

TEXT = """
rounds: 2
cheap:
  - {number: [5, 1, 3], pause_ms: [2, 1]}
  - {number: [10, 11], tier: 2, rounds: 1}
  - {number: [20, 21], behaviour: kill, fresh: [number]}
"""


def planned(here, text=TEXT, shard=None, slots=1):
    here.write(text)
    return plan.make(sweep_file.load("cheap"), shard or Shard(), slots)


def numbers(job):
    return [entry.case["number"] for entry in job.entries]


def test_tiers_come_before_rounds_and_fresh_values_have_kernels_of_their_own(here):
    jobs = planned(here).jobs
    assert [(job.round, sorted(numbers(job))) for job in jobs] == [
        (1, [1, 1, 3, 3, 5, 5]), (1, [20]), (1, [21]), (2, [1, 1, 3, 3, 5, 5]), (2, [20]), (2, [21]), (1, [10, 11]),
    ]  # fmt: skip
    assert numbers(jobs[0]) == [5, 5, 1, 1, 3, 3]  # the first round is in the order of the file
    assert numbers(jobs[3]) != numbers(jobs[0])


def test_the_smallest_case_of_the_first_block_comes_first(here):
    (first,) = planned(here).first
    assert first.round == 1
    (entry,) = first.entries
    assert (entry.case["number"], entry.case["pause_ms"]) == (1, 1)


@pytest.mark.parametrize("count", [2, 20])
def test_shards_have_all_cases_once_and_all_rounds_of_each(here, count):
    def cases(plan):
        return sorted((job.round, json.dumps(entry.case)) for job in plan.jobs for entry in job.entries)

    shards = [cases(planned(here, shard=Shard(number, count))) for number in range(1, count + 1)]
    assert sorted(itertools.chain(*shards)) == cases(planned(here))
    for shard in shards:
        later = {case for round, case in shard if round == 2}
        assert later <= {case for round, case in shard if round == 1}


@pytest.mark.parametrize(
    ("device", "alone", "parts"),
    [("cuda", False, [[0, 2, 4], [1, 3]]), ("cuda", True, [[0, 1, 2, 3, 4]]), ("cpu", False, [[0, 1, 2, 3, 4]])],
)
def test_slots_share_the_cases_unless_the_whole_machine_is_needed(here, monkeypatch, device, alone, parts):
    monkeypatch.setitem(catalog.CATALOG, "cheap", dataclasses.replace(cheap.ENTRY, alone=alone))
    monkeypatch.setattr(plan.environment, "machine", lambda device: "a-gpu")
    entries = [plan.Entry("cheap", {"number": number}, {}, 0.1, 1) for number in range(5)]
    jobs = plan._jobs("cheap", 1, device, [entries], 2)
    assert [numbers(job) for job in jobs] == parts
    assert {job.alone for job in jobs} == {alone or device == "cpu"}


def test_what_the_machine_cannot_run_is_left_out_with_its_reason(here, monkeypatch, capsys):
    needing = "{number: 3, needs: cuda}, {number: 4, needs: emulated_bf16}"
    here.write(f"cheap: [{{number: 1}}, {{number: 2, behaviour: unavailable}}, {needing}]")
    monkeypatch.setattr(plan.processor, "emulates_bf16", lambda: False)
    assert main(["cheap", "--dry"]) == 0
    assert capsys.readouterr().out.splitlines()[:-1] == [
        "cheap 1-ok-1-cpu: left left left",
        "cheap 2-unavailable-1-cpu: left out: it says so",
        "cheap 3-ok-1-cpu: left out: it needs cuda",
        "cheap 4-ok-1-cpu: left out: for processors that only emulate bf16",
    ]


def test_gpus_of_the_first_ones_model_run_kernels_side_by_side(monkeypatch):
    monkeypatch.setattr(Cuda, "missing", lambda _: None)
    monkeypatch.setattr(Cuda, "models", lambda _: ["H200", "H200", "T4"])
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    assert plan.pins() == ["0", "1"]
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "4,6,7")
    assert plan.pins() == ["4", "6"]
