"""A kernel is of the Python that runs here, ends with all that it started, and dies of memory only by its own group."""

import concurrent.futures
import contextlib
import json
import re
import subprocess
import sys
import tempfile
from pathlib import Path

import psutil
import pytest
from nbclient.exceptions import DeadKernelError

from lib import execution, notebooks
from lib.sweep import processes

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


def written(folder, *cells):
    """A notebook of these cells in a folder."""
    content = [{"cell_type": "code", "id": f"c{i}", "metadata": {}, "execution_count": None, "outputs": [],
                "source": cell} for i, cell in enumerate(cells)]  # fmt: skip
    spec = {"display_name": "Python 3", "language": "python", "name": "python3"}
    file = folder / "one.ipynb"
    file.write_text(
        json.dumps({"cells": content, "metadata": {"kernelspec": spec}, "nbformat": 4, "nbformat_minor": 5})
    )
    return file


@pytest.fixture
def long_name(tmp_path, monkeypatch):
    """A folder for temporary files whose name leaves no room for that of a socket."""
    folder = tmp_path / ("t" * 100)
    folder.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(folder))
    return folder


def test_a_long_name_of_the_folder_for_temporary_files_is_no_matter(tmp_path, monkeypatch, own_results, long_name):
    source = written(tmp_path, "1")
    execution.execute(source, tmp_path / "done.ipynb", {})
    with execution.keeping() as kept:
        execution.execute(source, tmp_path / "done.ipynb", {}, kept=kept)
    monkeypatch.setattr(notebooks, "NOTEBOOKS", tmp_path)
    with processes.workplace() as workplace:
        assert workplace.folder.parent == long_name
        assert list(execution.measured(run_of(), workplace))[-1].name == "complete"
        assert not list(workplace.sockets.iterdir())
    assert not workplace.folder.exists()
    assert not workplace.sockets.exists()


def run_of(seconds=60.0):
    return execution.Run("one", "test-1c", "one", {}, ("one/a.r1",), seconds, seconds)


def unreadable(_):
    raise psutil.AccessDenied


@pytest.mark.parametrize("kept", [False, True])
def test_a_kernel_is_of_the_python_that_runs_here_whatever_jupyter_finds(tmp_path, monkeypatch, kept):
    spec = tmp_path / "share" / "kernels" / "python3"
    spec.mkdir(parents=True)
    other = {"argv": ["/bin/false", "{connection_file}"], "display_name": "another", "language": "python"}
    (spec / "kernel.json").write_text(json.dumps(other))
    monkeypatch.setenv("JUPYTER_PATH", str(tmp_path / "share"))
    source = written(tmp_path, f"import sys; assert sys.executable == {sys.executable!r}")
    with execution.keeping() if kept else contextlib.nullcontext() as given:
        execution.execute(source, tmp_path / "done.ipynb", {}, kept=given)


def test_a_session_ends_with_its_orphans_and_children_though_no_environment_can_be_read(monkeypatch):
    monkeypatch.setattr(psutil.Process, "environ", unreadable)
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


def test_a_kernel_that_hangs_ends_though_its_environment_cannot_be_read(tmp_path, monkeypatch, own_results):
    written(tmp_path, "import time; time.sleep(60)", "1")
    monkeypatch.setattr(notebooks, "NOTEBOOKS", tmp_path)
    monkeypatch.setattr(psutil.Process, "environ", unreadable)
    with processes.workplace() as workplace:
        ended = list(execution.measured(run_of(seconds=3.0), workplace))[-1]
        assert ended.name == "timeout"
        alive = [child for child in psutil.Process().children() if child.status() != psutil.STATUS_ZOMBIE]
        assert not [child for child in alive if "ipykernel_launcher" in child.cmdline()]


def test_what_the_own_group_tells_of_kills_counts_alone_and_the_whole_only_without_it(tmp_path, monkeypatch):
    monkeypatch.setattr(processes, "_own_group", lambda: tmp_path)
    vmstat = Path("/proc/vmstat").read_text() if Path("/proc/vmstat").exists() else ""
    whole = re.search(r"^oom_kill (\d+)$", vmstat, re.MULTILINE)
    if not whole:
        pytest.skip("the system does not tell how often it has killed for want of memory")
    assert processes.killed_for_memory() == int(whole[1])
    (tmp_path / "memory.events").write_text("oom 9\noom_kill 123456\noom_group_kill 7\n")
    assert processes.killed_for_memory() == 123456


@pytest.mark.parametrize(("counts", "end"), [([0, 1, 1], "died"), ([0, 0, 1], "oom")])
def test_a_kernel_died_of_memory_only_where_the_system_killed_since_its_last_record(tmp_path, monkeypatch, counts, end):
    (tmp_path / "test-1c" / "one").mkdir(parents=True)
    (tmp_path / "test-1c" / "one" / "a.r1.json").write_text('{"status": "ok"}')
    executing = concurrent.futures.Future()
    executing.set_exception(DeadKernelError("Kernel died"))
    monkeypatch.setattr(processes, "killed_for_memory", iter(counts).__next__)  # at first, with the record, at the end
    pieces = execution._followed(run_of(), tmp_path, executing)
    assert next(pieces).kind == "record"
    with pytest.raises(StopIteration) as stopped:
        next(pieces)
    assert stopped.value.value.name == end
