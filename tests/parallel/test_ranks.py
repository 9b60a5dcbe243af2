"""Ranks meet, answer, and leave nothing behind when one of them fails."""

import signal
import subprocess
import sys
import time

import psutil
import pytest

from lib.instruments import environment
from lib.parallel import ranks
from lib.paths import ROOT

CHECKS = "tests.support.parallel_checks"


def test_ranks_stay_for_the_next_call_and_share_the_cores(call):
    first, second = (call("process") for _ in range(2))
    assert first == second
    assert [threads for _, threads in first] == [max(1, environment.cores() // 2)] * 2


def test_a_phase_ends_when_the_slowest_rank_has_ended_it(call):
    # ends of the phases: 10 and 60 of rank 0, 30 and 40 of rank 1; stopped at 70 and 90
    assert call("times") == [[[30, 30], 90, 60]] * 2


@pytest.mark.parametrize(
    ("size", "sent", "said"),
    [
        (2, 0, "rank 1: ValueError: rank 1 refuses"),
        (2, signal.SIGKILL, "rank 1: ended with code -9"),
        (1, signal.SIGSTOP, "no answer from rank 0 in 2 s"),
    ],
    ids=["raises", "dies", "hangs"],
)
def test_a_rank_that_fails_ends_its_world_and_leaves_no_process(size, sent, said):
    with ranks.World(size) as world:
        world.ranks[-1].send_signal(sent)
        with pytest.raises(ranks.RankFailed, match=f"^{said}"):
            world.run(f"{CHECKS}.refuse", within_s=2 if sent == signal.SIGSTOP else 60, rank=size - 1)
        assert all(process.poll() is not None for process in world.ranks)


def test_no_rank_outlives_its_parent():
    program = (
        "import os, sys; from lib.parallel.ranks import World; world = World(1);"
        f"print(*(pid for pid, _ in world.run('{CHECKS}.process')), flush=True); os._exit(0)"
    )
    done = subprocess.run([sys.executable, "-c", program], cwd=ROOT, capture_output=True, text=True, check=True)
    pids, deadline = [int(pid) for pid in done.stdout.split()], time.monotonic() + 20
    while any(map(psutil.pid_exists, pids)) and time.monotonic() < deadline:
        time.sleep(0.1)
    assert len(pids) == 1
    assert not any(map(psutil.pid_exists, pids))


def test_ranks_that_this_machine_has_no_devices_for_are_named(monkeypatch):
    assert ranks.missing("cpu", 64) is None
    assert ranks.missing("mps", 2) == "torch.distributed has no backend for mps"
    monkeypatch.setattr(ranks.on("cuda"), "models", lambda: ["H100"], raising=False)
    assert ranks.missing("cuda", 2) == "2 ranks need a GPU each, got 1"
