"""A sweep measures what its file says and resumes where it stopped."""

import json
import threading
import time

import psutil
import pytest

from lib import measure, notebook, results, sweep, sweepfile

QUICKEST = "ceilings: {operation: copy, rows: [8, 16], precision: fp32, device: cpu, warmup: 0, samples: 6}"


@pytest.fixture
def load(tmp_path):
    def load(text):
        file = tmp_path / "sweep.yaml"
        file.write_text(text)
        return sweepfile.read(file)

    return load


def statuses(kernels):
    return [results.status(measure.record_path(case, k.round)) for k in kernels for case in k.cases]


def run(kernels, budget=float("inf")):
    sweep.run(kernels, budget)
    return statuses(kernels)


@pytest.mark.parametrize("arguments", [["quik"], ["smoke", "--budget", "0"], ["smoke", "--budget", "abc"]])
def test_bad_input_ends_with_exit_code_2_and_one_line(capsys, arguments):
    assert sweep.main(arguments) == 2
    assert capsys.readouterr().err.count("\n") == 1


def test_a_dry_run_lists_every_case_and_measures_nothing(own_results, capsys):
    assert sweep.main(["smoke", "--dry"]) == 0
    assert "naive-16" in capsys.readouterr().out
    assert not own_results.exists()


def test_smoke_measures_every_family_once_and_then_nothing_and_a_deleted_record_alone(own_results, capsys):
    assert sweep.main(["smoke"]) == 0
    kernels = sweepfile.load("smoke")
    assert set(statuses(kernels)) == {"ok"}
    files = sorted(own_results.rglob("*.json"))
    assert len(files) == sum(len(kernel.cases) for kernel in kernels)
    run_of = {json.loads(file.read_text())["environment"]["run"] for file in files}
    assert all((results.runs() / files[0].parts[-3] / f"{name}.ipynb").exists() for name in run_of)

    before = {file: file.stat().st_mtime_ns for file in files}
    assert sweep.main(["smoke"]) == 0
    assert "nothing to measure" in capsys.readouterr().out
    files[0].unlink()
    assert sweep.main(["smoke"]) == 0
    changed = [file for file in files if file.stat().st_mtime_ns != before[file]]
    assert changed == [files[0]]


def test_a_kernel_that_is_killed_costs_the_case_in_hand_alone(own_results, load):
    (kernel,) = kernels = load(
        "attention: {variant: naive, seq_len: [8, 16, 24], batch_size: 1, samples: 20000, device: cpu}"
    )
    first = measure.record_path(sweep.todo(kernel)[0], 1)

    def kill():
        while not first.exists():
            time.sleep(0.01)
        for child in psutil.Process().children():
            child.kill()

    killer = threading.Thread(target=kill)
    killer.start()
    found = run(kernels)
    killer.join()
    assert sorted(found) == ["crashed", "ok", "ok"]


def test_a_case_beyond_its_time_limit_is_recorded_and_leaves_no_process(own_results, load):
    kernels = load("timeout: 1\n" + QUICKEST.replace("[8, 16]", "8"))  # a kernel takes longer than that to start
    assert run(kernels) == ["timeout"]
    assert not psutil.Process().children(recursive=True)


def test_a_budget_stops_between_cases_and_the_same_command_goes_on(own_results, load):
    kernels = load(QUICKEST)
    assert run(kernels, budget=0.001) == [None, None]
    assert run(kernels) == ["ok", "ok"]


def spoiled(tmp_path, monkeypatch, line):
    """The notebooks, with a line of code before the measuring of the ceilings."""
    content = json.loads((notebook.NOTEBOOKS / "ceilings.ipynb").read_text())
    cell = next(cell for cell in content["cells"] if "measure.pending" in "".join(cell["source"]))
    cell["source"] = [line + "\n", *cell["source"]]
    (tmp_path / "ceilings.ipynb").write_text(json.dumps(content))
    monkeypatch.setattr(notebook, "NOTEBOOKS", tmp_path)


def test_a_notebook_that_fails_fails_the_sweep(own_results, load, tmp_path, monkeypatch, capsys):
    spoiled(tmp_path, monkeypatch, "raise KeyError('a bug')")
    monkeypatch.setattr(sweepfile, "load", lambda name: load(QUICKEST))
    assert sweep.main(["smoke"]) == 1
    assert "a bug" in capsys.readouterr().err
    assert not list(own_results.rglob("*.json"))


def test_a_notebook_that_leaves_early_is_no_success(own_results, load, tmp_path, monkeypatch):
    spoiled(tmp_path, monkeypatch, "import os; os._exit(0)")
    assert run(load(QUICKEST.replace("[8, 16]", "8"))) == ["crashed"]
