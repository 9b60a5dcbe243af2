"""The digest of an experiment's code changes with what its modules do, and with nothing else."""

import json
import shutil
import subprocess
import sys

import pytest

from lib import notebooks as notebook
from lib.records import code_digest as digest
from lib.paths import ROOT

EXPERIMENTS = notebook.experiments()


@pytest.fixture
def copy(tmp_path):
    """Copies the repository's code, edits one file of it, and returns the digests of all experiments."""

    def edited(file="", old="", new=""):
        root = tmp_path / str(len(list(tmp_path.iterdir())))
        for folder in ("lib", "notebooks"):
            shutil.copytree(ROOT / folder, root / folder)
        if file:
            text = (root / file).read_text()
            assert old in text
            (root / file).write_text(text.replace(old, new, 1))
        return {name: digest.code(name, root) for name in EXPERIMENTS}

    return edited


def changed(before, after):
    return {name for name in before if before[name] != after[name]}


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("\nimport torch\n", "\n# the tensors\nimport torch  # here\n\n\n"),
        ('    """softmax(Q K^T / sqrt(D)) V, the reference', '    """The reference'),
        ("causal: bool = True) -> Tensor:", "causal: bool = True\n) -> Tensor:"),
    ],
    ids=["comment", "docstring", "line break"],
)
def test_what_does_nothing_changes_no_digest(copy, old, new):
    assert changed(copy(), copy("lib/attention.py", old, new)) == set()


def test_a_constant_changes_the_digests_of_the_experiments_that_import_its_module(copy):
    touched = changed(copy(), copy("lib/attention.py", ".triu(1)", ".triu(2)"))
    assert {"attention", "step", "compile"} <= touched
    assert "ceilings" not in touched
    assert touched == {name for name in EXPERIMENTS if "attention" in digest.modules(name)}


def test_a_case_is_a_part_of_its_own_experiment_and_of_those_that_build_on_it(copy):
    touched = changed(copy(), copy("lib/cases/step.py", '"fp32": 1e-4', '"fp32": 2e-4'))
    assert {"step", "warmup", "memory", "kernels"} <= touched
    assert not touched & {"adam", "attention", "ceilings", "precision"}


def test_a_cell_that_measures_counts_and_one_that_shows_does_not(copy):
    before = copy()
    assert changed(before, copy("notebooks/adam.ipynb", "measure.times(work, plan)", "measure.times(work, plans)")) == {
        "adam"
    }
    assert not changed(before, copy("notebooks/adam.ipynb", "Relative error", "Wrong by"))


BROUGHT = f"""
import importlib, json, sys, types
found = {{}}
for experiment in {EXPERIMENTS!r}:
    for name in [name for name in sys.modules if name.split(".")[0] == "lib"]:
        del sys.modules[name]
    package = types.ModuleType("lib.experiments.cases")  # whose own code would import every other experiment's
    package.__path__ = [{str(ROOT / "lib/cases")!r}]
    sys.modules["lib.experiments.cases"] = package
    importlib.import_module("lib.measure")
    importlib.import_module(f"lib.cases.{{experiment}}")
    found[experiment] = [name[4:] for name in sys.modules if name.startswith("lib.")]
print(json.dumps(found))
"""


def test_an_experiment_has_the_measuring_modules_that_its_case_brings_along():
    """Only an import that waits until it is needed, and what only the notebook measures with, come on top."""
    run = subprocess.run([sys.executable, "-c", BROUGHT], capture_output=True, text=True, check=True, cwd=ROOT)
    for experiment, names in json.loads(run.stdout).items():
        brought = {name for name in names if name in digest.MEASURING or name.startswith("cases.")}
        found = set(digest.modules(experiment))
        assert brought <= found
        assert found - brought <= {"predict", "nsys"}
        assert {f"cases.{experiment}", "measure", "timing"} <= found


def test_of_the_modules_that_measure_each_is_there_and_the_rest_stands_in_the_record():
    script = (
        "import sys\nfrom lib import cases, measure, nsys, predict\nprint(*(m for m in sys.modules if m[:4] == 'lib.'))"
    )
    found = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True, cwd=ROOT)
    imported = {name.split(".")[1] for name in found.stdout.split()} - {"cases"}
    harmless = {
        *("atomic", "check", "commandline", "digest", "disturbance", "environment", "folders", "notebook"),
        *("processor", "record", "results", "staleness"),
    }
    assert imported - harmless <= digest.MEASURING
    assert all((ROOT / "lib" / f"{name}.py").exists() for name in digest.MEASURING)


def test_the_calibration_and_an_experiment_that_is_gone_have_digests_too():
    assert {"calibrate", "overheads", "cases.ceilings", "timing"} <= set(digest.modules("calibration"))
    assert len({digest.code(name) for name in ("calibration", "gone", "adam")}) == 3


def test_the_shape_of_code_does_not_depend_on_the_version_of_python():
    """Written out here, so that every version that runs the test has to find the same."""
    found = digest.shape(digest.ast.parse('def f(a, b=None):\n    "what"\n    return f"{a!r:>3} of {b}"'))
    assert json.dumps(found) == (
        '["Module", ["body", [["FunctionDef", ["name", "f"], ["args", ["arguments", ["args", [["arg", ["arg", "a"]], '
        '["arg", ["arg", "b"]]]], ["defaults", [["Constant"]]]]], ["body", [["Return", ["value", ["JoinedStr", '
        '["values", [["FormattedValue", ["value", ["Name", ["id", "a"], ["ctx", ["Load"]]]], ["conversion", 114], '
        '["format_spec", ["JoinedStr", ["values", [["Constant", ["value", ">3"]]]]]]], '
        '["Constant", ["value", " of "]], '
        '["FormattedValue", ["value", ["Name", ["id", "b"], ["ctx", ["Load"]]]], ["conversion", -1]]]]]]]]]]]]]'
    )
