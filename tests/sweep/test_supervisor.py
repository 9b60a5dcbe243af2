"""A supervisor takes what is true, refuses what is not, and hands out what is left; the slots here are pretended."""

import json
import math
from collections import deque
from dataclasses import replace

import pytest

from lib import paths
from lib.records import atomic, record, results
from lib.sweep import __main__, acceptance, lock
from lib.sweep.plan import Task
from lib.sweep.progress import Progress
from lib.sweep.run import Piece
from lib.sweep.supervisor import Box, SlotLost, Supervisor

MACHINE, CODE = "test-1c", "c0de" * 4
STEP = {"size": "tiny", "precision": "fp32", "mode": "train_step"}
TIMES = {"forward_ms": [1.0, 2.0], "backward_ms": [2.0, 4.0], "optimizer_ms": [1.0, 1.0], "total_ms": [4.0, 7.0]}


def made(case, experiment="step", round=1, code=CODE, machine=MACHINE, status="ok", **metrics):
    around = {"machine": machine, "hardware": "a test"}
    return record.create(
        experiment=experiment, case=case, round=round, status=status, metrics=metrics or {"total_ms": [1.0]},
        environment=around, code=code, started="2026-01-01T00:00:00+00:00", seconds=1.0,
    )  # fmt: skip


def task(*cases, experiment="step", device="cpu", round=1):
    named = {record.called(experiment, case, round): case for case in cases}
    return Task(
        experiment, {"round": round}, 10.0, device, MACHINE, named, predicted={}, too_large={}, unavailable={},
        environment={"machine": MACHINE, "hardware": "a test"}, code=CODE, last=round == 2,
    )  # fmt: skip


NAME = record.called("step", STEP, 1)


def test_the_record_that_was_asked_for_is_accepted():
    acceptance.check(json.loads(made(STEP, **TIMES)), task(STEP), NAME)


@pytest.mark.parametrize(
    ("changed", "said"),
    [
        ({"machine": "other-1c"}, "machine: expected"),
        ({"code": "0" * 16}, "code: expected"),
        ({"round": 2}, "case: expected"),
        ({"experiment": "warmup"}, "case: expected"),
        ({"case": STEP | {"size": "small"}}, "case: expected"),
        ({"total_ms": [4.0, 7.1]}, "to add up to its total"),
        ({"backward_ms": [2.0]}, "every phase in every iteration"),
    ],
)
def test_a_record_that_is_another_or_cannot_be_true_is_refused(changed, said):
    given = {"case": STEP, **TIMES, **changed}
    with pytest.raises(ValueError, match=said):
        acceptance.check(json.loads(made(given.pop("case"), **given)), task(STEP), NAME)


def test_a_step_above_the_ceiling_is_accepted_since_the_ceiling_may_not_be_measured_yet(save_record):
    for rows in (8, 16):
        product = {"operation": "matmul", "rows": rows, "columns": 8, "precision": "fp32", "device": "cpu"}
        save_record(experiment="ceilings", case=product, machine=MACHINE, flops=1e9, total_ms=[1.0, 1.0, 1.0])
    acceptance.check(json.loads(made(STEP, total_ms=[3.0], forward_flops=2e9)), task(STEP), NAME)


class Pretended:
    """A slot that plays, run by run, what it is given: functions of a run that yield pieces."""

    def __init__(self, *plays):
        self.plays, self.runs = deque(plays), []

    def pieces(self, run):
        self.runs.append(run)
        yield from self.plays.popleft()(run)


def well(run):
    """Every case that is to be done, and the end."""
    for name in run.todo:
        yield Piece("record", name, made({"n": int(name.split("/")[1][0])}))
    yield Piece("end", "complete")


def dies(run):
    yield Piece("end", "died")


def lost(run):
    raise SlotLost("the box is gone")
    yield


@pytest.fixture
def supervise(own_results):
    """Supervise tasks on boxes of such slots until they are done."""

    def supervise(tasks, *boxes, again=frozenset()):
        own_results.mkdir(exist_ok=True)
        queue = deque(tasks)
        made_boxes = [Box(queue, whole, list(slots)) for whole, *slots in boxes]
        known = {(one.machine, name): None for one in tasks for name in one.todo(again)}
        progress = Progress(own_results, lock.WHOLE, "pretended", 0, known, 1)
        found = Supervisor(made_boxes, progress, math.inf, again)
        found.run()
        progress.close("done")
        return found

    return supervise


