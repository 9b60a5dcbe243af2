"""Kills in the middle of a write, and disks that take no more: no torn file counts as a record, what was whole before
stays so, and one line says why nothing more can be written."""

import errno
import os
import shutil
import signal
from pathlib import Path

import pytest

from lib.records import atomic, damaged, results
from lib.records.record import parse

FOLDER = Path("test-1c", "attention")
SAMPLES = 2_000  # of a record, which makes it large enough for a kill to come while it is written


def save(number: int) -> None:
    """Save the record of a number."""
    results.save(
        experiment="attention", case={"variant": "naive", "seq_len": number}, round=1, status="ok",
        metrics={"total_ms": [number + i / 7 for i in range(1, SAMPLES)]},
        environment={"hardware": "a test", "machine": "test-1c"}, code="0" * 16, started="2026-01-01T00:00:00+00:00",
        seconds=1.0,
    )  # fmt: skip


@pytest.fixture
def file(own_results):
    """The file of a record that has been saved, in a store that holds nothing else."""
    save(1)
    return own_results / FOLDER / "naive-1.r1.json"


def test_a_temporary_file_that_someone_took_for_a_leftover_is_written_again(own_results, monkeypatch):
    replace, taken = os.replace, []

    def sweep_first(temporary, target):
        if not taken:
            taken.append(temporary.unlink())
        replace(temporary, target)

    monkeypatch.setattr(os, "replace", sweep_first)
    save(1)
    assert results.status(own_results / FOLDER / "naive-1.r1.json") == "ok"


def in_a_child(work) -> int:
    """Start `work` in a child process, which can be killed without harm to this one; returns its id."""
    if child := os.fork():
        return child
    try:
        work()
    finally:  # not back into the tests
        os._exit(1)


@pytest.mark.faults(3, "kill -9 at each step of a write")
@pytest.mark.parametrize("step", ["mkdir", "open", "write", "fsync", "replace", "replaced"])
def test_a_kill_at_each_step_of_a_write_leaves_the_earlier_record_or_the_new_one(own_results, tally, step):
    if step != "mkdir":
        save(1)
    file = own_results / FOLDER / "naive-1.r1.json"
    before = file.read_bytes() if file.exists() else None

    def kill(*_, **__):
        os.kill(os.getpid(), signal.SIGKILL)

    def replaced(temporary, target, replace=os.replace):
        replace(temporary, target)
        kill()

    def torn(path, mode, opened=Path.open):
        file = opened(path, mode)
        file.write = lambda content, write=file.write: (write(content[: len(content) // 2]), file.flush(), kill())
        return file

    def work():
        patches = {
            "mkdir": (Path, "mkdir", kill), "open": (Path, "open", kill), "fsync": (os, "fsync", kill),
            "write": (Path, "open", torn), "replace": (os, "replace", kill), "replaced": (os, "replace", replaced),
        }  # fmt: skip
        setattr(*patches[step])
        save(1)

    child = in_a_child(work)
    assert os.WTERMSIG(os.waitpid(child, 0)[1]) == signal.SIGKILL
    with tally.injection():
        assert all(map(results.read, damaged.files(results.folder())))  # nothing torn counts
        assert before is None or file.read_bytes() == before
        left = list(own_results.rglob(f"*{atomic.ENDING}"))
        assert len(left) == (step in ("write", "fsync", "replace"))
        assert damaged.clean_store(alone=True) == 0
        assert not any(map(Path.exists, left))
        save(1)
        assert results.status(file) == "ok"


@pytest.mark.faults(4, "an error of the system, simulated")
@pytest.mark.parametrize("call", ["open", "fsync", "replace", "rename"])
@pytest.mark.parametrize(
    ("number", "reason"),
    [
        (errno.ENOSPC, "the disk is full"),
        (errno.EFBIG, "a file may not grow beyond the limit that `ulimit -f` shows"),
        (errno.EDQUOT, "the quota of the disk is used up"),
        (errno.EROFS, "the file system is read-only"),
        (errno.EACCES, "permission denied"),
        (errno.ESTALE, os.strerror(errno.ESTALE)),
    ],
)
def test_any_error_of_any_step_is_one_clear_line_and_leaves_the_file_as_it_was(
    file, tally, monkeypatch, call, number, reason
):
    if call == "rename":  # sets damaged files aside
        file.write_bytes(b"")
    before = file.read_bytes()

    def fail(*_):
        raise OSError(number, os.strerror(number))

    with tally.injection(), monkeypatch.context() as patch:
        patch.setattr(Path if call == "open" else os, call, fail)
        with pytest.raises(atomic.CannotWrite) as raised:
            damaged.clean_store(alone=False) if call == "rename" else save(1)
        assert str(raised.value) == f"{file.parent}: cannot be written, {reason}"
        assert raised.value.errno == number
    assert file.read_bytes() == before
    assert list(file.parent.iterdir()) == [file]


@pytest.mark.faults(4, "a folder that is gone, or a file in its place")
@pytest.mark.parametrize("level", range(3))
def test_a_folder_that_is_gone_is_not_made_again_unasked(own_results, file, tally, level):
    content, gone = file.read_bytes(), file.parents[2 - level]
    shutil.rmtree(gone)
    with tally.injection():
        if level == 0:
            with pytest.raises(atomic.CannotWrite, match=r"the folder is gone$"):
                results.write(content)
            assert not own_results.exists()
        else:  # those of a machine and of an experiment are made whenever they are needed
            results.write(content)
            shutil.rmtree(gone)
        gone.write_text("in the way")
        for write in (lambda: results.write(content), lambda: save(1)):
            with pytest.raises(atomic.CannotWrite, match=r"a file where a folder is expected$"):
                write()
        gone.unlink()
        save(1)


@pytest.mark.parametrize("number", [errno.EINVAL, errno.ENOTSUP])
def test_a_file_system_without_fsync_of_folders_is_no_error(own_results, monkeypatch, number):
    fsync = os.fsync

    def files_alone(opened):
        if os.path.isdir(f"/proc/self/fd/{opened}"):
            raise OSError(number, os.strerror(number))
        fsync(opened)

    monkeypatch.setattr(os, "fsync", files_alone)
    save(1)
    assert parse(next(own_results.rglob("*.json")).read_bytes())
