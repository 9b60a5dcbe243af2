"""A case that fails, hangs, dies or takes all memory costs itself alone: the others are measured, and a line or a row
says what happened."""

import contextlib
import os
import time
from pathlib import Path

import psutil
import pytest

from faults import count, lines, until

GROUPS = {Path("/sys/fs/cgroup/memory"): "memory.limit_in_bytes", Path("/sys/fs/cgroup"): "memory.max"}
HANG_S = 10  # the time limit of a case, of which a kernel's start takes a part
ENDS = {  # the row of a case that behaves so, and what is said of it
    "raise": (None, "KeyError: 'a bug of the case'"),
    "exit": (None, "ended before its last cell"),
    "kill": ("crashed", "its process died"),
    "unfinished": ("ok", "process died after its last record"),
    "oom": ("oom", None),
    "eat": ("oom", None),
    "ok": ("ok", None),
}


def blocks(*behaviours, device="cpu"):
    """A sweep file with a kernel for each behaviour: of its two cases, 11 and 12 of the first, the first behaves so."""
    each = (
        f"  - {{number: [{n}1, {n}2], behaviour: {behaviour}, at: {n}1, pause_ms: 5, device: {device}}}\n"
        for n, behaviour in enumerate(behaviours, 1)
    )
    return "cheap:\n" + "".join(each)


@pytest.fixture
def memory_group():
    """A control group in which processes may use 64 MiB together; None without the right to make one."""
    for root, limit in GROUPS.items():
        folder = root / f"faults-{os.getpid()}"
        with contextlib.suppress(OSError):
            folder.mkdir()
            (folder / limit).write_text(str(64 * 2**20))
            yield folder
            until(lambda: not (folder / "cgroup.procs").read_text(), 10, "the end of the group's processes")  # noqa: B023
            folder.rmdir()
            return
        with contextlib.suppress(OSError):
            folder.rmdir()
    yield None


@pytest.mark.faults(9, "a notebook that raises, leaves, dies, finds no memory")
def test_a_case_that_ends_badly_is_a_row_or_a_line_and_the_next_one_is_measured_by_a_new_process(
    sweep_of, memory_group, tally
):
    ends = {how: end for how, end in ENDS.items() if how != "eat" or memory_group}
    if not memory_group:
        tally.notes.append("no process was killed for want of memory, which takes rights to control groups")
    for _ in range(count(1, 5)):
        sweep = sweep_of(blocks(*ends))
        sweep.variables["CHEAP_GROUP"] = str(memory_group)
        done = sweep.run()
        said, rows = lines(done.err), {}
        with tally.injection(len(ends)):
            assert done.code == 1, f"exit {done.code}, {done.err[-500:]}"
            assert "Traceback" not in done.err
            for n, (row, line) in enumerate(ends.values(), 1):
                rows |= {10 * n + 1: row, 10 * n + 2: "ok"}
                assert line is None or sum(line in each for each in said) == 1, "\n".join(said)
            assert len(said) == 4 + 1, "\n".join(said)  # the last is the command that tries again
            assert sweep.statuses() == {number: row for number, row in rows.items() if row}
            began = {entry["number"]: entry["pid"] for entry in sweep.journal("begins")}
            one_process = {how for n, how in enumerate(ends, 1) if began[10 * n + 1] == began[10 * n + 2]}
            assert one_process == {"unfinished", "ok"}
            sweep.none_left(1)


@pytest.mark.faults(6, "hangs: sleep, loop in C, deaf, children, after the end")
def test_a_case_that_hangs_is_killed_with_its_children_within_10_s_of_its_limit_and_is_a_row(sweep_of, tally):
    """And a case that ends well leaves its children no longer than its kernel lives."""
    hangs = ["sleep", "spin", "deaf", "children"]
    for _ in range(count(1, 5)):
        sweep = sweep_of(f"timeout: {HANG_S}\n" + blocks(*hangs, "orphans", "lingers", device="cuda"))
        sweep.variables |= {"CHEAP_GPUS": "yes", "CUDA_VISIBLE_DEVICES": "0,1,2,3"}  # all of them at once
        process = sweep.start()
        until(lambda: len(hung(sweep)) == len(hangs), 60, "the hangs")  # noqa: B023
        for kernel, began in hung(sweep):
            with tally.injection():
                left = HANG_S + 10 - (time.time() - began)
                until(lambda: not psutil.pid_exists(kernel), left, "the end of what hung")  # noqa: B023
        with tally.injection(2):
            done = sweep.end(process)
            sweep.none_left(1)
            assert done.code == 1, done.err[-500:]
            rows = dict.fromkeys((11, 21, 31, 41), "timeout") | {51: "ok", 61: "ok"}
            assert sweep.statuses() == rows | dict.fromkeys((12, 22, 32, 42, 52, 62), "ok")
            assert len(lines(done.err)) == len(hangs) + 2, done.err  # and one that lingers, and how to try again


def hung(sweep):
    """The process of each case that has hung, and when it began."""
    return [(entry["pid"], entry["time"]) for entry in sweep.journal("begins") if entry["number"] in (11, 21, 31, 41)]


@pytest.mark.faults(5, "no memory on CUDA")
def test_a_case_that_finds_no_memory_on_a_gpu_is_a_row(sweep_of):
    import torch  # which the other tests of faults do without

    if not torch.cuda.is_available():
        pytest.skip("there is no GPU")
    sweep = sweep_of(blocks("oom", device="cuda"))
    assert sweep.run().code == 0
    assert sweep.statuses() == {11: "oom", 12: "ok"}
    assert len({entry["pid"] for entry in sweep.journal("begins")}) == 2
