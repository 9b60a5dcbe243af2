"""Ranks meet, answer, and leave nothing behind when one of them fails."""

import os
import pickle
import signal
import subprocess
import sys
import time

import psutil
import pytest
import torch

import rank_checks
from lib.parallel import ranks
from lib.paths import ROOT


def test_a_phase_ends_when_the_slowest_rank_has_ended_it(two_ranks):
    # ends of the phases: 10 and 60 of rank 0, 30 and 40 of rank 1
    assert two_ranks.run(rank_checks.times) == [[30, 30]] * 2


def test_ranks_of_unequal_speed_take_equally_many_samples(two_ranks):
    first, second = two_ranks.run(rank_checks.samples)
    assert first == second > 1


@pytest.mark.parametrize(
    ("size", "sent", "message"),
    [
        (2, 0, "rank 1: ValueError: rank 1 refuses"),
        (2, signal.SIGKILL, "rank 1: ended with code -9"),
        (1, signal.SIGSTOP, "no answer from rank 0 in 2 s"),
    ],
    ids=["raises", "dies", "hangs"],
)
def test_a_rank_that_fails_ends_its_world_and_leaves_no_process(size, sent, message):
    with ranks.World(size) as world:
        os.kill(world.processes[-1].pid, sent)
        with pytest.raises(ranks.RankFailed, match=f"^{message}"):
            world.run(rank_checks.refuse, within_s=2 if sent == signal.SIGSTOP else 60, rank=size - 1)
        assert not any(process.is_alive() for process in world.processes)


def test_a_call_that_cannot_be_sent_ends_the_world():
    with ranks.World(1) as world:
        with pytest.raises((pickle.PicklingError, AttributeError), match="lambda"):
            world.run(lambda: 1)
        assert not any(process.is_alive() for process in world.processes)


def test_a_rank_that_cannot_even_start_is_named():
    # a program from standard input has no file that the ranks could import
    program = "from lib.parallel.ranks import World\nWorld(1)"
    done = subprocess.run([sys.executable, "-"], cwd=ROOT, input=program, capture_output=True, text=True)
    assert done.stderr.splitlines()[-1] == "lib.parallel.ranks.RankFailed: rank 0: ended with code 1"


def test_no_rank_outlives_its_parent():
    program = (
        "import os, sys; from lib.parallel.ranks import World; world = World(1);"
        "print(*world.run(os.getpid), flush=True); os._exit(0)"
    )
    done = subprocess.run([sys.executable, "-c", program], cwd=ROOT, capture_output=True, text=True, check=True)
    pid = int(done.stdout)
    deadline = time.monotonic() + 20
    while psutil.pid_exists(pid) and time.monotonic() < deadline:
        time.sleep(0.1)
    assert not psutil.pid_exists(pid)


def test_ranks_that_this_machine_has_no_devices_for_are_named(monkeypatch):
    assert ranks.missing("cpu", 64) is None
    assert ranks.missing("mps", 2) == "torch.distributed has no backend for mps"
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 1)
    assert ranks.missing("cuda", 2) == "2 ranks need a GPU each, got 1"
