"""A sweep measures what its file says, resumes where it stopped, and refuses what could not run."""

import json
import threading
import time

import psutil
import pytest

from lib import measure, notebook, results, sweep

QUICKEST = "ceilings: {operation: copy, rows: [8, 16], precision: fp32, device: cpu, warmup: 0, samples: 6}"


@pytest.fixture
def load(tmp_path):
    def load(text):
        file = tmp_path / "sweep.yaml"
        file.write_text(text)
        return sweep.read(file)

    return load


def statuses(kernels):
    return [results.status(measure.record_path(case, k.round)) for k in kernels for case in k.cases]


def run(kernels, budget=float("inf")):
    sweep.run(kernels, budget)
    return statuses(kernels)


def test_a_list_is_swept_a_scalar_fixed_and_the_rest_are_the_notebooks_defaults(load):
    (kernel,) = load("attention: {variant: [naive, sdpa], seq_len: 32, device: cpu}")
    defaults = notebook.parameters("attention")
    assert [case.variant for case in kernel.cases] == ["naive", "sdpa"]
    assert {case.seq_len for case in kernel.cases} == {32}
    assert {case.d_head for case in kernel.cases} == {defaults["d_head"]}
    assert kernel.parameters["samples"] == defaults["samples"]


def test_each_value_of_a_fresh_axis_and_each_round_gets_a_kernel_and_rounds_interleave(load):
    kernels = load("rounds: 2\nattention: {fresh: variant, variant: [naive, sdpa], seq_len: [8, 16], device: cpu}")
    assert [kernel.round for kernel in kernels] == [1, 1, 2, 2]
    for pair in (kernels[:2], kernels[2:]):
        assert {tuple({case.variant for case in kernel.cases}) for kernel in pair} == {("naive",), ("sdpa",)}
        assert [len(kernel.cases) for kernel in pair] == [2, 2]


@pytest.mark.parametrize("name", ["smoke", "quick", "gpu"])
def test_the_sweeps_of_the_repository_are_valid(name):
    assert sweep.load(name)


def test_the_gpu_sweep_is_the_assignments_grid_in_a_bearable_number_of_kernels():
    kernels = sweep.load("gpu")
    counts = {}
    for kernel in kernels:
        if kernel.round == 1:
            counts[kernel.experiment] = counts.get(kernel.experiment, 0) + len(kernel.cases)
    cold = [kernel for kernel in kernels if kernel.experiment == "warmup"]  # each case in a process of its own
    assert len(cold) == 3 * counts["warmup"] == 3 * 5 * 2
    assert len(kernels) - len(cold) < 120  # each costs seconds to start
    assert counts["step"] == 5 * 4 * 3 * (2 + 2)  # eager and compiled; forward alone with and without a graph
    assert counts["attention"] == 5 * 5 * 4 * 3 * 2
    assert counts["adam"] == 5 * 6 * 5 * 2 * 2 + 5 * 2
    assert counts["kernels"] == 2 * 3 * 3 * 2
    assert counts["memory"] == 2 * 4 * 2 * 4 + 8


BAD = [
    ("atention: {}", "experiment: 'atention'.*nearest is 'attention'"),
    ("attention: {varaint: naive}", "attention: 'varaint'.*nearest is 'variant'"),
    ("attention: {variant: navie}", r"attention.variant: 'navie'.*nearest is 'naive'"),
    ("attention: {seq_len: '64'}", "seq_len: '64' is str"),
    ("attention: {seq_len: 1e3}", "seq_len: '1e3' is str"),
    ("attention: {seq_len: 64.0}", "seq_len: 64.0 is float"),
    ("attention: {seq_len: true}", "seq_len: True is bool"),
    ("attention: {seq_len: -1}", "seq_len: -1 must be 1 or more"),
    ("attention: {seq_len: []}", r"seq_len: \[\] must be a value or a list"),
    ("attention: {seq_len: {a: 1}}", "seq_len: .* must be a value or a list"),
    ("attention: {seq_len: null}", "seq_len: None must be"),
    ("attention: {seq_len: [64, 64]}", "stands in the sweep twice"),
    ("attention: [{seq_len: 64}, {seq_len: 64}]", "stands in the sweep twice"),
    ("attention: naive", "must be a mapping"),
    ("attention: {causal: 1}", "causal: 1 is int, must be bool"),
    ("attention: {device: tpu}", "device: 'tpu'"),
    ("attention: {samples: 0}", "samples: 0 must be 1 or more"),
    ("attention: {samples: [1, 2]}", "samples: .* must be a whole number"),
    ("attention: {warmup: -1}", "warmup: -1 must be 0 or more"),
    ("attention: {round: 3}", "attention: 'round' is not one of"),
    ("attention: {fresh: samples}", "fresh: 'samples'"),
    ("rounds: 0\nattention: {}", "rounds: 0 must be 1 or more"),
    ("rounds: many\nattention: {}", "rounds: 'many' must be a whole number"),
    ("timeout: 1.5\nattention: {}", "timeout: 1.5 must be a whole number"),
    ("kernels: {trace: 1}", "kernels.trace: 1 must be true or false"),
    ("kernels: {recorded: 0}", "recorded: 0 must be 1 or more"),
    ("attention: {trace: true}", "attention: 'trace' is not one of"),
    ("step: {size: huge}", "size: 'huge'"),
    ("rounds: 2", "at least one experiment"),
    ("attention: {seq_len: 8}\nattention: {seq_len: 16}", "'attention' stands there twice"),
    ("attention: {seq_len: 8, seq_len: 16}", "'seq_len' stands there twice"),
    ("[1, 2]", "mapping of experiments"),
    ("attention: {", "not valid YAML"),
]


@pytest.mark.parametrize(("text", "said"), BAD)
def test_a_sweep_that_could_not_run_is_refused_in_one_line(load, text, said):
    with pytest.raises(ValueError, match=said) as raised:
        load(text)
    assert "\n" not in str(raised.value)


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
    kernels = sweep.load("smoke")
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
    first = measure.record_path(kernel.todo()[0], 1)

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
    monkeypatch.setattr(sweep, "load", lambda name: load(QUICKEST))
    assert sweep.main(["smoke"]) == 1
    assert "a bug" in capsys.readouterr().err
    assert not list(own_results.rglob("*.json"))


def test_a_notebook_that_leaves_early_is_no_success(own_results, load, tmp_path, monkeypatch):
    spoiled(tmp_path, monkeypatch, "import os; os._exit(0)")
    assert run(load(QUICKEST.replace("[8, 16]", "8"))) == ["crashed"]
