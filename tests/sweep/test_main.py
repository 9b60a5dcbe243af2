"""Sweeps from the command line: what they measure, what they print, and their exit codes."""

import os
import re
import subprocess
import sys
from signal import SIG_DFL, SIGINT, SIGTERM, signal

import nbformat
import pandas as pd
import pytest

import cheap
from lib.instruments.device import Cuda
from lib.sweep.__main__ import main

ALL = """
rounds: 2
seconds: 0.25
timeout: 60
cheap:
  - {number: [1, 2, 3]}
  - {number: 4, behaviour: kill}
  - {number: 5, behaviour: oom}
  - {number: 7, behaviour: failed}
  - {number: 8, behaviour: children, timeout: 2}
  - {number: 9, behaviour: once}
  - {number: 10, behaviour: unavailable}
"""
ENDED = {4: "crashed", 5: "oom", 7: "failed", 8: "timeout"}  # in the first round, and not tried again


def test_each_case_ends_as_it_must_and_costs_only_itself(cheap_sweep):
    sweep = cheap_sweep(ALL)
    code, printed = sweep.run()
    expected = {(number, round): "ok" for number in (1, 2, 3, 9) for round in (1, 2)}
    expected |= {(number, 1): status for number, status in ENDED.items()}
    assert sweep.statuses() == expected, printed
    assert code == 1
    lines = printed.splitlines()
    assert lines[0].startswith("one case of each experiment was tried: 1 ok, 15 left; at least")
    assert lines[-1] == "8 ok, 1 oom, 1 timeout, 1 crashed, 1 failed, 0 left"
    assert printed.count("half of the cases are measured; about") == 1
    assert "1 left out: it says so" in lines
    assert "failed: cheap 7-failed-1-cpu: KeyError: a bug" in lines
    assert "timeout: cheap 8-children-1-cpu: took longer than 2 s" in lines
    # what killed its kernel had one more try, and what found no memory got a kernel of its own
    begun = pd.DataFrame(sweep.begun())
    tries = begun["number"].value_counts().to_dict()
    assert tries == {1: 2, 2: 2, 3: 2, 4: 2, 5: 1 + (tries[5] == 2), 7: 1, 8: 1, 9: 3}
    assert set(begun["seconds"]) == {0.25}
    assert sweep.processes() == []
    assert list((sweep.folder / "tmp").iterdir()) == []

    before = sweep.files()
    code, printed = sweep.run()
    assert (code, printed.splitlines()[-1]) == (1, lines[-1])
    assert sweep.files() == before
    assert sweep.run("status")[1].splitlines()[0] == f"cheap, shard 1/1: ended: {lines[-1]}"
    code, printed = sweep.run("--rounds", "3", "--dry")
    assert (code, printed.splitlines()[-1]) == (0, f"cheap: {lines[-1].replace('0 left', '4 left')}")


def test_a_notebook_that_cannot_begin_is_told_in_one_line(cheap_sweep):
    sweep = cheap_sweep("rounds: 1\ncheap: {number: [1, 2, 3]}", measure="import no_such_module")
    code, printed = sweep.run()
    assert code == 1
    reason = "ModuleNotFoundError: No module named 'no_such_module', in cheap.r1."
    assert printed.splitlines()[-1].startswith(f"cheap: NotebookFailed: {reason}")
    assert "0 ok, 3 left" in printed
    assert sweep.statuses() == {}


def test_cases_share_a_kernel_and_a_block_leaves_a_notebook_of_its_parameters_whatever_was_saved(cheap_sweep):
    blocks = "[{number: [1, 2, 3]}, {number: 4, behaviour: oom}, {number: [5, 6], fresh: [number]}]"
    sweep = cheap_sweep(f"rounds: 1\nseconds: 0.25\ncheap: {blocks}")
    assert sweep.run()[0] == 0
    assert sweep.statuses()[4, 1] == "oom"
    # number 1 is the small case that comes first; number 4 finds no memory in a used kernel, and then in its own
    begun = pd.DataFrame(sweep.begun())
    assert begun["number"].tolist() == [1, 2, 3, 4, 4, 5, 6]
    kernels = begun["pid"]
    assert kernels[1] == kernels[2] == kernels[3]
    assert kernels.nunique() == 5
    executed = [nbformat.read(file, as_version=4) for file in sorted(sweep.folder.glob("r/runs/*/*.ipynb"))]
    parameters = pd.DataFrame([notebook.metadata.papermill.parameters for notebook in executed])
    assert parameters["number"].tolist() == [[1, 2, 3], [1, 2, 3], 4, 4, 5, 6]
    assert parameters["skip"].tolist() == [["2-ok-1-cpu", "3-ok-1-cpu"], ["1-ok-1-cpu"], [], [], [], []]
    assert set(parameters["behaviour"]) == {"ok", "oom"}
    assert (parameters[["pause_ms", "device", "seconds", "round"]] == [1, "cpu", 0.25, 1]).all(axis=None)
    assert "machine" not in parameters
    # the first column, after that of the rows' own numbers
    number = re.compile(r"<th>\d+</th>\s*<td>(\d+)</td>")
    tables = [number.findall(notebook.cells[-1].outputs[-1].data["text/html"]) for notebook in executed]
    assert tables == [["1"], ["2", "3"], ["4"], ["4"], ["5"], ["6"]]


