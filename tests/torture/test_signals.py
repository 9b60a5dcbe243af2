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
def test_of_two_sweeps_on_one_folder_one_runs_and_the_other_says_whose_it_is_and_leaves(sweep_of, tally):
    sweep = sweep_of("cheap: {number: [1, 2, 3], pause_ms: 20, behaviour: sleep, at: 2}")
    first = sweep.start()
    until(lambda: sweep.journal("begins"), 60, "the first case")
    seconds = []
    for _ in range(count(1, 20)):
        with tally.injection():
            done = sweep.run()
            seconds.append(done.seconds)
            assert done.code == 75, f"exit {done.code}: {done.err[-500:]}"
            assert str(first.pid) in done.err, done.err
            assert len(done.err.strip().splitlines()) == 1, done.err
            assert sweep.journal("leaves")[-1]["torch"] is False, "torch was imported, which takes seconds"
            assert done.seconds < count(10, 2)
            assert first.poll() is None
    tally.notes.append(f"it left within {max(seconds):.2f} s")
    first.kill()
    sweep.end(first)
    sweep.none_left()


@pytest.mark.faults(8, "two sweeps started at once")
def test_of_sweeps_that_start_at_once_just_one_runs(sweep_of, tally):
    sweep = sweep_of("cheap: {number: [1, 2, 3], pause_ms: 600}")
    for _ in range(count(1, 5)):
        with tally.injection():
            both = [sweep.start(), sweep.start()]
            codes = sorted(sweep.end(process).code for process in both)
            assert codes == [0, 75], codes
            assert sweep.statuses() == dict.fromkeys((1, 2, 3), "ok")
            assert len(sweep.journal("saved")) == 3
        for file in sweep.results.glob("*/cheap/*.json"):
            file.unlink()
        sweep.journal_file.unlink()
