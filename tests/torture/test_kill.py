"""A sweep that is killed or asked to stop does so within seconds and loses at most the case in hand; the same command
goes on. A second one beside it does not start."""

import itertools
import time

import pytest

from faults import count, hit, moment, until

CODES = {"SIGTERM": 143, "SIGKILL": 137, "SIGINT SIGINT": 130, "SIGINT": 130, "SIGHUP": 143}
CASES = count(18, 40)
WITHIN_S = count(15, 5)  # where other tests run beside, it may take longer


def sweep_text(cases, pause_ms):
    return f"cheap: {{number: {list(range(1, cases + 1))}, pause_ms: {pause_ms}}}"


@pytest.mark.faults(1, "kill -9 of a kernel")
def test_a_killed_kernel_costs_the_case_in_hand_alone(sweep_of, tally):
    kills = count(1, 50)
    sweep = sweep_of(sweep_text(16 * kills, 120))
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
        assert sweep.statuses() == dict.fromkeys(range(1, 16 * kills + 1), "ok")
        assert len(list(sweep.results.with_name("runs").glob("*/*.ipynb"))) == kills + 1, "a notebook is missing"
    begun = [entry["number"] for entry in sweep.journal("begins")]
    assert len(begun) - len(set(begun)) <= kills
    assert max(begun.count(number) for number in begun) == 2 - (len(begun) == len(set(begun)))
    sweep.none_left()


@pytest.mark.faults(2, "kill -9 of the supervisor, Ctrl-C once and twice, SIGTERM, SIGHUP")
def test_a_signal_at_a_random_moment_ends_the_sweep_within_seconds_leaves_no_process_and_loses_one_case_at_most(
    sweep_of, tally
):
    text = sweep_text(CASES, 400)  # longer than the supervisor takes to look
    sweep = sweep_of(text)
    for turn, (signals, code) in enumerate(itertools.islice(itertools.cycle(CODES.items()), count(3, 80))):
        if len(sweep.records()) > CASES - 8:  # so that none ends by itself
            sweep.remove()
            sweep = sweep_of(text)
        names, before = signals.split(), sweep.records()
        with tally.injection():
            process = sweep.start_to(turn)
            for name in names:
                hit(process, name)
                moment(0.5 * (len(names) - 1))
            asked = time.monotonic()
            done = sweep.end(process, WITHIN_S)
            assert done.code == code, f"{signals}: exit {done.code}, {done.err[-300:]}"
            assert "Traceback" not in done.err, done.err[-1000:]
            sweep.none_left(WITHIN_S - (time.monotonic() - asked))
            assert code == 137 or not sweep.leftovers()
            lost = {entry["number"] for entry in sweep.journal("saved")} - sweep.statuses().keys()
            assert len(lost) <= 1, f"{len(lost)} records lost"
            assert "damaged" not in sweep.statuses().values()
            sweep.unchanged(before)
    before = sweep.records()
    done = sweep.run()
    assert done.code == 0, done.err[-500:]
    assert sweep.statuses() == dict.fromkeys(range(1, CASES + 1), "ok")
    sweep.unchanged(before)
    sweep.none_left()
    assert not sweep.leftovers()


@pytest.mark.faults(8, "a second sweep on one folder")
def test_of_sweeps_on_one_folder_one_runs_and_the_others_say_whose_it_is_and_leave(sweep_of, tally):
    """Also of two that start at once just one runs."""
    seconds = []
    for _ in range(count(1, 5)):
        sweep = sweep_of("cheap: {number: [1, 2, 3], pause_ms: 20, behaviour: sleep, at: 2}")
        both = [sweep.start(), sweep.start()]
        with tally.injection():
            until(lambda: len(sweep.journal("begins")) == 2, 60, "the case that sleeps")  # noqa: B023
            until(lambda: any(process.poll() for process in both), 10, "the end of the other")  # noqa: B023
            other, first = sorted(both, key=lambda process: process.poll() is None)
            assert (sweep.end(other).code, first.poll()) == (75, None)
        for _ in range(count(1, 5)):
            with tally.injection():
                done = sweep.run()
                seconds.append(done.seconds)
                assert done.code == 75, f"exit {done.code}: {done.err[-500:]}"
                assert str(first.pid) in done.err, done.err
                assert len(done.err.strip().splitlines()) == 1, done.err
                assert sweep.journal("leaves")[-1]["torch"] is False, "torch was imported, which takes seconds"
                assert done.seconds < count(10, 2)
                assert first.poll() is None
        first.kill()
        sweep.end(first)
        sweep.none_left()
    tally.notes.append(f"it left within {max(seconds):.2f} s")
