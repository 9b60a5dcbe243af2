"""A sweep measures what its file says and resumes where it stopped; its faults are in tests/torture."""

import json
import re
import signal
import subprocess
import sys

import pytest

from executed import told
from lib import notebooks, paths
from lib.instruments import device, environment, noise
from lib.records import atomic, results
from lib.sweep import __main__, lock, plan, sweep_file

QUICKEST = "ceilings: {operation: copy, rows: [8, 16], precision: fp32, device: cpu, warmup: 0, samples: 6}"
ONE = QUICKEST.replace("[8, 16]", "8")


@pytest.fixture
def run(own_results, tmp_path, monkeypatch):
    """Run a sweep of this text, with options, and return its exit code and the statuses of its records.

    It is the one that `report` stands for."""

    def run(text, *options):
        (tmp_path / "own.yaml").write_text(text)
        monkeypatch.setattr(notebooks, "SWEEPS", tmp_path)
        monkeypatch.setattr(sweep_file, "picked", {"report": "own", "own": "own"}.get)
        code = __main__.main(["report", *options])
        return code, [task.status(name) for task in plan.planned("own") for name in task.cases]

    return run


@pytest.mark.parametrize(
    "arguments", [["quik"], ["smoke", "--budget", "0"], ["smoke", "--budget", "abc"], ["smoke", "--shard", "3/2"]]
)
def test_bad_input_ends_with_exit_code_2_and_one_line(own_results, capsys, arguments):
    assert __main__.main(arguments) == 2
    assert capsys.readouterr().err.count("\n") == 1


def test_a_folder_for_something_else_is_refused_and_left_as_it_is(tmp_path, monkeypatch, capsys):
    thesis, draft = tmp_path / "projects" / "thesis" / "data.json", tmp_path / "projects" / "x.json.0123abcd.tmp"
    thesis.parent.mkdir(parents=True)
    thesis.write_text("{}")
    draft.write_text("")
    monkeypatch.setenv("RESULTS", str(tmp_path))
    assert __main__.main(["smoke"]) == 2
    assert "expected an empty folder or one with records" in capsys.readouterr().err
    assert {path for path in tmp_path.rglob("*") if path.is_file()} == {thesis, draft}


def test_results_without_a_name_are_those_of_the_checkout(monkeypatch):
    monkeypatch.setenv("RESULTS", "")
    assert paths.results() == paths.REPORTS / "results"


def test_a_link_out_of_the_results_is_refused_before_anything_runs(run, own_results, tmp_path, capsys):
    own_results.mkdir()
    (own_results / lock.LOCK).touch()
    (own_results / environment.machine("cpu")).symlink_to(tmp_path)
    assert run(ONE)[0] == 2
    assert "a link out of" in capsys.readouterr().err


@pytest.fixture
def supervising(own_results, monkeypatch):
    """Do something in the place of supervising a sweep; the handlers of signals are put back after the test."""
    former = {number: signal.signal(number, signal.SIG_DFL) for number in __main__.SIGNALS}  # also in the background
    yield lambda work: monkeypatch.setattr(__main__, "_supervise", work)
    for number, handler in former.items():
        signal.signal(number, handler)


@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143), (signal.SIGHUP, 143)])
def test_a_signal_waits_for_the_end_of_an_import_and_ends_the_sweep_with_its_code(supervising, capsys, number, code):
    seen = []

    def work(_):
        with __main__._signals_delayed():
            signal.raise_signal(number)
            seen.append("the import goes on")
        seen.append("no more than that")

    supervising(work)
    assert __main__.main(["smoke"]) == code
    assert seen == ["the import goes on"]
    assert capsys.readouterr().err == "stopped; the same command continues from here\n"


def test_a_signal_that_is_ignored_when_the_sweep_starts_stays_so(supervising):
    signal.signal(signal.SIGHUP, signal.SIG_IGN)  # as nohup does
    supervising(lambda _: [signal.raise_signal(number) for number in (signal.SIGHUP, signal.SIGINT)])
    assert __main__.main(["smoke"]) == 130
    assert signal.getsignal(signal.SIGHUP) is signal.SIG_IGN


def test_nobody_need_read_what_it_says(own_results):
    command = [sys.executable, "-m", "lib.sweep", "status"]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    process.stdout.close()
    assert (process.wait(60), process.stderr.read()) == (0, b"")


class Absent(device.Cuda):
    def missing(self):
        return "PyTorch sees no CUDA device"


