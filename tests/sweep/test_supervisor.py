"""A supervisor takes what is true, refuses what is not, and hands out what is left; the slots here are pretended."""

import json
import math
from collections import deque
from dataclasses import replace

import pytest

from lib import paths
from lib.records import atomic, record, results
from lib.sweep import __main__, lock, supervisor
from lib.sweep.plan import Task
from lib.sweep.progress import Progress
from lib.sweep.run import Piece
from lib.sweep.supervisor import Box, SlotLost, Supervisor

MACHINE, CODE = "test-1c", "c0de" * 4
STEP = {"size": "tiny", "precision": "fp32", "mode": "train_step"}
TIMES = {"forward_ms": [1.0, 2.0], "backward_ms": [2.0, 4.0], "optimizer_ms": [1.0, 1.0], "total_ms": [4.0, 7.0]}


def made(case, experiment="step", round=1, code=CODE, machine=MACHINE, status="ok", torch=None, **metrics):
    around = {"machine": machine, "hardware": "a test"} | ({"torch": torch} if torch else {})
    return record.create(
        experiment=experiment, case=case, round=round, status=status, metrics=metrics or {"total_ms": [1.0]},
        environment=around, code=code, started="2026-01-01T00:00:00+00:00", seconds=1.0,
    )  # fmt: skip


def task(*numbers, experiment="step", device="cpu", round=1):
    """A task with a case for each number."""
    named = {record.called(experiment, {"n": n}, round): {"n": n} for n in numbers}
    return Task(
        experiment, {"round": round}, 10.0, device, MACHINE, named, predicted={}, unavailable={},
        environment={"machine": MACHINE, "hardware": "a test"}, code=CODE, last=round == 2,
    )  # fmt: skip


@pytest.mark.parametrize(
    ("changed", "said"),
    [
        ({"machine": "other-1c"}, "machine: expected"),
        ({"torch": "1.0"}, "torch: expected"),
        ({"code": "0" * 16}, "code: expected"),
        ({"round": 2}, "case: expected"),
        ({"experiment": "warmup"}, "case: expected"),
        ({"case": STEP | {"size": "small"}}, "case: expected"),
        ({"total_ms": [4.0, 7.1]}, "to add up to its total"),
        ({"backward_ms": [2.0]}, "every phase in every iteration"),
    ],
)
def test_only_the_record_that_was_asked_for_and_can_be_true_is_accepted(changed, said):
    name = record.called("step", STEP, 1)
    asked, given = replace(task(), cases={name: STEP}), {"case": STEP, **TIMES}
    supervisor.check(json.loads(made(**given)), asked, name)
    with pytest.raises(ValueError, match=said):
        supervisor.check(json.loads(made(**given | changed)), asked, name)


class Pretended:
    """A slot that plays in each run what it is given, a list of steps.

    A step is how the record of the next case differs from a good one, a piece, or an exception; `...` is a good record
    of every case that is left."""

    def __init__(self, *plays):
        self.plays, self.runs = deque(plays), []

    def __call__(self, run):
        self.runs.append(run)
        names = iter(run.todo)
        for step in self.plays.popleft():
            if isinstance(step, Exception):
                raise step
            if isinstance(step, Piece):
                yield step
            else:
                yield from (of(name) for name in names) if step is ... else [of(next(names), **step)]


def of(name, **others):
    """The piece with the record of this name."""
    experiment, rest = name.split("/")
    return Piece("record", name, made({"n": int(rest[0])}, experiment, int(rest[-1]), **others))


def fails(reason):
    """A run whose first case fails for this reason."""
    return [{"status": "failed", "reason": reason}, END]


END, DIED, OOM, LATE = (Piece("end", name) for name in ("complete", "died", "oom", "timeout"))
RAISED = "WrongResult: too far off"
RAISES = Piece("end", "failed", RAISED.encode())
WELL, REFUSED, LOST = [..., END], {"code": "0" * 16}, SlotLost("the box is gone")
WHY_REFUSED = f"its record was refused: code: expected {CODE}; did the code change while the sweep ran?"


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


@pytest.mark.parametrize(
    ("plays", "expected", "failures"),
    [
        ([[DIED], WELL], ["ok"] * 3, []),
        ([[DIED], [DIED], WELL], ["crashed", "ok", "ok"], ["step/1.r1: its process died"]),
        ([[OOM], WELL], ["ok"] * 3, []),
        ([[OOM], [OOM], WELL], ["oom", "ok", "ok"], []),  # no failure: the system wanted memory
        ([[LATE], WELL], ["timeout", "ok", "ok"], ["step/1.r1: took longer than 10 s"]),
        ([[{}, RAISES], WELL], ["ok", None, "ok"], [RAISED]),
        ([[RAISES], [RAISES]], [None] * 3, [RAISED] * 2),  # no record in two runs: the rest is left
        ([fails("KeyError: 'x'"), WELL], ["failed", "ok", "ok"], ["step/1.r1: KeyError: 'x'"]),
        ([[REFUSED, ..., END], WELL], ["ok"] * 3, []),
        ([[REFUSED, ..., END], [REFUSED, END]], [None, "ok", "ok"], [f"step/1.r1: {WHY_REFUSED}"]),
        ([[REFUSED, LATE], WELL], ["ok", "timeout", "ok"], ["step/2.r1: took longer than 10 s"]),
        ([[RuntimeError("a bug of the runner")], WELL], [None, "ok", "ok"], ["RuntimeError: a bug of the runner"]),
    ],
)
def test_a_run_that_ends_badly_costs_the_case_in_hand_at_most(supervise, plays, expected, failures):
    first, second = task(1, 2, 3), task(4)
    found = supervise([first, second], [Pretended(*plays, WELL)])
    assert (statuses(first), statuses(second), found.failures) == (expected, ["ok"], failures)
    assert (found.progress.left, found.progress.failed) == (set(), len(failures))
    assert len(list(paths.results().glob("*/*/*.refused"))) == sum(REFUSED in play for play in plays)


