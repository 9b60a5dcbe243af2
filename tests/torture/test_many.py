"""A sweep of many cases does not grow, one killed several times gives what an undisturbed one gives, and kernels
side by side, on several GPUs, do not get into each other's way."""

import contextlib
import itertools
import json
import statistics
import time

import psutil
import pytest

from faults import TORTURE, count, kernel_spans, moment, until
from lib.stats import comparisons

GROWTH_BYTES = 10e6
PAUSE_MS = 10
OVERHEAD_MS = 50


@pytest.mark.faults(15, "200 cases in one sweep")
def test_in_200_cases_the_supervisor_keeps_its_memory_and_its_files_and_leaves_no_zombie(sweep_of, tally):
    rounds = count(4, 10)
    each = 200 // rounds
    sweep = sweep_of(f"rounds: {rounds}\ncheap: {{number: {list(range(1, 1 + each))}, pause_ms: {PAUSE_MS}}}")
    process = sweep.start()
    resident, files, zombies, kernel = [], {}, set(), None
    with contextlib.suppress(psutil.NoSuchProcess):
        supervisor = psutil.Process(process.pid)
        while supervisor.status() != psutil.STATUS_ZOMBIE:
            begun, accepted = sweep.journal("begins"), len(sweep.records())
            if 20 < accepted < 200:  # what sums up in the end comes on top
                resident.append(supervisor.memory_info().rss)
            if begun and begun[-1] != begun[0] and len(begun) % each not in (0, 1):  # in the midst of a kernel's cases
                files.setdefault(begun[-1]["pid"], []).append(supervisor.num_fds())
                ended = {child.pid for child in supervisor.children() if child.status() == psutil.STATUS_ZOMBIE}
                zombies = zombies & ended if begun[-1]["pid"] == kernel else ended  # those of all of a kernel's cases
                kernel = begun[-1]["pid"]
            time.sleep(0.02)
    done = sweep.end(process)
    with tally.injection(200):
        assert done.code == 0, done.err[-500:]
        assert len(sweep.records()) == 200
        assert len(resident) > 20
        grown = max(resident) - resident[0]
        assert grown <= GROWTH_BYTES, f"grew by {grown / 1e6:.1f} MB"
        least = [min(found) for found in files.values()]  # what is open only for a moment comes on top
        assert len(least) > rounds // 2
        assert max(least) <= least[0], f"open files, by kernel: {least}"
        assert not zombies
        sweep.none_left(1)
    between, starts = overheads(sweep.journal())
    with tally.injection(0):
        assert not TORTURE or between < OVERHEAD_MS, f"{between:.0f} ms a case beyond what it takes"
    tally.notes.append(f"{between:.0f} ms a case beyond what it takes; {starts:.1f} s from one kernel to the next")
    tally.notes.append(f"grew by {grown / 1e6:.1f} MB")


def overheads(journal):
    """The median of the time between the beginnings of two cases of a kernel less what they pause, in ms; and that from
    the last case of a kernel to the first of the next, in seconds."""
    begun = [entry for entry in journal if entry["event"] == "begins"]
    kernels = [list(group) for _, group in itertools.groupby(begun, key=lambda entry: entry["pid"])]
    gaps = [b["time"] - a["time"] for kernel in kernels for a, b in itertools.pairwise(kernel)]
    starts = [after[0]["time"] - before[-1]["time"] for before, after in itertools.pairwise(kernels)]
    return 1e3 * statistics.median(gaps) - PAUSE_MS, statistics.median(starts)


@pytest.mark.torture
@pytest.mark.faults(15, "kernels that die and hang in one sweep")
def test_kernels_that_die_and_hang_leave_no_file_open_in_the_supervisor(sweep_of, tally):
    bad = ["kill", "kill"] + ["sleep", "spin", "children", "deaf", "kill"] * count(0, 1)
    sweep = sweep_of("timeout: 12\ncheap:\n" + "".join(map(death, range(1, 1 + len(bad)), bad)))
    process = sweep.start()
    files = open_files(sweep, process)
    done = sweep.end(process)
    with tally.injection(sum(2 if how == "kill" else 1 for how in bad)):  # what died is tried once more
        assert done.code == 1, done.err[-500:]
        rows = {10 * n + 1: "crashed" if how == "kill" else "timeout" for n, how in enumerate(bad, 1)}
        assert sweep.statuses() == rows | {number + 1: "ok" for number in rows}, done.err[-500:]
        assert len(files) == len(bad)
        least = [min(found) for found in files.values()]  # what is open only for a moment comes on top
        assert max(least) <= least[0], f"open files after the second death, and after each later row: {least}"
        sweep.none_left(1)


def death(n, how):
    """The part of a sweep file for two cases, of which the first dies or hangs and the second stays for a while."""
    return f"  - {{number: [{n}1, {n}2], behaviour: {how}, at: {n}1, pause_ms: 1000}}\n"


