"""A record means done, and the ledger tells what is left."""

import resource

import pytest
import torch

import cheap
from lib import records, watched
from lib.instruments.device import Cpu
from lib.sweep import plan, sweep_file
from lib.sweep.ledger import Ledger
from lib.sweep.shard import Shard


@pytest.fixture
def jobs(here):
    here.write("rounds: 2\ncheap: {number: [1, 2, 3]}")
    return plan.make(sweep_file.load("cheap"), Shard()).jobs


def save(job, entry, status="ok", **metrics):
    return records.save(cheap.record(entry.case, job.round, status, metrics))


def test_a_record_means_done_and_a_damaged_one_is_none(jobs):
    first, second, third = jobs[0].entries
    save(jobs[0], first)
    file = save(jobs[0], second)
    # a slot may end a second round before another one ends the first, which is measured all the same
    save(jobs[1], third, "failed")
    assert Ledger(jobs).left(jobs[0]) == (third,)
    file.write_text(file.read_text()[:-20])
    with pytest.warns(UserWarning, match="damaged, so measured again"):
        assert Ledger(jobs).left(jobs[0]) == (second, third)


def test_records_of_other_code_are_measured_again_once(jobs, monkeypatch):
    entry = jobs[0].entries[0]
    file = save(jobs[0], entry)
    monkeypatch.setattr(watched, "digest", lambda experiment: "0" * 16)
    ledger = Ledger(jobs)
    assert entry in ledger.left(jobs[0])
    ledger.finish(entry.label, records.read(file))
    assert entry not in ledger.left(jobs[0])


def test_stale_measures_again_what_another_pytorch_measured(jobs, monkeypatch):
    entry = jobs[0].entries[0]
    save(jobs[0], entry)
    monkeypatch.setattr(torch, "__version__", "0.1")
    assert entry not in Ledger(jobs).left(jobs[0])
    assert entry in Ledger(jobs, other_torch=True).left(jobs[0])


@pytest.mark.parametrize("status", ["failed", "crashed", "timeout", "oom"])
def test_what_ended_badly_is_repeated_by_retry_alone_and_not_tried_in_later_rounds(jobs, status):
    entry = jobs[0].entries[0]
    save(jobs[0], entry, status, limit_bytes=2**60)
    for job in jobs:
        assert entry not in Ledger(jobs).left(job)
        assert entry in Ledger(jobs, retry=True).left(job)


def test_what_found_no_memory_is_tried_again_in_a_new_process_or_with_more_memory(jobs, monkeypatch):
    first, *others = jobs[0].entries
    save(jobs[0], first, "oom", fresh=False)
    assert first in Ledger(jobs).left(jobs[0])
    save(jobs[0], first, "oom", limit_bytes=8 * 2**30)
    monkeypatch.setattr(Cpu, "free_bytes", lambda _: 7 * 2**30)
    assert Ledger(jobs).left(jobs[0]) == tuple(others)
    monkeypatch.setattr(Cpu, "free_bytes", lambda _: 16 * 2**30)
    assert Ledger(jobs).left(jobs[0]) == jobs[0].entries
    # which the user does not offer
    monkeypatch.setattr(resource, "getrlimit", lambda _: (8 * 2**30, resource.RLIM_INFINITY))
    assert Ledger(jobs).left(jobs[0]) == tuple(others)