def test_a_sweep_for_a_gpu_ends_at_once_without_one_and_its_dry_run_is_for_a_datasheet(planted, monkeypatch, capsys):
    monkeypatch.setitem(device.KINDS, "cuda", Absent())
    planted("big", "needs: cuda\nattention: {variant: naive, seq_len: [64, 262144]}")
    assert __main__.main(["big"]) == 2
    assert capsys.readouterr() == (
        "",
        "big.yaml: needs cuda: PyTorch sees no CUDA device; --dry still lists the cases\n",
    )
    assert __main__.main(["big", "--dry"]) == 0
    said = capsys.readouterr().out
    assert said.startswith("the sweep big\n")
    assert re.search(f"a case on {plan.CARD} may use [^;]*: runs: 1; too large: 1", said)
    assert re.search(f"predicted to take 0:.. on an {plan.CARD}", said)  # nothing for what is too large


@pytest.mark.parametrize("options", [[], ["--dry"]])
@pytest.mark.parametrize("sweep", ["smoke", "report"])
def test_a_gpu_that_cannot_be_used_ends_every_command_with_exit_code_2_and_the_reason(
    own_results, monkeypatch, capsys, sweep, options
):
    def refuse(name="auto"):
        raise ValueError("device: nvidia-smi lists a GPU that PyTorch cannot use")

    monkeypatch.setattr(device, "named", refuse)
    assert __main__.main([sweep, *options]) == 2
    out, err = capsys.readouterr()
    assert (out, err.count("\n")) == ("", 1)
    assert "nvidia-smi lists a GPU that PyTorch cannot use" in err


def test_a_dry_run_lists_every_case_and_measures_nothing(own_results, capsys):
    assert __main__.main(["smoke", "--dry"]) == 0
    assert "naive-16" in capsys.readouterr().out
    assert not own_results.exists()
    assert __main__.main(["smoke", "--dry", "--shard", "1/9999"]) == 0
    assert "0 cases" in capsys.readouterr().out


@pytest.mark.long
def test_smoke_measures_every_family_once_and_then_nothing_and_a_deleted_record_alone(own_results, capsys):
    assert __main__.main(["smoke"]) == 0
    files = sorted(own_results.rglob("*.json"))
    assert {results.status(file) for file in files if not file.name.startswith(".")} == {"ok"}
    assert sorted(f"{file.parent.name}/{file.stem}" for file in own_results.glob("*/*/*.json")) == sorted(
        name for task in plan.planned("smoke") for name in task.cases
    )
    files = sorted(own_results.glob("*/*/*.json"))
    environments = [json.loads(file.read_text())["environment"] for file in files]
    run_of = {environment["run"] for environment in environments}
    assert all((paths.runs() / files[0].parts[-3] / f"{name}.ipynb").exists() for name in run_of)
    seconds = [json.loads(file.read_text())["seconds"] for file in files]
    noticed = ["others_percent" in environment for environment in environments]
    assert noticed == [taken >= noise.LEAST_SECONDS for taken in seconds]

    assert told(files[0].parts[-3])  # what the report says of it

    before = {file: file.stat().st_mtime_ns for file in files}
    assert __main__.main(["smoke"]) == 0
    assert "nothing to measure" in capsys.readouterr().out
    files[0].unlink()
    assert __main__.main(["smoke"]) == 0
    changed = [file for file in files if file.stat().st_mtime_ns != before[file]]
    assert changed == [files[0]]
    assert __main__.main(["status"]) == 0
    assert f"sweep smoke: done, {len(files)} of {len(files)} records, 0 failed" in capsys.readouterr().out


def test_what_took_too_long_is_measured_again_when_asked_for(run, capsys):
    assert run(f"timeout: 1\n{ONE}") == (1, ["timeout"])  # a kernel takes longer than that to start
    assert "--retry" in capsys.readouterr().err
    assert run(ONE) == (0, ["timeout"])
    assert run(ONE, "--retry") == (0, ["ok"])


def test_a_sweep_names_what_it_measures_stops_by_its_budget_and_goes_on_by_the_same_command(run, capsys):
    assert run(QUICKEST, "--budget", "0.001") == (0, [None, None])
    first, *_ = capsys.readouterr().out.splitlines()
    assert first == f"measuring on {environment.hardware('cpu')} (cpu): the sweep own"
    (task,) = plan.planned("own")
    damaged, _ = (results.folder() / task.machine / f"{name}.json" for name in task.cases)
    unfinished = damaged.with_name(f"x.json.0123abcd{atomic.ENDING}")
    damaged.parent.mkdir(parents=True)
    for file in (damaged, unfinished):
        file.touch()
    assert run(QUICKEST, "--shard", "2/2") == (0, ["ok", "ok"])  # the one kernel is in this shard
    assert damaged.with_name(f"{damaged.name}.damaged").exists()
    assert unfinished.exists()  # another shard may be writing it
    assert run(QUICKEST) == (0, ["ok", "ok"])
    assert not unfinished.exists()
