"""Where the results cannot be written the sweep says so in a line and ends, what it had written is whole, and the same
command goes on once they can be written again."""

import contextlib
import resource
import subprocess

import pytest

from faults import count, lines, until

LIMIT_BYTES = 30_000  # of a file; the records here are larger, and nothing else is
CASES_EACH = 8


def mount(*arguments):
    return subprocess.run(["mount", *map(str, arguments)], capture_output=True).returncode == 0


@contextlib.contextmanager
def full(sweep, process):
    """No space is left on the device."""
    with contextlib.suppress(OSError), (sweep.results.parent / "filler").open("wb", buffering=0) as file:
        while True:
            file.write(b"0" * 4096)
    yield
    (sweep.results.parent / "filler").unlink()


@contextlib.contextmanager
def read_only(sweep, process):
    """The file system of the results is mounted again, only to be read."""
    assert mount("--bind", sweep.results, sweep.results)
    assert mount("-o", "remount,bind,ro", sweep.results)
    yield
    subprocess.run(["umount", "--lazy", sweep.results], check=True)


@contextlib.contextmanager
def gone(sweep, process):
    """The folder of the results is not where it was."""
    elsewhere = sweep.results.with_name("elsewhere")
    sweep.results.rename(elsewhere)
    yield
    assert not sweep.results.exists(), "it was made anew, without what had been in it"
    elsewhere.rename(sweep.results)


@contextlib.contextmanager
def limited(sweep, process):
    """No file may become so large as a record, of those that the supervisor writes."""
    resource.prlimit(process.pid, resource.RLIMIT_FSIZE, (LIMIT_BYTES, LIMIT_BYTES))
    yield


@pytest.fixture
def sweep_on_disk(sweep_of):
    """Makes a sweep whose results are on a small disk of their own; None where that takes rights that are missing."""
    mounted = []

    def sweep_on_disk(text):
        sweep = sweep_of(text)
        sweep.results.parent.mkdir()
        if not mount("-t", "tmpfs", "-o", "size=16m", "tmpfs", sweep.results.parent):
            return None
        mounted.append(sweep)
        return sweep

    yield sweep_on_disk
    for sweep in mounted:
        sweep.clear()
        for folder in (sweep.results, sweep.results.parent):
            subprocess.run(["umount", "--lazy", folder], capture_output=True)


def text(faults):
    return f"cheap: {{number: {list(range(1, 1 + CASES_EACH * faults))}, pause_ms: 50, samples: 2000}}"


@pytest.mark.faults(4, "disk full, gone, read-only, file-size limit")
def test_where_records_cannot_be_written_any_more_the_sweep_says_so_ends_and_can_be_resumed(
    sweep_on_disk, sweep_of, tally
):
    faults = [full, gone, *[read_only, limited, full, gone] * count(0, 5)]
    sweep = sweep_on_disk(text(len(faults)))
    if sweep is None:  # without the right to mount
        faults = [limited, gone] * count(1, 5)
        sweep = sweep_of(text(len(faults)))
        tally.notes.append("a disk that is full or read-only was left out, since this user may not mount one")
    for fault in faults:
        with tally.injection():
            process, before = sweep.start(), len(sweep.records())
            until(lambda: len(sweep.records()) > before + 1, 60, "a record")  # noqa: B023
            with fault(sweep, process):
                done = sweep.end(process, 30)
            assert done.code == 74, f"{fault.__doc__} exit {done.code}: {done.err[-1000:]}"
            assert len(lines(done.err)) == 1, f"{fault.__doc__} {lines(done.err)}"
            assert str(sweep.results) in lines(done.err)[0], lines(done.err)
            assert set(sweep.statuses().values()) == {"ok"}
            sweep.none_left()
    before = sweep.records()
    done = sweep.run()
    assert done.code == 0, done.err[-500:]
    assert sweep.statuses() == dict.fromkeys(range(1, 1 + CASES_EACH * len(faults)), "ok")
    sweep.unchanged(before)
    assert not sweep.leftovers(), sweep.leftovers()
