"""Kernels and supervisors are killed at random moments; no finished record is lost, torn or measured twice."""

import contextlib
import os
import random
import time
from functools import partial
from signal import SIGINT, SIGKILL, SIGTERM

import psutil

import cheap

CASES = 12
TEXT = f"rounds: 2\ncheap: {{number: [{', '.join(map(str, range(1, CASES + 1)))}], pause_ms: 150}}"
ALL_OK = {(number, round): "ok" for number in range(1, CASES + 1) for round in (1, 2)}
KILLS = 20


def unchanged(sweep, before):
    after = sweep.files()
    changed = [name for name, content in before.items() if after.get(name) != content]
    assert not changed, f"changed or lost: {changed}"


def has_gone_on(sweep, process, cases):
    return len(sweep.begun()) > cases or process.poll() is not None


def test_kernels_killed_at_random_moments(cheap_sweep, tally):
    while tally.injected < KILLS:
        sweep = cheap_sweep(TEXT)
        process = sweep.start()
        for _ in range(2):
            cheap.until(sweep.begun, "the first case")
            time.sleep(random.uniform(0, 1.5))
            with tally.fault():
                before = sweep.files()
                for kernel in sweep.kernels():
                    with contextlib.suppress(psutil.Error):
                        kernel.kill()
                unchanged(sweep, before)
        printed, _ = process.communicate(timeout=120)
        with tally.fault():
            statuses = sweep.statuses()
            # the same case may be hit twice, and is then recorded as crashed
            assert set(statuses.values()) <= {"ok", "crashed"}, printed.splitlines()[-1]
            assert len(statuses) >= 2 * CASES - 1, printed.splitlines()[-1]
            assert sweep.processes() == []


def test_supervisors_killed_at_random_moments(cheap_sweep, tally):
    while tally.injected < KILLS:
        sweep = cheap_sweep(TEXT)
        for turn in range(5):
            process = sweep.start()
            if turn:
                cheap.until(partial(has_gone_on, sweep, process, len(sweep.begun())), "a case")
            time.sleep(random.uniform(0, 1.0))
            with tally.fault():
                before = sweep.files()
                with contextlib.suppress(ProcessLookupError):  # it has ended
                    os.killpg(process.pid, random.choice([SIGKILL, SIGKILL, SIGINT, SIGTERM]))
                printed, _ = process.communicate(timeout=30)
                assert process.returncode in (0, 130, 143, -9, -2, -15), printed
                # kernels notice by themselves
                cheap.until(lambda sweep=sweep: not sweep.processes(), "the end of its kernels", 10)
                unchanged(sweep, before)
                assert "damaged" not in sweep.statuses().values()
        with tally.fault():
            code, printed = sweep.run()
            assert (code, sweep.statuses()) == (0, ALL_OK), printed
            assert list((sweep.folder / "tmp").iterdir()) == [], "scratch is left"
