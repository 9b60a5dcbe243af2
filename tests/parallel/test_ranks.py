"""Ranks meet, answer, and leave nothing behind when one of them fails."""

import subprocess
import sys
import time

import psutil
import pytest

from lib.instruments import environment
from lib.parallel import ranks
from lib.paths import ROOT

CHECKS = "tests.support.rank_checks"


@pytest.fixture(scope="module")
def world():
    with ranks.World(2) as found:
        yield found


def test_a_function_is_called_in_every_rank_again_and_again(world):
    for _ in range(3):
        assert world.run("lib.parallel.ranks.number") == [0, 1]


def test_ranks_share_the_cores(world):
    assert world.run(f"{CHECKS}.threads") == [max(1, environment.cores() // 2)] * 2


def test_a_phase_ends_when_the_slowest_rank_has_ended_it(world):
    # ends of the phases: 10 and 60 of rank 0, 30 and 40 of rank 1; stopped at 70 and 90
    assert world.run(f"{CHECKS}.times") == [[[30, 30], 90, 60]] * 2


@pytest.mark.parametrize(
    ("function", "arguments", "said"),
    [
        ("refuse", {"rank": 1}, "rank 1: ValueError: rank 1 refuses"),
        ("die", {"rank": 1}, "rank 1: ended with code 7"),
        ("hang", {}, "no answer from rank 1 in 2 s"),
    ],
)
def test_a_rank_that_fails_ends_its_world_and_leaves_no_process(function, arguments, said):
    with ranks.World(2, timeout_s=2) as world:
        processes = [psutil.Process(pid) for pid in world.run(f"{CHECKS}.pid")]
        with pytest.raises(ranks.RankFailed, match=said):
            world.run(f"{CHECKS}.{function}", **arguments)
    assert not any(process.is_running() for process in processes)


def test_no_rank_outlives_its_parent():
    program = (
        "import os, sys; from lib.parallel.ranks import World; world = World(2);"
        f"print(*world.run('{CHECKS}.pid'), flush=True); os._exit(0)"
    )
    done = subprocess.run([sys.executable, "-c", program], cwd=ROOT, capture_output=True, text=True, check=True)
    pids, deadline = [int(pid) for pid in done.stdout.split()], time.monotonic() + 20
    while any(map(psutil.pid_exists, pids)) and time.monotonic() < deadline:
        time.sleep(0.1)
    assert len(pids) == 2
    assert not any(map(psutil.pid_exists, pids))


def test_ranks_that_this_machine_has_no_devices_for_are_named(monkeypatch):
    assert ranks.missing("cpu", 64) is None
    assert ranks.missing("mps", 2) == "torch.distributed has no backend for mps"
    monkeypatch.setattr(ranks.on("cuda"), "models", lambda: ["H100"], raising=False)
    assert ranks.missing("cuda", 2) == "2 ranks need a GPU each, got 1"
