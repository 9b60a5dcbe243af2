"""A process ends with all that it started, also where no environment can be read."""

import subprocess
import sys
from unittest.mock import Mock

import psutil

from lib.instruments import processes

SLEEP = "import time; time.sleep(60)"
# one child in a session of its own, and one whose parent is gone
FAMILY = f"""
import subprocess, sys, time
subprocess.Popen([sys.executable, "-c", {SLEEP!r}], start_new_session=True)
orphan = "import subprocess, sys; subprocess.Popen([sys.executable, '-c', {SLEEP!r}])"
subprocess.run([sys.executable, "-c", orphan])
print("here", flush=True)
time.sleep(60)
"""


def test_a_session_ends_with_its_orphans_and_children_though_no_environment_can_be_read(monkeypatch):
    monkeypatch.setattr(psutil.Process, "environ", Mock(side_effect=psutil.AccessDenied))
    leader = subprocess.Popen([sys.executable, "-c", FAMILY], stdout=subprocess.PIPE, start_new_session=True)
    other = subprocess.Popen([sys.executable, "-c", SLEEP], start_new_session=True)
    try:
        assert leader.stdout.readline() == b"here\n"
        members = processes.family(leader.pid)
        assert len(members) == 3
        processes.end("no mark", leader.pid)
        assert not any(member.is_running() and member.status() != psutil.STATUS_ZOMBIE for member in members)
        assert other.poll() is None
    finally:
        for process in (leader, other):
            process.kill()
            process.communicate()
