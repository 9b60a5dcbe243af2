"""A shard has one supervisor at a time, and no lock outlives the process that holds it."""

import contextlib
import subprocess
import sys

import filelock
import pytest

from lib.sweep import __main__, lock, progress

HOLD = """
import sys
from pathlib import Path
from lib.sweep import lock
with lock.held(lock.parse(sys.argv[1]), Path(sys.argv[2])):
    print("held", flush=True)
    sys.stdin.read()
"""


@contextlib.contextmanager
def holding(shard, folder):
    """Hold a shard of a folder in another process."""
    command = [sys.executable, "-c", HOLD, shard, str(folder)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as holder:
        assert holder.stdout.readline() == b"held\n"
        try:
            yield holder
        finally:
            holder.kill()


@pytest.mark.parametrize(
    ("theirs", "mine", "free"),
    [
        ("1/2", "2/2", True),
        ("2/2", "2/2", False),
        ("1/1", "2/3", False),
        ("2/3", "1/1", False),
        ("1/4", "2/2", False),
    ],
)
def test_a_shard_is_refused_while_it_or_one_of_another_number_is_held(own_results, capsys, theirs, mine, free):
    shard = lock.parse(mine)
    with holding(theirs, own_results) as holder:
        if free:
            with lock.held(shard, own_results):
                pass
        else:
            assert __main__.main(["smoke", "--shard", mine]) == __main__.BUSY
            assert capsys.readouterr().err == "busy: another sweep, which has not reported yet\n"
        holder.kill()
        holder.wait()
        with lock.held(shard, own_results), pytest.raises(lock.Busy), lock.held(shard, own_results):
            pass


def test_to_ask_how_far_a_sweep_is_takes_no_lock_and_writes_nothing(own_results, monkeypatch, capsys):
    with monkeypatch.context() as patch:
        patch.setattr(filelock.FileLock, "acquire", lambda *_, **__: pytest.fail("a lock was taken"))
        assert __main__.main(["status"]) == 0
        assert not own_results.exists()
    with lock.held(lock.WHOLE, own_results):
        progress.Progress(own_results, lock.WHOLE, "quick", 0, {}, 1)
        before = {file: file.stat().st_mtime_ns for file in own_results.iterdir()}
        monkeypatch.setattr(filelock.FileLock, "acquire", lambda *_, **__: pytest.fail("a lock was taken"))
        assert __main__.main(["status"]) == 0
        assert "quick: running, 0 of 0 records" in capsys.readouterr().out
        assert {file: file.stat().st_mtime_ns for file in own_results.iterdir()} == before
