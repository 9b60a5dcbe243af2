"""A sweep that is asked to stop stops within seconds, whatever it is doing; a second one beside it does not start."""

import itertools
import time

import pytest

from faults import count, hit, moment, until

CASES = 40
SWEEP = f"cheap: {{number: {list(range(1, CASES + 1))}, pause_ms: 150}}"
CODES = {"SIGTERM": 143, "SIGINT SIGINT": 130, "SIGINT": 130, "SIGHUP": 143}


@pytest.mark.faults(10, "Ctrl-C once and twice, SIGTERM, SIGHUP")
def test_a_signal_at_a_random_moment_ends_the_sweep_within_5_seconds_and_it_can_be_resumed(sweep_of, tally):
    sweep = sweep_of(SWEEP)
    for turn, (signals, code) in enumerate(itertools.islice(itertools.cycle(CODES.items()), count(2, 52))):
        if len(sweep.records()) > CASES - 20:  # so that none ends by itself
            sweep.remove()
            sweep = sweep_of(SWEEP)
        names, before = signals.split(), sweep.records()
        with tally.injection():
            process = sweep.start_to(turn)
            for name in names:
                hit(process, name)
                moment(0.5 * (len(names) - 1))
            asked = time.monotonic()
            done = sweep.end(process, 5)
            assert done.code == code, f"{signals}: exit {done.code}, {done.err[-300:]}"
            assert "Traceback" not in done.err, done.err[-1000:]
            sweep.none_left(5 - (time.monotonic() - asked))
            assert not sweep.leftovers()
            sweep.unchanged(before)
            assert "damaged" not in sweep.statuses().values()
    done = sweep.run()
    assert done.code == 0, done.err[-500:]
    assert sweep.statuses() == dict.fromkeys(range(1, CASES + 1), "ok")


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
