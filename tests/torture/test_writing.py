"""Kills in the middle of a write, and disks that take no more: no torn file counts as a record, what was whole before
stays so, and one line says why nothing more can be written."""

import errno
import functools
import os
import resource
import shutil
import signal
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

import storing
from faults import ROOT, count, moment
from lib.records import atomic, damaged, results
from lib.records.record import parse

MACHINE = "test-1c"


def test_a_temporary_file_that_someone_took_for_a_leftover_is_written_again(own_results, monkeypatch):
    replace, taken = os.replace, []

    def sweep_first(temporary, target):
        if not taken:
            taken.append(temporary.unlink())
        replace(temporary, target)

    monkeypatch.setattr(os, "replace", sweep_first)
    storing.save(1)
    assert results.status(results.folder() / MACHINE / "attention" / "naive-1.r1.json") == "ok"


def in_a_child(work) -> int:
    """Start `work` in a child process, which can be killed without harm to this one; returns its id."""
    if child := os.fork():
        return child
    try:
        work()
    finally:  # not back into the tests
        os._exit(1)


def after_the_kill(acknowledged: list[int], tally) -> int:
    """Nothing that was said to be on disk is lost, nothing torn counts, what is left over goes; how much that is."""
    with tally.injection():
        whole = {file.name for file in damaged.files(results.folder()) if results.read(file)}
        assert {f"naive-{number}.r1.json" for number in acknowledged} <= whole
        left = list(results.folder().rglob(f"*{atomic.ENDING}"))
        assert damaged.clean_store(alone=True) == 0
        assert not list(results.folder().rglob(f"*{atomic.ENDING}"))
    return len(left)


def tell(pipe: int, number: int) -> None:
    os.write(pipe, f"{number}\n".encode())


@pytest.mark.faults(3, "kill -9 of a process that saves without end")
def test_a_kill_while_records_are_written_tears_none(own_results, tally):
    acknowledged, saved, leftovers = [], 0, 0
    for kill in range(count(20, 200)):
        if kill % 10 == 0:  # anew, since all that is there is read after each kill
            shutil.rmtree(own_results, ignore_errors=True)
            acknowledged.clear()
        reading, writing = os.pipe()
        say = functools.partial(tell, writing)
        child = in_a_child(functools.partial(storing.loop, len(acknowledged) + 1, None, say))
        os.close(writing)
        with open(reading) as told:
            said = [int(told.readline())]
            moment(0.1)
            os.kill(child, signal.SIGKILL)
            os.waitpid(child, 0)
            said += map(int, told.read().split())
        acknowledged += said
        saved += len(said)
        leftovers += after_the_kill(acknowledged, tally)
    tally.notes.append(f"{saved} records, {leftovers} leftovers")


@pytest.mark.faults(3, "kill -9 at each step of a write")
@pytest.mark.parametrize("step", ["mkdir", "open", "write", "fsync", "replace", "replaced"])
def test_a_kill_at_each_step_of_a_write_leaves_the_earlier_record_or_the_new_one(own_results, tally, step):
    if step != "mkdir":
        storing.save(1)
    file = own_results / MACHINE / "attention" / "naive-1.r1.json"
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
        storing.save(1)

    child = in_a_child(work)
    assert os.WTERMSIG(os.waitpid(child, 0)[1]) == signal.SIGKILL
    left = after_the_kill([1] if before else [], tally)
    assert left == (step in ("write", "fsync", "replace"))
    assert before is None or file.read_bytes() == before
    storing.save(1)
    assert results.status(file) == "ok"


def run(command: list[str], folder: Path, **settings) -> subprocess.CompletedProcess:
    variables = os.environ | {"RESULTS": str(folder / "results"), "PYTHONPATH": f"{ROOT}:{ROOT / 'tests' / 'support'}"}
    return subprocess.run(command, env=variables, cwd=ROOT, capture_output=True, text=True, **settings)


STORING = [sys.executable, str(ROOT / "tests" / "support" / "storing.py")]


def refused_in_one_line(done, reason) -> list[int]:
    """The numbers that were saved before the system refused to write."""
    assert done.returncode == 74, done.stderr
    assert len(done.stderr.splitlines()) == 1, done.stderr
    assert f"attention: cannot be written, {reason}" in done.stderr
    return [int(line) for line in done.stdout.split()]


@pytest.mark.faults(4, "a limit on the size of files")
def test_a_limit_on_the_size_of_files_costs_that_record_alone(own_results, tally):
    def limit():
        resource.setrlimit(resource.RLIMIT_FSIZE, (20_000, 20_000))

    storing.save(3)
    with tally.injection():
        assert refused_in_one_line(run([*STORING, "5"], own_results.parent, preexec_fn=limit), "a file may not") == []
        assert [file.name for file in own_results.rglob("*.*")] == ["naive-3.r1.json"]
        assert run([*STORING, "5"], own_results.parent).returncode == 0
        assert damaged.clean_store(alone=True) == 0


MOUNT = ["unshare", "--map-root-user", "--mount", "sh", "-ec"]


def may_mount() -> bool:
    """Whether a file system of our own can be mounted, which no one else sees."""
    if not shutil.which("unshare"):
        return False
    tried = subprocess.run([*MOUNT, f"mount -t tmpfs none {tempfile.gettempdir()}"], capture_output=True)
    return tried.returncode == 0


@pytest.fixture
def small_disk(tmp_path):
    """Run a script of the shell where `$DISK` is a file system of 1 MiB, of which nothing remains afterwards."""
    if not may_mount():
        pytest.skip("no file system can be mounted here")
    disk = tmp_path / "disk"
    disk.mkdir()

    def script(text):
        return run([*MOUNT, f"DISK={disk}; mount -t tmpfs -o size=1M none $DISK; {text}"], disk)

    return script