def test_a_budget_ends_between_cases_and_the_same_command_continues(cheap_sweep):
    sweep = cheap_sweep("rounds: 1\ncheap: {number: [1, 2, 3, 4, 5, 6], pause_ms: 800}")
    code, printed = sweep.run("--budget", "5")
    measured = len(sweep.statuses())
    assert 1 <= measured < 6
    assert (code, printed.splitlines()[-1]) == (0, f"{measured} ok, {6 - measured} left")
    assert sweep.run()[0] == 0
    assert set(sweep.statuses()) == {(number, 1) for number in range(1, 7)}
    # what had begun when the first sweep saw its budget spent began once more
    begun = pd.DataFrame(sweep.begun())["number"].tolist()
    assert sorted(set(begun)) == sorted(begun)[:6] or begun.count(measured + 1) == 2


def test_a_signal_ends_it_within_seconds(cheap_sweep):
    sweep = cheap_sweep("rounds: 1\ncheap: [{number: 1}, {number: 2, behaviour: sleep}, {number: 3}]")
    process = sweep.start()
    cheap.until(lambda: sweep.begun(2), "the second case")
    process.send_signal(SIGTERM)
    printed, _ = process.communicate(timeout=10)
    assert process.returncode == 143
    assert printed.splitlines()[-1] == "stopped; the same command continues"
    assert sweep.processes() == []
    assert sweep.statuses() == {(1, 1): "ok"}


@pytest.mark.parametrize("command", ["lib.sweep smoke --dry", "lib.report --machine none", "lib.sources"])
def test_ctrl_c_while_it_imports_ends_it_without_a_traceback(command):
    command = [sys.executable, "-X", "importtime", "-m", *command.split()]
    process = subprocess.Popen(command, stderr=subprocess.PIPE, preexec_fn=lambda: signal(SIGINT, SIG_DFL))
    next(line for line in process.stderr if b"numpy" in line)  # is imported, and torch or pandas is not
    process.send_signal(SIGINT)
    assert b"Traceback" not in process.communicate()[1]
    # which a shell tells as 130
    assert process.returncode == -SIGINT


def test_without_anybody_to_read_its_output_it_ends_without_a_traceback():
    reading, writing = os.pipe()
    os.close(reading)
    for options, code in (({"preexec_fn": lambda: os.close(1)}, 0), ({"stdout": writing}, 141)):
        done = subprocess.run([sys.executable, "-m", "lib.sweep", "status"], stderr=subprocess.PIPE, **options)
        assert (done.returncode, done.stderr) == (code, b"")
    os.close(writing)


def test_a_sweep_that_is_called_as_a_command_is_refused(here, capsys):
    (here.folder / "sweeps" / "report.yaml").write_text("cheap:")
    assert main(["report"]) == 2
    assert capsys.readouterr().err.startswith("report.yaml: got a name that is a command")


def test_a_second_sweep_is_told_that_one_is_running(cheap_sweep):
    sweep = cheap_sweep("rounds: 1\ncheap: {number: 1, behaviour: sleep}")
    sweep.start()
    cheap.until(sweep.begun, "the first case")
    code, printed = sweep.run()
    assert code == 75
    assert "running" in printed
    status = sweep.run("status")[1]
    assert "cheap, shard 1/1: running: 0 ok, 1 left; no case has a time yet (process" in status
    assert "now cheap 1-sleep-1-cpu" in status


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (("--shard", "3/2"), "shard: got '3/2', expected k/n"),
        (("--rounds", "0"), "rounds: got 0, expected at least 1"),
        (("--budget", "-1"), "budget: got -1.0, expected at least 1"),
        (("--address", "nowhere"), "address: got 'nowhere', expected host:port"),
    ],
)
def test_bad_options_are_refused_in_one_line_and_write_nothing(here, capsys, options, message):
    here.write("cheap: {number: 1}")
    assert main(["cheap", *options]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith(message)
    assert not here.results.exists()


def test_a_sweep_that_needs_cuda_is_refused_without_it_but_lists_its_cases(here, capsys, monkeypatch):
    monkeypatch.setattr(Cuda, "missing", lambda _: "there is no GPU")
    here.write("needs: cuda\ncheap: {number: [1, 2]}")
    assert main(["cheap"]) == 2
    assert capsys.readouterr().err == "cheap.yaml: needs cuda: there is no GPU; DRY=1 lists the cases\n"
    assert main(["cheap", "--dry"]) == 0
    assert capsys.readouterr().out.count("left out: it needs cuda") == 2
    assert not here.results.exists()
