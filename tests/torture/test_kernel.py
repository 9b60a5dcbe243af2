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


def blocks(*behaviours, device="cpu"):
    """A sweep file with a kernel for each behaviour: of its two cases, 11 and 12 of the first, the first behaves so."""
    each = (
        f"  - {{number: [{n}1, {n}2], behaviour: {behaviour}, at: {n}1, pause_ms: 5, device: {device}}}\n"
        for n, behaviour in enumerate(behaviours, 1)
    )
    return "cheap:\n" + "".join(each)


@pytest.mark.faults(9, "a notebook that raises, leaves, dies, never ends")
def test_a_notebook_that_raises_leaves_dies_or_never_ends_is_a_failure_in_a_line_and_the_others_are_measured(
    sweep_of, tally
):
    bad = ["raise", "exit", "kill", "unfinished"]
    for _ in range(count(1, 5)):
        sweep = sweep_of(blocks(*bad, "ok"))
        done = sweep.run()
        said, statuses = lines(done.err), sweep.statuses()
        with tally.injection(len(bad)):
            assert done.code == 1, f"exit {done.code}, {done.err[-500:]}"
            assert "Traceback" not in done.err
            assert len(said) == len(bad) + 1, "\n".join(said)  # the last is the command that tries again
            assert sum("KeyError: 'a bug of the case'" in line for line in said) == 1
            assert sum("before its last cell" in line for line in said) == 1
            assert sum("died" in line for line in said) == 2
            assert 11 not in statuses
            assert statuses[31] == "crashed"
            fine = [12, 22, 32, 41, 42, 51, 52]  # 11 and 21 stop their kernels, and what comes next has new ones
            assert {number: statuses.get(number) for number in fine} == dict.fromkeys(fine, "ok")
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


@pytest.fixture
def memory_group():
    """A control group in which processes may use 64 MiB together."""
    for root, limit in GROUPS.items():
        folder = root / f"faults-{os.getpid()}"
        with contextlib.suppress(OSError):
            folder.mkdir()
            (folder / limit).write_text(str(64 * 2**20))
            yield folder
            break
        with contextlib.suppress(OSError):
            folder.rmdir()
    else:
        pytest.skip("to limit the memory of a process, so that the system kills it, takes rights to control groups")
    until(lambda: not (folder / "cgroup.procs").read_text(), 10, "the end of the group's processes")
    folder.rmdir()


def out_of_memory(sweep_of, tally, behaviours, device="cpu", **variables):
    """Run kernels of two cases of which the first takes too much memory; the second is measured, by another process."""
    for _ in range(count(1, 5)):
        sweep = sweep_of(blocks(*behaviours, device=device))
        sweep.variables |= variables
        done = sweep.run()
        with tally.injection(len(behaviours)):
            assert done.code == 0, f"exit {done.code}, {done.err[-500:]}"
            kernels = range(1, 1 + len(behaviours))
            assert sweep.statuses() == {10 * n + 1: "oom" for n in kernels} | {10 * n + 2: "ok" for n in kernels}
            processes = {entry["number"]: entry["pid"] for entry in sweep.journal("begins")}
            assert len(set(processes.values())) == 2 * len(kernels), "what had no memory left measured the next case"
            sweep.none_left(1)


@pytest.mark.faults(5, "no memory: RuntimeError on a CPU, MemoryError")
def test_a_case_that_finds_no_memory_is_a_row_and_the_next_one_has_a_new_process(sweep_of, tally):
    out_of_memory(sweep_of, tally, ["oom", "memory_error"][: count(1, 2)])


@pytest.mark.faults(5, "no memory: killed by the system")
def test_a_case_whose_process_the_system_kills_for_want_of_memory_is_a_row(sweep_of, tally, memory_group):
    out_of_memory(sweep_of, tally, ["eat"], CHEAP_GROUP=str(memory_group))


@pytest.mark.faults(5, "no memory on CUDA")
def test_a_case_that_finds_no_memory_on_a_gpu_is_a_row(sweep_of, tally):
    import torch  # which the other tests of faults do without

    if not torch.cuda.is_available():
        pytest.skip("there is no GPU")
    out_of_memory(sweep_of, tally, ["oom"], "cuda")