SAVE = f"{STORING[0]} {STORING[1]}"
LOOK = "from lib.records import damaged, results; print(damaged.clean_store(alone=True), len(results.files('test-1c')))"
CHECK = f'{STORING[0]} -c "{LOOK}"'


@pytest.mark.faults(4, "a disk that is full")
def test_a_full_disk_leaves_the_earlier_records_whole_and_the_same_command_goes_on(small_disk, tally):
    with tally.injection():
        done = small_disk(
            f"{SAVE} 100 && exit 1 || code=$?; ls $DISK/results/*/*/*.tmp >&2 2>/dev/null || true; {CHECK};"
            f"mount -o remount,size=100M $DISK; {SAVE} 40 >/dev/null; {CHECK}; exit $code"
        )
        *numbers, damaged, files, damaged_later, files_later = refused_in_one_line(done, "the disk is full")
        assert numbers == list(range(1, len(numbers) + 1))
        assert 1 < len(numbers) < 40
        assert (damaged, files) == (0, len(numbers))
        assert (damaged_later, files_later) == (0, 40)


@pytest.mark.faults(4, "a disk that becomes read-only")
def test_a_disk_that_becomes_read_only_is_one_clear_line(small_disk, tally):
    with tally.injection():
        done = small_disk(f"{SAVE} 2; mount -o remount,ro $DISK; {SAVE} 3 || code=$?; {CHECK}; exit $code")
        assert refused_in_one_line(done, "the file system is read-only") == [1, 2, 0, 2]


@pytest.mark.faults(4, "a damaged record on a read-only disk")
def test_what_cannot_be_set_aside_is_one_clear_line_and_still_not_shown(small_disk, tally):
    with tally.injection():
        done = small_disk(
            f"{SAVE} 1; echo >> $DISK/results/test-1c/attention/naive-1.r1.json; mount -o remount,ro $DISK; {CHECK}"
        )
        assert done.returncode != 0
        assert "results/test-1c/attention: cannot be written, the file system is read-only" in done.stderr


@pytest.mark.faults(4, "a folder without permission to write")
def test_a_folder_that_may_not_be_written_is_one_clear_line(monkeypatch, tally):
    with tempfile.TemporaryDirectory() as name:
        Path(name).chmod(0o755)
        monkeypatch.setenv("RESULTS", f"{name}/results")
        storing.save(1)
        kept = next(Path(name).rglob("*.json"))
        for folder in kept.parents[:4]:
            folder.chmod(0o555)
        kept.chmod(0o644)
        root = os.geteuid() == 0  # whom permissions do not bind
        try:
            if root:
                os.seteuid(65534)
            with tally.injection(), pytest.raises(atomic.CannotWrite, match=r"permission denied$"):
                storing.save(2)
        finally:
            if root:
                os.seteuid(0)
            for folder in kept.parents[:4]:
                folder.chmod(0o755)
        assert damaged.clean_store(alone=True) == 0
        assert [file.name for file in Path(name).rglob("*.*")] == ["naive-1.r1.json"]


@pytest.mark.faults(4, "a folder that is gone, or a file in its place")
@pytest.mark.parametrize("level", range(3))
def test_a_folder_that_is_gone_is_not_made_again_unasked(own_results, tally, level):
    storing.save(1)
    content = (own_results / MACHINE / "attention" / "naive-1.r1.json").read_bytes()
    gone = [own_results, own_results / MACHINE, own_results / MACHINE / "attention"][level]
    shutil.rmtree(gone)
    with tally.injection():
        if level == 0:
            with pytest.raises(atomic.CannotWrite, match=r"the folder is gone$"):
                results.write(content)
            assert not gone.exists()
        else:  # those of a machine and of an experiment are made whenever they are needed
            results.write(content)
            shutil.rmtree(gone)
        gone.write_text("in the way")
        with pytest.raises(atomic.CannotWrite, match=r"a file where a folder is expected$"):
            results.write(content)
        with pytest.raises(atomic.CannotWrite, match=r"a file where a folder is expected$"):
            storing.save(1)
        gone.unlink()
        storing.save(1)


@pytest.mark.faults(4, "an error of the system, simulated")
@pytest.mark.parametrize("call", ["fsync", "replace", "open"])
@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EDQUOT, errno.EIO, errno.EROFS, errno.ESTALE])
def test_any_error_of_any_step_keeps_the_earlier_record(own_results, tally, monkeypatch, call, number):
    storing.save(1)
    file = own_results / MACHINE / "attention" / "naive-1.r1.json"
    before = file.read_bytes()

    def fail(*_):
        raise OSError(number, os.strerror(number))

    with tally.injection(), monkeypatch.context() as patch:
        patch.setattr(Path if call == "open" else os, call, fail)
        with pytest.raises(atomic.CannotWrite) as raised:
            storing.save(1)
        assert str(raised.value).startswith(f"{file.parent}: cannot be written, ")
        assert raised.value.errno == number
    assert file.read_bytes() == before
    assert list(file.parent.iterdir()) == [file]


@pytest.mark.parametrize("number", [errno.EINVAL, errno.ENOTSUP])
def test_a_file_system_without_fsync_of_folders_is_no_error(own_results, monkeypatch, number):
    fsync = os.fsync

    def files_alone(opened):
        if os.path.isdir(f"/proc/self/fd/{opened}"):
            raise OSError(number, os.strerror(number))
        fsync(opened)

    monkeypatch.setattr(os, "fsync", files_alone)
    storing.save(1)
    assert parse(next(own_results.rglob("*.json")).read_bytes())