def statuses(*tasks):
    return [one.status(name) for one in tasks for name in one.cases]


def test_a_refused_record_is_set_aside_tried_again_and_then_given_up(supervise):
    def other_code(run):
        yield Piece("record", run.todo[0], made({"n": 1}, code="0" * 16))
        yield from well(replace(run, todo=run.todo[1:]))

    one = task({"n": 1}, {"n": 2})
    slot = Pretended(other_code, lambda run: other_code(replace(run, todo=run.todo[:1])))
    found = supervise([one], [slot])
    assert statuses(one) == [None, "ok"]
    assert [run.todo for run in slot.runs] == [("step/1.r1", "step/2.r1"), ("step/1.r1",)]
    assert len(list(paths.results().glob("*/*/*.refused"))) == 2
    (failure,) = found.failures
    assert "step/1.r1: its record was refused: code: expected" in failure


@pytest.mark.parametrize(("end", "status", "failures"), [("died", "crashed", 1), ("oom", "oom", 0)])
@pytest.mark.parametrize("times", [1, 2])
def test_a_case_whose_process_ends_badly_twice_is_a_row_and_the_rest_is_measured(
    supervise, times, end, status, failures
):
    """And no failure of the sweep where it was the system that killed for want of memory."""
    one = task({"n": 1}, {"n": 2})
    found = supervise([one], [Pretended(*[lambda run: iter([Piece("end", end)])] * times, well)])
    assert statuses(one) == (["ok", "ok"] if times == 1 else [status, "ok"])
    assert len(found.failures) == (failures if times == 2 else 0)


def test_a_run_is_told_whether_a_round_follows(supervise):
    last = Piece("record", "step/1.r2", made({"n": 1}, round=2)), Piece("end", "complete")
    slot = Pretended(well, lambda run: iter(last))
    supervise([task({"n": 1}), task({"n": 1}, round=2)], [slot])
    assert [run.variables for run in slot.runs] == [{"SWEEP_ROUND_FOLLOWS": "1"}, {}]


def test_a_case_that_takes_too_long_is_a_row_at_once(supervise):
    one = task({"n": 1}, {"n": 2})
    found = supervise([one], [Pretended(lambda run: iter([Piece("end", "timeout")]), well)])
    assert statuses(one) == ["timeout", "ok"]
    assert len(found.failures) == 1


def test_a_notebook_that_comes_to_its_end_without_a_record_is_a_failure(supervise):
    one = task({"n": 1})
    found = supervise([one], [Pretended(lambda run: iter([Piece("end", "complete")]))])
    assert statuses(one) == [None]
    (failure,) = found.failures
    assert failure.startswith("step: the notebook made no record; see ")


def test_what_ran_at_a_slot_that_is_lost_goes_to_another_box(supervise):
    one = task({"n": 1})
    gone, other = Pretended(lost), Pretended(well)
    found = supervise([one], [gone], [other])
    assert statuses(one) == ["ok"]
    assert not found.failures
    assert len(other.runs) == 1


def test_where_the_last_slot_is_lost_the_sweep_says_so(supervise):
    found = supervise([task({"n": 1})], [Pretended(lost)])
    assert any("no machine of this kind is left" in failure for failure in found.failures)


def test_where_the_last_slot_is_lost_after_all_of_its_run_what_waits_is_not_forgotten(supervise):
    def lost_in_the_end(run):
        yield from list(well(run))[:-1]
        raise SlotLost("the box is gone")

    first, waiting = task({"n": 1}), task({"n": 2}, experiment="attention")
    found = supervise([first, waiting], [Pretended(lost_in_the_end)])
    assert statuses(first, waiting) == ["ok", None]
    assert found.failures == ["attention: no machine of this kind is left: the box is gone"]


def raises(run):
    yield Piece("end", "failed", b"WrongResult: too far off")


