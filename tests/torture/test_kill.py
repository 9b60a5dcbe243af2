"""A sweep whose kernel or supervisor is killed loses at most the case in hand, and goes on by the same command."""

import pytest

from faults import count, moment, until


def axes(cases, pause_ms):
    return f"cheap: {{number: {list(range(1, cases + 1))}, pause_ms: {pause_ms}}}"


def all_ok(sweep, cases):
    assert sweep.statuses() == dict.fromkeys(range(1, cases + 1), "ok")


@pytest.mark.faults(1, "kill -9 of a kernel")
def test_a_killed_kernel_costs_the_case_in_hand_alone(sweep_of, tally):
    kills = count(1, 50)
    sweep = sweep_of(axes(16 * kills, 120))
    process = sweep.start()
    until(sweep.kernels, 60, "the first kernel")
    for _ in range(kills):
        moment(1)
        before, victims = sweep.records(), sweep.kernels()
        former = {entry["pid"] for entry in sweep.journal("begins")} | {kernel.pid for kernel in victims}
        with tally.injection():
            for kernel in victims:
                kernel.kill()
            until(lambda: set(sweep.kernels()) - set(victims), count(15, 5), "a new kernel")  # noqa: B023
            # a case that is killed twice in a row is given up, and rightly so
            until(lambda: {entry["pid"] for entry in sweep.journal("saved")} - former, 30, "a record of it")  # noqa: B023
            sweep.unchanged(before)
    done = sweep.end(process)
    with tally.injection(0):
        assert done.code == 0, done.err[-500:]
        all_ok(sweep, 16 * kills)
        assert len(list(sweep.results.with_name("runs").glob("*/*.ipynb"))) == kills + 1, "a notebook is missing"
    begun = [entry["number"] for entry in sweep.journal("begins")]
    assert len(begun) - len(set(begun)) <= kills
    assert max(begun.count(number) for number in begun) == 2 - (len(begun) == len(set(begun)))
    sweep.none_left()


@pytest.mark.faults(2, "kill -9 of the supervisor")
def test_a_killed_supervisor_leaves_no_process_and_no_lock_and_loses_the_case_in_hand_at_most(sweep_of, tally):
    kills = count(1, 30)
    sweep = sweep_of(axes(6 * kills, 400))  # longer than the supervisor takes to look
    for kill in range(kills):
        with tally.injection():
            before = sweep.records()
            process = sweep.start_to(kill + 1)
            process.kill()
            sweep.end(process)
            sweep.none_left()
            lost = {entry["number"] for entry in sweep.journal("saved")} - sweep.statuses().keys()
            assert len(lost) <= 1, f"{len(lost)} records lost"
            assert "damaged" not in sweep.statuses().values()
            sweep.unchanged(before)
    before = sweep.records()
    done = sweep.run()
    assert done.code == 0, done.err[-500:]
    all_ok(sweep, 6 * kills)
    sweep.unchanged(before)
    sweep.none_left()
    assert not sweep.leftovers()
