"""Kills for want of memory are counted in the own group or the whole system; a slot has its own share of cores."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from lib.instruments import container
from lib.sweep import processes


def test_what_the_own_group_tells_of_kills_counts_alone_and_the_whole_only_without_it(tmp_path, monkeypatch):
    monkeypatch.setattr(container, "groups", lambda _: [tmp_path])
    vmstat = Path("/proc/vmstat").read_text() if Path("/proc/vmstat").exists() else ""
    whole = re.search(r"^oom_kill (\d+)$", vmstat, re.MULTILINE)
    if not whole:
        pytest.skip("the system does not tell how often it has killed for want of memory")
    assert processes.killed_for_memory() == int(whole[1])
    (tmp_path / "memory.events").write_text("oom 9\noom_kill 123456\noom_group_kill 7\n")
    assert processes.killed_for_memory() == 123456


@pytest.mark.skipif(not hasattr(os, "sched_setaffinity"), reason="the system cannot bind a thread to cores")
def test_slots_share_the_cores_and_none_has_anothers(monkeypatch):
    cores, seen = {0, 1, 2, 3, 6, 7, 8}, []
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: cores)
    monkeypatch.setattr(os, "sched_setaffinity", lambda _, own: seen.append(own))
    for number in range(3):
        with processes.on_share_of_cores(number, 3):
            pass
    assert seen[::2] == [[0, 1], [2, 3], [6, 7, 8]]
    assert seen[1::2] == [sorted(cores)] * 3
    with processes.on_share_of_cores(0, 1):
        assert len(seen) == 6
    monkeypatch.setattr(processes.container, "cores", lambda: 4.5)
    with processes.on_share_of_cores(1, 2):
        assert seen[-1] == [2, 3]


def test_a_process_started_on_a_share_counts_only_its_cores():
    if not hasattr(os, "sched_setaffinity") or len(os.sched_getaffinity(0)) < 2:
        pytest.skip("the system cannot bind a thread, or has one core")
    before = os.sched_getaffinity(0)
    with processes.on_share_of_cores(1, 2):
        program = "import os; print(*os.sched_getaffinity(0))"
        started = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True).stdout.split()
    assert set(map(int, started)) == set(sorted(before)[len(before) // 2 :])
    assert os.sched_getaffinity(0) == before
