"""A run yields its records and how it ended, and leaves no process and no file behind."""

import concurrent.futures
import json
import os
import tempfile
from unittest.mock import Mock

import psutil
import pytest
from nbclient.exceptions import DeadKernelError

import cells
from lib import execution, notebooks
from lib.records import atomic
from lib.sweep import processes, run, supervisor


def run_of(seconds=60.0):
    return run.Run("one", "test-1c", "one", {}, ("one/a.r1",), seconds, seconds)


@pytest.fixture
def long_name(tmp_path, monkeypatch):
    """A folder for temporary files whose name leaves no room for that of a socket."""
    folder = tmp_path / ("t" * 100)
    folder.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(folder))
    return folder


def test_a_long_name_of_the_folder_for_temporary_files_is_no_matter(tmp_path, monkeypatch, own_results, long_name):
    source = cells.write(tmp_path / "one.ipynb", "1")
    execution.execute(source, tmp_path / "done.ipynb", {})
    with execution.shared_kernel() as kept:
        execution.execute(source, tmp_path / "done.ipynb", {}, kept=kept)
    cells.write(source, "import os; assert '/sweep-' in os.environ['TORCHINDUCTOR_CACHE_DIR']")  # kept as long as it
    monkeypatch.setattr(notebooks, "NOTEBOOKS", tmp_path)
    with processes.workspace() as workspace:
        assert workspace.folder.parent == long_name
        assert list(run.pieces(run_of(), workspace))[-1].name == "complete"
        assert not list(workspace.sockets.iterdir())
    assert not workspace.folder.exists()
    assert not workspace.sockets.exists()


def test_a_kernel_that_hangs_ends_though_its_environment_cannot_be_read(tmp_path, monkeypatch, own_results):
    cells.write(tmp_path / "one.ipynb", "import time; time.sleep(60)", "1")
    monkeypatch.setattr(notebooks, "NOTEBOOKS", tmp_path)
    monkeypatch.setattr(psutil.Process, "environ", Mock(side_effect=psutil.AccessDenied))
    with processes.workspace() as workspace:
        ended = list(run.pieces(run_of(seconds=3.0), workspace))[-1]
        assert ended.name == "timeout"
        alive = [child for child in psutil.Process().children() if child.status() != psutil.STATUS_ZOMBIE]
        assert not [child for child in alive if "ipykernel_launcher" in child.cmdline()]


def test_a_kernel_that_cannot_write_is_understood_by_the_supervisor(tmp_path, monkeypatch, own_results):
    error = "atomic.CannotWrite(28, 'the disk is full', '/tmp/x')"
    cells.write(tmp_path / "one.ipynb", f"from lib.records import atomic; raise {error}")
    monkeypatch.setattr(notebooks, "NOTEBOOKS", tmp_path)
    with processes.workspace() as workspace:
        ended = list(run.pieces(run_of(), workspace))[-1]
    with pytest.raises(atomic.CannotWrite, match=r"^/tmp/x: cannot be written, the disk is full"):
        supervisor.Supervisor([], Mock(), 60)._on_failure(Mock(), ended)


@pytest.mark.parametrize(("status", "kinds"), [("ok", ["record"] * 2), ("oom", ["record"]), ("failed", ["record"])])
def test_an_error_ends_the_run_so_that_the_next_case_has_a_new_process(tmp_path, status, kinds):
    folder = tmp_path / "test-1c" / "one"
    folder.mkdir(parents=True)
    for number, name in enumerate(("a.r1", "b.r1")):
        (folder / f"{name}.json").write_text(json.dumps({"status": status if name == "a.r1" else "ok"}))
        os.utime(folder / f"{name}.json", (number, number))
    executing = concurrent.futures.Future()
    executing.set_result(None)
    assert [piece.kind for piece in run._followed(run_of(), tmp_path, executing)] == kinds


@pytest.mark.parametrize(("counts", "end"), [([0, 1, 1], "died"), ([0, 0, 1], "oom")])
def test_a_kernel_died_of_memory_only_where_the_system_killed_since_its_last_record(tmp_path, monkeypatch, counts, end):
    (tmp_path / "test-1c" / "one").mkdir(parents=True)
    (tmp_path / "test-1c" / "one" / "a.r1.json").write_text('{"status": "ok"}')
    executing = concurrent.futures.Future()
    executing.set_exception(DeadKernelError("Kernel died"))
    monkeypatch.setattr(processes, "killed_for_memory", iter(counts).__next__)  # at first, with the record, at the end
    pieces = run._followed(run_of(), tmp_path, executing)
    assert next(pieces).kind == "record"
    with pytest.raises(StopIteration) as stopped:
        next(pieces)
    assert stopped.value.value.name == end
