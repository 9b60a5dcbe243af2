"""The supervisor hands jobs to free slots, keeps the records that come back, and repeats what a lost slot had."""

import itertools
import threading
from concurrent.futures import Future
from dataclasses import replace
from types import SimpleNamespace

import pytest

import cheap
from lib import records
from lib.sweep import plan, progress, run, sweep_file
from lib.sweep.ledger import Ledger
from lib.sweep.run import Message
from lib.sweep.shard import Shard
from lib.sweep.supervise import LOSSES, Box, Supervisor


def slot(loses=lambda number: False):
    """A slot that measures nothing: it gives records, and is lost with some numbers in hand."""

    def measured(job, deadline):
        for entry in job.entries:
            yield Message("begins", entry.label)
            if loses(entry.case["number"]):
                yield Message("lost", "its machine lost power")
                return
            record = cheap.record(entry.case, job.round, seconds=1.0)
            records.save(record)
            yield Message("record", record)

    return measured


@pytest.fixture
def jobs(here):
    here.write("rounds: 1\ncheap: [{number: [1, 2, 3, 4]}, {number: [5, 6], fresh: [number]}]")
    return plan.make(sweep_file.load("cheap"), Shard()).jobs


def supervised(jobs, boxes):
    shown = progress.Progress("cheap", Shard(), Ledger(jobs), len(boxes))
    supervisor = Supervisor(lambda: boxes, shown, float("inf"), stop=[])
    supervisor.run(jobs)
    shown.close("ended")
    return supervisor


def test_gpus_run_jobs_side_by_side_and_what_is_alone_gets_the_whole_machine(jobs):
    box = Box("whole", ["gpu 0", "gpu 1"])
    shared = replace(jobs[0], alone=False)
    assert box.free_slot(shared, busy={}) == "gpu 0"
    assert box.free_slot(shared, busy={"gpu 0": shared}) == "gpu 1"
    assert box.free_slot(shared, busy={"gpu 0": shared, "gpu 1": shared}) is None
    assert box.free_slot(shared, busy={"whole": jobs[0]}) is None
    assert box.free_slot(jobs[0], busy={"gpu 0": shared}) is None
    assert box.free_slot(jobs[0], busy={}) == "whole"


def test_what_a_lost_slot_had_is_measured_by_another(jobs):
    begun = []

    def loses(number):
        begun.append(number)
        return begun.count(3) == 1 and number == 3

    supervisor = supervised(jobs, [Box(slot(loses)), Box(slot(loses))])
    assert sorted(begun) == [1, 2, 3, 3, 4, 5, 6]
    assert supervisor.progress.ledger.counts() == {"ok": 6}
    assert supervisor.troubles == []
    assert progress.statuses()[-1].endswith(" cheap: 6 ok")


def test_a_case_that_loses_every_slot_has_crashed(jobs, capsys):
    supervisor = supervised(jobs, [Box(slot(lambda number: number == 3))])
    line = f"crashed: cheap 3-ok-1-cpu: {LOSSES} workers were lost with it in hand: its machine lost power"
    assert line in capsys.readouterr().out.splitlines()
    assert supervisor.progress.ledger.counts() == {"ok": 5, "crashed": 1}


def test_a_full_disk_ends_the_sweep(jobs):
    def full(job, deadline):
        raise records.CannotWrite("no space")
        yield

    with pytest.raises(records.CannotWrite, match="no space"):
        supervised(jobs, [Box(full)])


def test_an_error_of_a_slot_is_told_and_the_rest_is_measured(jobs):
    def wrong_once(job, deadline):
        if job.entries[0].case["number"] == 1:
            raise KeyError("a bug")
        yield from slot()(job, deadline)

    supervisor = supervised(jobs, [Box(wrong_once)])
    assert supervisor.troubles == ["cheap: KeyError: 'a bug'"]
    assert supervisor.progress.ledger.counts() == {"ok": 2, "left": 4}


def test_neither_a_jump_between_two_looks_nor_a_clock_set_back_is_run_time(jobs, monkeypatch):
    job = jobs[0]
    clock_s = itertools.count(step=3600)
    monkeypatch.setattr(run, "time", SimpleNamespace(monotonic=lambda: next(clock_s)))
    executing = Future()

    def execute(parameters, on_measure):
        on_measure()
        threading.Timer(1, end).start()
        return executing

    def end():
        for entry in job.entries:
            records.save(cheap.record(entry.case, 1, started="2001-01-01T00:00:00+00:00"))
        executing.set_result(None)

    followed = run._one_execution(job, list(job.entries), float("inf"), SimpleNamespace(execute=execute))
    assert [message.kind for message in followed] == ["begins", "record"] * len(job.entries)


def test_the_expected_end_comes_from_the_times_so_far(jobs):
    shown = progress.Progress("cheap", Shard(), Ledger(jobs), 1)
    assert shown.expected_end() == "no case has a time yet"
    record = cheap.record(jobs[0].entries[0].case, 1, seconds=120.0)
    shown.ends("slot", record)
    assert shown.expected_end() == "at least 10 min left"  # five more like it, whose kernels must start too
    shown.ends_first()
    shown.ends("slot", record | {"case": jobs[0].entries[1].case})
    shown.started -= 240  # twice as long as the case
    assert shown.expected_end().startswith("about 16 min left, until ")