def test_an_exception_costs_the_case_in_hand_alone(supervise):
    def raises_at_the_second(run):
        yield from list(well(replace(run, todo=run.todo[:1])))[:-1]
        yield from raises(run)

    one = task({"n": 1}, {"n": 2}, {"n": 3})
    slot = Pretended(raises_at_the_second, well)
    found = supervise([one], [slot])
    assert statuses(one) == ["ok", None, "ok"]
    assert [run.todo for run in slot.runs][1] == ("step/3.r1",)
    assert found.failures == ["WrongResult: too far off"]


def failing(*reasons):
    """Fails the cases in hand for these reasons, one a run; then a run goes well."""

    def fails(reason):
        def play(run):
            experiment, name = run.todo[0].split("/")
            case, round = {"n": int(name[0])}, int(name[-1])
            yield Piece("record", run.todo[0], made(case, experiment, round, status="failed", reason=reason))
            yield Piece("end", "complete")

        return play

    return [*map(fails, reasons), well]


def test_a_case_that_fails_is_a_row_and_a_line_and_costs_itself_alone(supervise):
    one = task({"n": 1}, {"n": 2}, {"n": 3})
    found = supervise([one], [Pretended(*failing("WrongResult: out: got 1, expected at most 0.1"))])
    assert statuses(one) == ["failed", "ok", "ok"]
    assert found.failures == ["step/1.r1: WrongResult: out: got 1, expected at most 0.1"]
    assert found.progress.failed == 1


def test_a_record_of_a_failed_case_without_a_reason_is_refused():
    with pytest.raises(ValueError, match=r"metrics\.reason: expected a text"):
        record.parse(made(STEP, status="failed", total_ms=[1.0]))


ALIKE = [f"InductorError: no kernel {n}.5e-{n}, in c{n} | at {'abcdefgh'[n]}" for n in range(6)]


@pytest.mark.parametrize(
    ("reasons", "succeeded", "left"),
    [
        (ALIKE[:5], (), 2),
        (ALIKE[:4], (), 0),
        ([*ALIKE[:4], "ValueError: other"], (), 0),
        (ALIKE[:5], (9,), 0),
    ],
)
def test_a_kernel_is_given_up_after_five_cases_failed_alike_and_none_succeeded(supervise, reasons, succeeded, left):
    one, other = task(*({"n": n} for n in (*succeeded, *range(1, 8)))), task({"n": 8}, experiment="attention")
    for n in succeeded:
        results.folder().joinpath(MACHINE, "step").mkdir(parents=True)
        results.write(made({"n": n}))

    def well_elsewhere(run):
        yield Piece("record", run.todo[0], made({"n": 8}, "attention"))
        yield Piece("end", "complete")

    plays = failing(*reasons)[: None if left == 0 else -1]
    found = supervise([one, other], [Pretended(*plays, well_elsewhere)])
    ended = ["failed"] * len(reasons) + [None if left else "ok"] * (7 - len(reasons))
    assert statuses(one, other) == ["ok"] * len(succeeded) + ended + ["ok"]
    lines = [line for line in found.failures if "left out" in line]
    assert lines == ["step: left out after 5 failed alike: 2"] * bool(left)
    assert len(found.failures) == len(reasons) + len(lines)
    assert not found.progress.left


RETRIED = frozenset(__main__.AGAIN["retry"])


def test_a_failed_case_is_left_alone_until_a_retry_and_then_tried_once(supervise):
    first, second = task({"n": 1}), task({"n": 1}, round=2)
    for again in (frozenset(), RETRIED):
        slot = Pretended(*failing("KeyError: 'a bug'"))
        found = supervise([first, second], [slot], again=again)
        assert len(slot.runs) == len(found.failures) == 1  # not in round 2, also where round 1 was a retry
        assert statuses(first, second) == ["failed", None]
        assert supervise([first, second], [Pretended()]).failures == []
    assert first.todo(RETRIED) == ["step/1.r1"]