@pytest.mark.parametrize(
    ("play", "status", "said"),
    [
        ([END], None, "step: the notebook made no record; see "),
        ([{}, DIED], "ok", "step: process died after its last record; see "),
        ([{}, LATE], "ok", "step: the notebook did not end after its last record; see "),
    ],
)
def test_an_end_that_is_no_cases_fault_is_a_failure_that_names_the_notebook(supervise, play, status, said):
    first, second = task(1), task(2)
    found = supervise([first, second], [Pretended(play, WELL)])
    assert statuses(first, second) == [status, "ok"]
    (failure,) = found.failures
    assert failure.startswith(said)


def test_a_run_is_told_whether_a_round_follows(supervise):
    slot = Pretended(WELL, WELL)
    supervise([task(1), task(1, round=2)], [slot])
    assert [run.variables for run in slot.runs] == [{"SWEEP_ROUND_FOLLOWS": "1"}, {}]


def test_what_ran_at_a_slot_that_is_lost_goes_to_another_box(supervise):
    first, other = task(1), Pretended(WELL)
    assert not supervise([first], [Pretended([LOST])], [other]).failures
    assert (statuses(first), len(other.runs)) == (["ok"], 1)


def test_where_the_last_slot_is_lost_the_sweep_names_what_still_waits(supervise):
    first, waiting = task(1), task(2, experiment="attention")
    found = supervise([first, waiting], [Pretended([{}, LOST])])
    assert statuses(first, waiting) == ["ok", None]
    assert found.failures == ["attention: no machine of this kind is left: the box is gone"]


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
    first, other = task(*succeeded, *range(1, 8)), task(8, experiment="attention")
    for n in succeeded:
        results.folder().joinpath(MACHINE, "step").mkdir(parents=True)
        results.write(made({"n": n}))
    found = supervise([first, other], [Pretended(*map(fails, reasons), *[WELL] * (1 if left else 2))])
    ended = ["failed"] * len(reasons) + [None if left else "ok"] * (7 - len(reasons))
    assert statuses(first, other) == ["ok"] * len(succeeded) + ended + ["ok"]
    lines = [line for line in found.failures if "left out" in line]
    assert lines == ["step: left out after 5 failed alike: 2"] * bool(left)
    assert len(found.failures) == len(reasons) + len(lines)
    assert not found.progress.left


RETRIED = frozenset(__main__.AGAIN["retry"])


def test_a_failed_case_is_left_alone_until_a_retry_and_then_tried_once(supervise):
    first, second = task(1), task(1, round=2)
    for again in (frozenset(), RETRIED):
        slot = Pretended(fails("KeyError: 'a bug'"))
        found = supervise([first, second], [slot], again=again)
        assert len(slot.runs) == len(found.failures) == 1  # not in round 2, also where round 1 was a retry
        assert statuses(first, second) == ["failed", None]
        assert supervise([first, second], [Pretended()]).failures == []
    assert first.todo(RETRIED) == ["step/1.r1"]


def test_a_case_without_room_is_tried_once_a_run_and_again_in_the_next_round_and_run(supervise):
    no_room = {"status": "no_room", "predicted_bytes": 2, "available_bytes": 1}
    first, second = task(1), task(1, round=2)
    found = supervise([first, second], [Pretended([no_room, END], WELL)])
    assert (statuses(first, second), found.failures) == (["no_room", "ok"], [])
    supervise([first, second], [Pretended(WELL)])
    assert statuses(first, second) == ["ok", "ok"]


def test_a_kernel_that_cannot_write_ends_the_sweep_in_that_line(supervise):
    said = b"CannotWrite: /tmp/x: cannot be written, the disk is full, in step.ipynb; see step-r1.ipynb"
    with pytest.raises(atomic.CannotWrite, match=r"^/tmp/x: cannot be written, the disk is full"):
        supervise([task(1)], [Pretended([Piece("end", "failed", said)])])


def test_what_needs_the_whole_machine_waits_for_it_and_the_rest_has_a_gpu_each(supervise):
    tasks = [task(1, device="cpu"), task(2, device="cuda"), task(3, device="cuda")]
    slots = [Pretended(WELL) for _ in range(3)]
    supervise(tasks, slots)
    assert statuses(*tasks) == ["ok"] * 3
    assert [len(slot.runs) for slot in slots] == [1, 1, 1]


def test_stale_records_and_crashes_are_made_anew_when_asked_for(supervise):
    first, both = task(1, 2), ["step/1.r1", "step/2.r1"]
    assert first.todo(frozenset({"stale"})) == both  # neither has a record yet
    supervise([first], [Pretended([DIED], [DIED], WELL)])
    assert statuses(first) == ["crashed", "ok"]
    assert first.todo() == []
    assert first.todo(frozenset({"crashed"})) == both[:1]
    assert first.todo(frozenset({"stale"})) == both  # its code is none of today's
    supervise([first], [Pretended(WELL)], again=frozenset({"crashed"}))
    assert statuses(first) == ["ok", "ok"]
    assert len(list(results.folder().glob("*/*/*.json"))) == 2
