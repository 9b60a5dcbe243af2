"""A sweep of many cases does not grow, and kernels side by side, on several GPUs, do not get into each other's way."""

import contextlib
import itertools
import statistics
import time

import psutil
import pytest

from faults import TORTURE, count, kernels_side_by_side, lines

GROWTH_BYTES = 10e6
PAUSE_MS = 10
OVERHEAD_MS = 50


def watched(sweep, midst):
    """Run a sweep; return how it ended, the memory that it had, its files by kernel, and the children it did not bury.

    These are of moments when a kernel is in the midst of its cases, as `midst` says of the numbers of those that have
    begun and of those that are saved. What is open only for a moment comes on top."""
    process = sweep.start()
    resident, files, zombies, last = [], {}, set(), None
    with contextlib.suppress(psutil.NoSuchProcess):
        supervisor = psutil.Process(process.pid)
        while supervisor.status() != psutil.STATUS_ZOMBIE:
            begun, saved = sweep.journal("begins"), [entry["number"] for entry in sweep.journal("saved")]
            if begun and midst([entry["number"] for entry in begun], saved):
                kernel = begun[-1]["pid"]
                resident.append(supervisor.memory_info().rss)
                files.setdefault(kernel, []).append(supervisor.num_fds())
                ended = {child.pid for child in supervisor.children() if child.status() == psutil.STATUS_ZOMBIE}
                zombies = zombies & ended if kernel == last else ended  # those of all of a kernel's cases
                last = kernel
            time.sleep(0.02)
    return sweep.end(process), resident, [min(found) for found in files.values()], zombies


@pytest.mark.faults(15, "200 cases in one sweep")
def test_in_200_cases_the_supervisor_keeps_its_memory_and_its_files_and_leaves_no_zombie(sweep_of, tally):
    rounds = count(4, 10)
    each = 200 // rounds
    sweep = sweep_of(f"rounds: {rounds}\ncheap: {{number: {list(range(1, 1 + each))}, pause_ms: {PAUSE_MS}}}")
    done, resident, files, zombies = watched(sweep, lambda begun, saved: len(saved) > 20 and len(begun) % each > 1)
    with tally.injection(200):
        assert done.code == 0, done.err[-500:]
        assert len(sweep.records()) == 200
        assert len(resident) > 20
        grown = max(resident) - resident[0]
        assert grown <= GROWTH_BYTES, f"grew by {grown / 1e6:.1f} MB"
        assert len(files) > rounds // 2
        assert max(files) <= files[0], f"open files, by kernel: {files}"
        assert not zombies
        sweep.none_left(1)
    between, starts = overheads(sweep.journal("begins"))
    with tally.injection(0):
        assert not TORTURE or between < OVERHEAD_MS, f"{between:.0f} ms a case beyond what it takes"
    tally.notes.append(f"{between:.0f} ms a case beyond what it takes; {starts:.1f} s from one kernel to the next")
    tally.notes.append(f"grew by {grown / 1e6:.1f} MB")


def overheads(begun):
    """The median of the time between the beginnings of two cases of a kernel less what they pause, in ms; and that from
    the last case of a kernel to the first of the next, in seconds."""
    kernels = [list(group) for _, group in itertools.groupby(begun, key=lambda entry: entry["pid"])]
    gaps = [b["time"] - a["time"] for kernel in kernels for a, b in itertools.pairwise(kernel)]
    starts = [after[0]["time"] - before[-1]["time"] for before, after in itertools.pairwise(kernels)]
    return 1e3 * statistics.median(gaps) - PAUSE_MS, statistics.median(starts)


@pytest.mark.torture
@pytest.mark.faults(15, "kernels that die and hang in one sweep")
def test_kernels_that_die_and_hang_leave_no_file_open_in_the_supervisor(sweep_of, tally):
    bad = ["kill", "kill", "sleep", "spin", "children", "deaf", "kill"]
    block = "  - {{number: [{0}1, {0}2], behaviour: {1}, at: {0}1, pause_ms: 1000}}\n"
    sweep = sweep_of("timeout: 12\ncheap:\n" + "".join(block.format(n, how) for n, how in enumerate(bad, 1)))
    done, _, files, _ = watched(sweep, lambda begun, saved: begun[-1] % 10 == 2 and begun[-1] not in saved)
    with tally.injection(len(bad) + bad.count("kill")):  # what died is tried once more
        assert done.code == 1, done.err[-500:]
        rows = {10 * n + 1: "crashed" if how == "kill" else "timeout" for n, how in enumerate(bad, 1)}
        assert sweep.statuses() == rows | {number + 1: "ok" for number in rows}, lines(done.err)
        assert len(files) == len(bad)
        assert max(files) <= files[0], f"open files after the second death, and after each later row: {files}"
        sweep.none_left(1)


@pytest.mark.faults(0, "kernels side by side, on two GPUs that pretend")
def test_kernels_on_several_gpus_have_each_its_own_and_what_needs_the_machine_runs_alone(sweep_of, tally):
    gpu = "".join(f"  - {{number: [{n}1, {n}2], pause_ms: 500, device: cuda}}\n" for n in range(1, 5))
    sweep = sweep_of(f"rounds: {count(1, 5)}\ncheap:\n{gpu}  - {{number: [51, 52], pause_ms: 150, device: cpu}}")
    sweep.variables |= {"CHEAP_GPUS": "yes", "CUDA_VISIBLE_DEVICES": "3,5"}
    done = sweep.run()
    with tally.injection(5 * count(1, 5)):
        assert done.code == 0, done.err[-500:]
        assert len(sweep.records()) == 10 * count(1, 5)
        kernels_side_by_side(sweep.journal(), {"3", "5"}, "3,5")
