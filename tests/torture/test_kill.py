"""A sweep whose kernel or supervisor is killed loses at most the case in hand, and goes on by the same command."""

import random

import pytest

from faults import count, moment, until


def axes(cases, pause_ms):
    return f"cheap: {{number: {list(range(1, cases + 1))}, pause_ms: {pause_ms}}}"


def all_ok(sweep, cases):
    assert sweep.statuses() == dict.fromkeys(range(1, cases + 1), "ok")


def unchanged(sweep, before):
    after = sweep.records()
    changed = [name for name, content in before.items() if after.get(name) != content]
    assert not changed, f"changed or lost: {changed}"


@pytest.mark.faults(1, "kill -9 of a kernel")
def test_a_killed_kernel_costs_the_case_in_hand_alone(sweep_of, tally):
    kills = count(2, 50)
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
            unchanged(sweep, before)
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
    kills = count(2, 30)
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
            unchanged(sweep, before)
    before = sweep.records()
    done = sweep.run()
    assert done.code == 0, done.err[-500:]
    all_ok(sweep, 6 * kills)
    unchanged(sweep, before)
    sweep.none_left()
    assert not sweep.leftovers()


@pytest.mark.torture
@pytest.mark.faults(3, "kill -9 while a record is written")
def test_a_kill_in_the_middle_of_a_write_leaves_no_torn_record_and_the_next_start_sweeps_what_is_left(sweep_of, tally):
    kills = count(2, 30)
    sweep = sweep_of(axes(4 * kills, 10))
    for kill in range(kills):
        with tally.injection():
            before = sweep.records()
            # in the middle of the file, in its folder, or just before it gets its name
            sweep.variables["CHEAP_SPOIL"] = f"{('fsync', 'replace')[kill % 2]} {random.randint(2, 7)} kill"
            assert sweep.run().code == 128 + 9, "it was not killed"
            sweep.none_left()
            assert "damaged" not in sweep.statuses().values()
            unchanged(sweep, before)
    del sweep.variables["CHEAP_SPOIL"]
    done = sweep.run()
    assert done.code == 0, done.err[-500:]
    all_ok(sweep, 4 * kills)
    assert not sweep.leftovers()


@pytest.mark.torture
@pytest.mark.faults(3, "kill -9 while a record is written")
def test_what_a_killed_write_left_stays_for_a_share_since_another_may_be_writing_and_goes_with_the_whole(
    sweep_of, tally
):
    for turn in range(count(1, 6)):
        sweep = sweep_of(axes(4, 10))
        # the first two are those of new folders, then come each file's and its folder's
        sweep.variables["CHEAP_SPOIL"] = f"fsync {3 + 2 * (turn % 3)} kill"
        with tally.injection():
            assert sweep.run().code == 128 + 9, "it was not killed"
            sweep.none_left()
            left = sweep.leftovers()
            assert left, "it left nothing"
            del sweep.variables["CHEAP_SPOIL"]
            done = sweep.run("--shard", "1/2")
            assert (done.code, sweep.leftovers()) == (0, left), done.err[-500:]
            done = sweep.run()
            assert (done.code, sweep.leftovers()) == (0, []), done.err[-500:]
            all_ok(sweep, 4)