def open_files(sweep, process):
    """How many descriptors the supervisor has, at several moments of each second case, by its number."""
    files = {}
    with contextlib.suppress(psutil.NoSuchProcess):
        while process.poll() is None:
            begun, saved = ([entry["number"] for entry in sweep.journal(event)] for event in ("begins", "saved"))
            found = psutil.Process(process.pid).num_fds()
            if begun and begun[-1] % 10 == 2 and begun[-1] not in saved:
                files.setdefault(begun[-1], []).append(found)
            time.sleep(0.02)
    return files


@pytest.mark.torture
@pytest.mark.faults(16, "a sweep killed three times")
def test_a_sweep_killed_three_times_gives_the_cases_of_an_undisturbed_one_and_times_like_its(sweep_of, tally):
    rounds, cases, kills = count(2, 6), count(5, 20), count(2, 3)
    text = f"rounds: {rounds}\ncheap: {{number: {list(range(1, 1 + cases))}, pause_ms: 60, samples: 60}}"
    killed, undisturbed = sweep_of(text), [sweep_of(text), sweep_of(text)] if TORTURE else []
    # one before and one after, so that a machine that gets slower by itself is not taken for an effect of the kills
    with tally.injection(kills):
        assert all(sweep.run().code == 0 for sweep in undisturbed[:1])
        for kill in range(kills):
            kill_once(killed, "kernel" if kill == 1 else "supervisor")
        assert killed.run().code == 0
        for round in range(1, 1 + rounds):
            assert killed.statuses(round) == dict.fromkeys(range(1, 1 + cases), "ok")
        assert all(sweep.run().code == 0 for sweep in undisturbed[1:])
    if TORTURE:  # elsewhere nothing is timed
        first, second = (differing(killed, other) for other in undisturbed)
        both = {case for case in first if first[case] == second.get(case)}
        tally.notes.append(f"{len(both)} of {cases} differ; {len(differing(*undisturbed))} between the undisturbed")
        assert len(both) <= 0.05 * cases, f"{len(both)} of {cases} differ from both undisturbed sweeps: {both}"


def kill_once(sweep, what):
    """Run the sweep until its supervisor is killed at some moment, or its kernel, and soon after that it is stopped."""
    process, known = sweep.start(), len(sweep.records())
    until(lambda: len(sweep.records()) > known, 60, "a record")
    moment(1)
    for victim in sweep.kernels() if what == "kernel" else [process]:
        victim.kill()
    if what == "kernel":
        moment(2)
        process.terminate()
    sweep.end(process)
    sweep.none_left()


def differing(one, other):
    """The cases that differ significantly between two sweeps, corrected for how many they are, with how they differ."""
    times = [samples(sweep) for sweep in (one, other)]
    numbers = sorted(times[0])
    ratios = [comparisons.of_medians(*(found[number] for found in times)) for number in numbers]
    verdicts = comparisons.verdicts([comparisons.moderated(ratio) for ratio in ratios])
    return {n: verdict for n, verdict in zip(numbers, verdicts, strict=True) if verdict in ("faster", "slower")}


def samples(sweep):
    """The samples of each case by its number and round."""
    found = {}
    for content in sweep.records().values():
        record = json.loads(content)
        found.setdefault(record["case"]["number"], {})[record["round"]] = record["metrics"]["total_ms"]
    return found


@pytest.mark.faults(0, "kernels side by side, on two GPUs that pretend")
def test_kernels_on_several_gpus_have_each_its_own_and_what_needs_the_machine_runs_alone(sweep_of, tally):
    gpu = "".join(f"  - {{number: [{n}1, {n}2, {n}3], pause_ms: 500, device: cuda}}\n" for n in range(1, 5))
    sweep = sweep_of(f"rounds: {count(1, 5)}\ncheap:\n{gpu}  - {{number: [51, 52], pause_ms: 150, device: cpu}}")
    sweep.variables |= {"CHEAP_GPUS": "yes", "CUDA_VISIBLE_DEVICES": "3,5"}
    done = sweep.run()
    with tally.injection(5 * count(1, 5)):
        assert done.code == 0, done.err[-500:]
        assert len(sweep.records()) == 14 * count(1, 5)
        spans = kernel_spans(sweep.journal())
        side_by_side = 0
        for one, other in itertools.combinations(spans, 2):
            if one["begins"] < other["ends"] and other["begins"] < one["ends"]:
                side_by_side += 1
                assert {one["pin"], other["pin"]} == {"3", "5"}, f"{one} beside {other}"
                assert not {one["alone"], other["alone"]} & {True}, f"{one} beside {other}"
        assert side_by_side
        assert {span["pin"] for span in spans if not span["alone"]} == {"3", "5"}
