"""What nsys prints becomes a table, and what it watches has ranges that nest as the phases do. No nsys is needed."""

import contextlib
import subprocess
import sys
from dataclasses import replace

import psutil
import pytest

from lib.experiments import nsys
from lib.experiments.measure import Recording
from lib.experiments.training import Training
from lib.instruments import peak_memory, processes

HEADER = "NVTX Range,Style,PID,TID,NVTX Inst,Kern Inst,Total Time (ns),Avg (ns),Med (ns),Min (ns),Max (ns),StdDev (ns)"
PRINTED = f"""Generating SQLite file kernels.sqlite from kernels.nsys-rep
Processing [kernels.sqlite] with [reports/nvtx_kern_sum.py]...

{HEADER},Kernel Name
:forward,PushPop,9,9,1,153,74778000,488742.0,310056.0,308200,1223000,363704.0,ampere_sgemm_128x64_tn
:forward,PushPop,9,9,1,2,4264,2132.0,2132.0,2000,2264,132.0,"void f<int, float>(int, T3)"
softmax,PushPop,9,9,48,48,48000,1000.0,1000.0,900,1100,10.5,softmax_warp_forward
"""


@pytest.fixture
def case():
    return nsys.parse(["context_length=16", "batch_size=1", "device=cpu"])


@pytest.fixture
def on_cuda(monkeypatch):
    """Let nsys watch cases as if they were on CUDA, and both of its commands print a text."""
    monkeypatch.setattr(nsys, "missing", lambda case: None)
    monkeypatch.setattr(peak_memory, "available_bytes", lambda device: 2**40)

    def run(printed=PRINTED, failing=""):
        ran = []

        def finished(words):
            ran.append(words)
            return subprocess.CompletedProcess(words, int(words[1] == failing), printed, "a line\nno permission\n")

        monkeypatch.setattr(nsys, "_finished", finished)
        return ran

    return run


def test_the_table_is_found_below_what_else_is_printed():
    table = nsys.table(PRINTED)
    assert table["range"] == ["forward", "forward", "softmax"]
    assert table["calls"] == [153, 2, 48]
    assert table["total_us"] == [74778.0, 4.264, 48.0]
    assert table["median_us"][0] == 310.056
    assert table["kernel"][1] == "void f<int, float>(int, T3)"


@pytest.mark.parametrize(
    ("printed", "reason"),
    [
        ("SKIPPED: no CUDA kernel data\n", "it lists no kernel in a range"),
        (f"{HEADER},Kernel Name\n", "it lists no kernel in a range"),
        (PRINTED.replace("Med (ns)", "Median").replace("Kern Inst", "N"), "it has no column Kern Inst, Med (ns)"),
        (PRINTED.replace("363704.0", "nan"), "deviation_us: got nan, expected a finite number"),
        (PRINTED.replace("363704.0", "N/A"), "could not convert"),
        (PRINTED.replace(",softmax_warp_forward", "").replace(",10.5", ""), "could not convert"),
    ],
)
def test_what_cannot_be_read_as_the_table_is_said_and_loses_no_record(case, printed, reason, on_cuda):
    on_cuda(printed)
    (said,) = nsys.metrics(Recording(case, 1)).values()
    assert said.startswith(f"nsys stats cannot be read: {reason}")


def test_the_command_names_every_field_and_parses_back_to_the_case(case):
    words = nsys.command(case)
    given = words[words.index("lib.experiments.nsys") + 1 :]
    assert nsys.parse(given) == case
    assert "--capture-range=cudaProfilerApi" in words


@pytest.mark.parametrize("argument", ["sizes=small", "size=smal", "context_length=many", "compiled=maybe"])
def test_a_wrong_parameter_is_refused_in_one_line(argument, capsys):
    assert nsys.main([argument]) == 2
    assert len(capsys.readouterr().err.splitlines()) == 1


def test_a_case_that_is_not_on_cuda_is_not_watched(case, capsys):
    assert nsys.metrics(Recording(case, 1)) == {"nsys_missing": "it traces only CUDA, and the case ran on cpu"}
    assert nsys.main(["device=cpu"]) == 2


def test_phases_and_parts_are_ranges_that_nest(case):
    log, depth = [], []

    def push(name):
        depth.append(name)
        log.append(tuple(depth))

    @contextlib.contextmanager
    def part(name):
        push(name)
        yield
        depth.pop()

    training = Training(case)
    case.annotate(training, part)
    nsys.iterate_in_ranges(training, push, depth.pop)
    assert not depth
    assert [ranges for ranges in log if len(ranges) == 1] == [("forward",), ("backward",), ("optimizer",)]
    assert log.count(("forward", "softmax")) == log.count(("forward", "scores")) == 4


def test_both_commands_run_without_what_the_record_built(case, on_cuda):
    ran, record = on_cuda(), Recording(case, 1)
    work = record.setup()
    assert nsys.metrics(record) == {"nsys": nsys.table(PRINTED)}
    assert not vars(work), "the other process needs the memory"
    assert [words[1] for words in ran] == ["profile", "stats"]
    (report,) = [word.removeprefix("--output=") for word in ran[0] if word.startswith("--output=")]
    assert ran[1][-1] == f"{report}.nsys-rep"


@pytest.mark.parametrize("failing", ["profile", "stats"])
def test_a_command_that_fails_is_said(case, on_cuda, failing):
    on_cuda(failing=failing)
    assert nsys.metrics(Recording(case, 1)) == {"nsys_missing": f"nsys {failing} failed: no permission"}


def test_only_the_last_round_of_an_eager_case_that_fits_is_watched(case, on_cuda, monkeypatch):
    on_cuda()
    for compiles in ({"compiled": True}, {"attention": "compiled"}):
        assert nsys.metrics(Recording(replace(case, **compiles), 3)) == {}
    monkeypatch.setattr(peak_memory, "available_bytes", lambda device: 0)
    assert nsys.metrics(Recording(case, 3)).keys() == {"nsys_missing"}
    monkeypatch.setenv("SWEEP_ROUND_FOLLOWS", "1")
    assert nsys.metrics(Recording(case, 2)) == {}


PROGRAM = """
import subprocess, sys, time
sleep = "import time; time.sleep(60)"
for own in (False, True):
    print(subprocess.Popen([sys.executable, "-c", sleep], start_new_session=own).pid, flush=True)
time.sleep(60)
"""


def test_a_command_that_takes_too_long_ends_with_the_programs_that_it_started(case, monkeypatch):
    started = []

    def too_late(process, timeout):
        started.extend([process.pid, *(int(process.stdout.readline()) for _ in range(2))])
        for one in map(psutil.Process, started):
            while not (environ := one.environ()):  # while it starts its program
                pass
            assert environ[processes.MARK].partition("/")[0] == "a sweep"
        raise subprocess.TimeoutExpired(process.args, timeout)

    monkeypatch.setenv(processes.MARK, "a sweep")
    monkeypatch.setattr(subprocess.Popen, "communicate", too_late)
    monkeypatch.setattr(nsys, "command", lambda *_: [sys.executable, "-c", PROGRAM])
    assert nsys._run_nsys(case) == {"nsys_missing": f"nsys -c took longer than {nsys.LIMIT_S} s"}
    assert len(started) == 3
    assert not [one for one in started if psutil.pid_exists(one) and processes.is_alive(psutil.Process(one))]
