"""A plan orders the work, deals it to shards and slots, and leaves out what is done."""

import itertools
import json
import os

import pytest

from lib import catalog, records
from lib.instruments.device import Cpu
from lib.sweep import plan, sweep_file
from lib.sweep.plan import Ledger
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


def save(job, entry, status="ok", torch="", **metrics):
    environment = json.loads(os.environ["CHEAP_ENVIRONMENT"])
    if torch:
        environment["torch"] = torch
    record = records.create("cheap", entry.case, job.round, status, metrics, environment, seconds=2.0)
    return records.save(record)


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
    assert [(entry.case["number"], entry.case["pause_ms"]) for entry in first.entries] == [(1, 1)]


@pytest.mark.parametrize("count", [2, 3, 20])
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
    monkeypatch.setitem(catalog.CATALOG, "cheap", catalog.Experiment(title="Cheap", alone=alone))
    monkeypatch.setattr(plan.environment, "machine", lambda device: "a-gpu")
    entries = [plan.Entry({"number": number}, 0.1, 1) for number in range(5)]
    jobs = plan._jobs("cheap", 1, device, entries, 2)
    assert [numbers(job) for job in jobs] == parts
    assert {job.alone for job in jobs} == {alone or device == "cpu"}


def test_what_the_machine_cannot_run_is_left_out_with_its_reason(here, monkeypatch):
    needing = "{number: 3, needs: cuda}, {number: 4, needs: emulated_bf16}"
    text = f"cheap: [{{number: 1}}, {{number: 2, behaviour: unavailable}}, {needing}]"
    monkeypatch.setattr(plan.processor, "emulates_bf16", lambda: False)
    found = planned(here, text)
    assert {reason: [name.split("-")[0] for _, name in names] for reason, names in found.left_out.items()} == {
        "it says so": ["2"], "it needs cuda": ["3"], plan.NATIVE: ["4"],
    }  # fmt: skip
    listing = plan.table(found).to_string()
    assert "left out: it says so" in listing
    assert "none" in listing


def test_a_record_means_done_and_a_damaged_one_is_none(here):
    job = planned(here).jobs[0]
    ledger = Ledger()
    files = [save(job, entry) for entry in job.entries[:3]]
    assert ledger.left(job) == job.entries[3:]
    files[1].write_text(files[1].read_text()[:-20])
    with pytest.warns(UserWarning, match="skipped"):
        assert ledger.left(job) == (job.entries[1], *job.entries[3:])


def test_records_of_other_code_are_measured_again_once(here, monkeypatch):
    job = planned(here).jobs[0]
    file = save(job, job.entries[0])
    monkeypatch.setattr(records, "digest", lambda experiment: "0" * 16)
    ledger = Ledger()
    assert job.entries[0] in ledger.left(job)
    ledger.finished.add(file)
    assert job.entries[0] not in ledger.left(job)


def test_stale_measures_again_what_another_pytorch_measured(here):
    job = planned(here).jobs[0]
    save(job, job.entries[0], torch="0.1")
    assert job.entries[0] not in Ledger().left(job)
    assert job.entries[0] in Ledger(stale=True).left(job)


@pytest.mark.parametrize("status", ["failed", "crashed", "timeout", "oom"])
def test_what_ended_badly_is_repeated_by_retry_alone_and_not_tried_in_later_rounds(here, status):
    jobs = planned(here).jobs
    first, later = jobs[0], jobs[3]
    save(first, first.entries[0], status, limit_bytes=2**60, fresh=True)
    assert first.entries[0] not in Ledger().left(first)
    assert first.entries[0] not in Ledger().left(later)
    assert first.entries[0] in Ledger(retry=True).left(first)
    assert first.entries[0] in Ledger(retry=True).left(later)


def test_what_found_no_memory_is_tried_again_in_a_fresh_process_or_with_more_memory(here, monkeypatch):
    job = planned(here).jobs[0]
    save(job, job.entries[0], "oom", limit_bytes=2**60, fresh=False)
    save(job, job.entries[1], "oom", limit_bytes=8 * 2**30, fresh=True)
    monkeypatch.setattr(Cpu, "free_bytes", lambda _: 9 * 2**30)
    assert Ledger().left(job) == (job.entries[0], *job.entries[2:])
    monkeypatch.setattr(Cpu, "free_bytes", lambda _: 16 * 2**30)
    assert Ledger().left(job) == job.entries


def test_counts_are_those_of_the_records_and_of_what_is_left(here):
    jobs = planned(here, "rounds: 2\ncheap: {number: [1, 2, 3]}").jobs
    entries = {entry.case["number"]: entry for entry in jobs[0].entries}
    save(jobs[0], entries[1])
    save(jobs[0], entries[2], "failed", reason="x")
    # the failed case is not tried in round 2
    assert Ledger().counts(jobs) == {"ok": 1, "failed": 1, "left": 3}


def test_gpus_of_the_first_ones_model_run_kernels_side_by_side(monkeypatch):
    from lib.instruments.device import Cuda

    monkeypatch.setattr(Cuda, "missing", lambda _: None)
    monkeypatch.setattr(Cuda, "models", lambda _: ["H200", "H200", "T4"])
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    assert plan.pins() == ["0", "1"]
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "4,6,7")
    assert plan.pins() == ["4", "6"]
