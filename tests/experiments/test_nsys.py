"""What nsys prints becomes a table, and what it watches has ranges that nest as the phases do. No nsys is needed."""

import subprocess
from dataclasses import replace

import pytest

from lib.experiments import cases, nsys
from lib.experiments.measure import Recording
from lib.experiments.training import Training
from lib.instruments import peak_memory

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


def test_the_table_is_found_below_what_else_is_printed():
    table = nsys.table(PRINTED)
    assert table["range"] == ["forward", "forward", "softmax"]
    assert table["calls"] == [153, 2, 48]
    assert table["total_us"] == [74778.0, 4.264, 48.0]
    assert table["median_us"][0] == 310.056
    assert table["kernel"][1] == "void f<int, float>(int, T3)"


def test_without_kernels_the_table_is_empty():
    assert set(map(tuple, nsys.table("SKIPPED: no CUDA kernel data\n").values())) == {()}
    assert nsys.table(f"{HEADER},Kernel Name\n")["range"] == []


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

    class Range:
        def __init__(self, name):
            self.name = name

        def __enter__(self):
            push(self.name)

        def __exit__(self, *_):
            depth.pop()

    def push(name):
        depth.append(name)
        log.append(tuple(depth))

    training = Training(case)
    case.annotate(training, Range)
    nsys.iterate_in_ranges(training, push, depth.pop)
    assert not depth
    assert [ranges for ranges in log if len(ranges) == 1] == [("forward",), ("backward",), ("optimizer",)]
    assert log.count(("forward", "softmax")) == log.count(("forward", "scores")) == 4


@pytest.mark.parametrize("failing", [None, "profile", "stats"])
def test_on_cuda_both_commands_run_and_a_failure_is_said(case, failing, monkeypatch):
    ran = []

    def run(arguments, **_):
        ran.append(arguments)
        fails = arguments[1] == failing
        return subprocess.CompletedProcess(arguments, int(fails), stdout=PRINTED, stderr="a line\nno permission\n")

    monkeypatch.setattr(nsys, "missing", lambda case: None)
    monkeypatch.setattr(peak_memory, "preflight", lambda predicted, device: None)
    monkeypatch.setattr(subprocess, "run", run)
    record = Recording(case, 1)
    work = record.setup()
    found = nsys.metrics(record)
    assert not vars(work), "the other process needs the memory"
    if failing:
        assert found == {"nsys_missing": f"nsys {failing} failed: no permission"}
    else:
        assert found == {"nsys": nsys.table(PRINTED)}
        assert [arguments[1] for arguments in ran] == ["profile", "stats"]
        report = next(word for word in ran[0] if word.startswith("--output=")).removeprefix("--output=")
        assert ran[1][-1] == f"{report}.nsys-rep"


def test_only_the_last_round_of_an_eager_case_is_watched(case, monkeypatch):
    monkeypatch.setattr(nsys, "missing", lambda case: None)
    monkeypatch.setattr(nsys, "_run_nsys", lambda case: {"nsys": {}})
    assert nsys.metrics(Recording(case, 3)) == {"nsys": {}}
    assert nsys.metrics(Recording(replace(case, compiled=True), 3)) == {}
    monkeypatch.setattr(peak_memory, "available_bytes", lambda device: 0)
    assert nsys.metrics(Recording(case, 3)).keys() == {"nsys_missing"}
    monkeypatch.setenv("SWEEP_ROUND_FOLLOWS", "1")
    assert nsys.metrics(Recording(case, 2)) == {}


def test_the_case_is_a_step_that_can_be_told_on_the_command_line():
    assert isinstance(nsys.parse([]), cases.EXPERIMENTS["kernels"])


def test_its_help_names_the_parameters(capsys):
    with pytest.raises(SystemExit) as ended:
        nsys.main(["--help"])
    assert ended.value.code == 0
    said = capsys.readouterr().out
    assert "context_length" in said
    assert "exit codes:" in said
