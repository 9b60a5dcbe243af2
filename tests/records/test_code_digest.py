"""The digest of an experiment's code changes with what its modules do, and with nothing else."""

import json
import shutil

import pytest

from lib import notebooks
from lib.paths import ROOT
from lib.records import code_digest

EXPERIMENTS = notebooks.experiments()


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
        return {name: code_digest.code(name, root) for name in EXPERIMENTS}

    return edited


def changed(before, after):
    return {name for name in before if before[name] != after[name]}


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("\nimport torch\n", "\n# the tensors\nimport torch  # here\n\n\n"),
        ('    """Compute softmax(Q', '    """Return softmax(Q'),
        ("causal: bool = True) -> Tensor:", "causal: bool = True\n) -> Tensor:"),
    ],
    ids=["comment", "docstring", "line break"],
)
def test_what_does_nothing_changes_no_digest(copy, old, new):
    assert changed(copy(), copy("lib/attention.py", old, new)) == set()


def test_a_constant_changes_the_digests_of_the_experiments_that_import_its_module(copy):
    touched = changed(copy(), copy("lib/attention.py", ".triu(1 + first)", ".triu(2 + first)"))
    assert {"attention", "step", "compile"} <= touched
    assert "ceilings" not in touched
    assert touched == {name for name in EXPERIMENTS if "attention" in code_digest.modules(name)}


def test_a_case_is_a_part_of_its_own_experiment_and_of_those_that_build_on_it(copy):
    touched = changed(copy(), copy("lib/experiments/step.py", '"fp32": 1e-4', '"fp32": 2e-4'))
    assert {"step", "warmup", "memory", "kernels"} <= touched
    assert not touched & {"adam", "attention", "ceilings", "precision"}


def test_a_cell_that_measures_counts_and_one_that_shows_does_not(copy):
    before = copy()
    assert changed(before, copy("notebooks/adam.ipynb", "measure.times(work, plan)", "measure.times(work, plans)")) == {
        "adam"
    }
    assert not changed(before, copy("notebooks/adam.ipynb", "Relative error", "Wrong by"))


def test_the_measuring_modules_are_watched_and_those_that_read_or_show_are_not():
    found = {name: set(code_digest.modules(name)) for name in EXPERIMENTS}
    for name, modules in found.items():
        assert {f"experiments.{name}", "experiments.measure", "timing", "stats.intervals"} <= modules
        assert not [each for each in modules if each.split(".")[0] in ("records", "report", "chapters", "explore")]
    assert {"model", "attention", "adam", "experiments.training", "cost.flops"} <= found["step"]
    assert "instruments.profiler" in found["kernels"] - found["adam"]


def test_the_calibration_and_an_experiment_that_is_gone_have_digests_too():
    assert {"experiments.calibration", "experiments.ceilings", "timing"} <= set(code_digest.modules("calibration"))
    assert len({code_digest.code(name) for name in ("calibration", "gone", "adam")}) == 3


@pytest.mark.parametrize(
    ("file", "old", "new"),
    [
        ("lib/catalog.py", 'title="Optimizer steps"', 'title="Steps"'),
        ("lib/catalog.py", '"foreach": "orange",\n            "fused": "green"', '"fused": "green"'),
        ("lib/catalog.py", '"recorded": 1', '"recorded": 2'),
        ("lib/stats/comparisons.py", "MARGIN = 0.03", "MARGIN = 0.04"),
        ("lib/report/tidy.py", "BUSY_PERCENT = 10", "BUSY_PERCENT = 20"),
    ],
    ids=["a title", "an order", "another entry", "the verdicts", "a table"],
)
def test_what_only_shows_records_makes_none_of_adam_stale(copy, file, old, new):
    assert "adam" not in changed(copy(), copy(file, old, new))


def test_a_baseline_or_a_setting_makes_the_records_of_its_own_experiment_stale(copy):
    baseline = 'baseline={"variant": "single_tensor"}'
    assert changed(copy(), copy("lib/catalog.py", baseline, 'baseline={"variant": "fused"}')) == {"adam"}
    assert changed(copy(), copy("lib/catalog.py", '"recorded": 1', '"recorded": 2')) == {"kernels"}


def test_the_shape_of_code_does_not_depend_on_the_version_of_python():
    """Written out here, so that every version that runs the test has to find the same."""
    found = code_digest.as_tuples(code_digest.ast.parse('def f(a, b=None):\n    "what"\n    return f"{a!r:>3} of {b}"'))
    assert json.dumps(found) == (
        '["Module", ["body", [["FunctionDef", ["name", "f"], ["args", ["arguments", ["args", [["arg", ["arg", "a"]], '
        '["arg", ["arg", "b"]]]], ["defaults", [["Constant"]]]]], ["body", [["Return", ["value", ["JoinedStr", '
        '["values", [["FormattedValue", ["value", ["Name", ["id", "a"], ["ctx", ["Load"]]]], ["conversion", 114], '
        '["format_spec", ["JoinedStr", ["values", [["Constant", ["value", ">3"]]]]]]], '
        '["Constant", ["value", " of "]], '
        '["FormattedValue", ["value", ["Name", ["id", "b"], ["ctx", ["Load"]]]], ["conversion", -1]]]]]]]]]]]]]'
    )