def test_a_case_without_room_is_tried_once_a_run_and_again_in_the_next_round_and_run(supervise):
    def no_room(run):
        made_now = made({"n": 1}, round=1, status="no_room", predicted_bytes=2, available_bytes=1)
        yield Piece("record", "step/1.r1", made_now)
        yield Piece("end", "complete")

    def well_in_round_2(run):
        yield Piece("record", "step/1.r2", made({"n": 1}, round=2))
        yield Piece("end", "complete")

    first, second = task({"n": 1}), task({"n": 1}, round=2)
    found = supervise([first, second], [Pretended(no_room, well_in_round_2)])
    assert (statuses(first, second), found.failures) == (["no_room", "ok"], [])
    supervise([first, second], [Pretended(well)])
    assert statuses(first, second) == ["ok", "ok"]


def test_a_kernel_that_cannot_write_ends_the_sweep_in_that_line(supervise):
    said = b"CannotWrite: /tmp/x: cannot be written, the disk is full, in step.ipynb; see step-r1.ipynb"
    with pytest.raises(atomic.CannotWrite, match=r"^/tmp/x: cannot be written, the disk is full"):
        supervise([task({"n": 1})], [Pretended(lambda run: iter([Piece("end", "failed", said)]))])


def test_a_notebook_that_raises_before_any_record_is_tried_twice_and_then_left(supervise):
    one, other = task(*({"n": n} for n in range(1, 6))), task({"n": 6})
    slot = Pretended(raises, raises, well)
    found = supervise([one, other], [slot])
    assert statuses(one, other) == [None] * 5 + ["ok"]
    assert len(found.failures) == 2


def test_what_becomes_of_a_case_is_not_told_of_one_that_was_refused_before_it(supervise):
    def refused_and_late(run):
        yield Piece("record", run.todo[0], made({"n": 1}, code="0" * 16))
        yield Piece("end", "timeout")

    one = task({"n": 1}, {"n": 2})
    found = supervise([one], [Pretended(refused_and_late, well)])
    assert statuses(one) == ["ok", "timeout"]
    assert found.failures == ["step/2.r1: took longer than 10 s"]


def test_a_run_whose_only_record_is_refused_is_tried_again(supervise):
    def refused(run):
        yield Piece("record", run.todo[0], made({"n": 1}, code="0" * 16))
        yield Piece("end", "complete")

    one = task({"n": 1})
    found = supervise([one], [Pretended(refused, well)])
    assert (statuses(one), found.failures) == (["ok"], [])


def test_what_needs_the_whole_machine_waits_for_it_and_the_rest_has_a_gpu_each(supervise):
    alone = task({"n": 1}, device="cpu")
    side_by_side = [task({"n": n}, device="cuda") for n in (2, 3)]
    whole, first, second = Pretended(well), Pretended(well), Pretended(well)
    supervise([alone, *side_by_side], [whole, first, second])
    assert statuses(alone, *side_by_side) == ["ok"] * 3
    assert [len(slot.runs) for slot in (whole, first, second)] == [1, 1, 1]


def test_a_case_that_is_too_large_is_a_row_without_a_process(supervise):
    one = replace(task({"n": 1}), too_large={"step/1.r1": {"predicted_bytes": 2, "available_bytes": 1}})
    slot = Pretended()
    supervise([one], [slot])
    assert statuses(one) == ["too_large"]
    assert not slot.runs


def test_stale_records_and_crashes_are_made_anew_when_asked_for(supervise):
    one = task({"n": 1}, {"n": 2})
    assert one.todo(frozenset({"stale"})) == ["step/1.r1", "step/2.r1"]  # neither has a record yet
    supervise([one], [Pretended(dies, dies, well)])
    assert statuses(one) == ["crashed", "ok"]
    assert one.todo() == []
    assert one.todo(frozenset({"crashed"})) == ["step/1.r1"]
    assert one.todo(frozenset({"stale"})) == ["step/1.r1", "step/2.r1"]  # its code is none of today's
    supervise([one], [Pretended(well)], again=frozenset({"crashed"}))
    assert statuses(one) == ["ok", "ok"]
    assert len(list(results.folder().glob("*/*/*.json"))) == 2


def test_a_run_that_breaks_in_its_thread_fails_the_sweep_in_a_line(supervise):
    def breaks(run):
        raise RuntimeError("a bug of the runner")
        yield

    found = supervise([task({"n": 1})], [Pretended(breaks)])
    assert found.failures == ["RuntimeError: a bug of the runner"]
