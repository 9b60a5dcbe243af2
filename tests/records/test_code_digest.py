"""The digest of an experiment's code changes with what its modules do, and with nothing else."""

import json
import shutil

import pytest

from lib import notebooks
from lib.paths import ROOT
from lib.records import code_digest

EXPERIMENTS = notebooks.experiments()


@pytest.fixture
def changed(tmp_path):
    """Edit a copy of the code, each edit a file, its text there and another; name the experiments of other digests."""

    def changed(*edits):
        for folder in ("lib", "notebooks"):
            shutil.copytree(ROOT / folder, tmp_path / folder)
        for file, old, new in edits:
            text = (tmp_path / file).read_text()
            assert old in text, old
            (tmp_path / file).write_text(text.replace(old, new, 1))
        return {name for name in EXPERIMENTS if code_digest.code(name, tmp_path) != code_digest.code(name)}

    return changed


def test_what_does_nothing_or_only_shows_records_makes_none_stale(changed):
    assert not changed(
        ("lib/attention.py", "\nimport torch\n", "\n# the tensors\nimport torch  # here\n\n\n"),
        ("lib/attention.py", '    """Compute softmax(Q', '    """Return softmax(Q'),
        ("lib/attention.py", "causal: bool = True) -> Tensor:", "causal: bool = True\n) -> Tensor:"),
        ("lib/catalog.py", 'title="Optimizer steps"', 'title="Steps"'),
        ("lib/catalog.py", '"foreach": "orange",\n            "fused": "green"', '"fused": "green"'),
        ("lib/stats/comparisons.py", "MARGIN = 0.03", "MARGIN = 0.04"),
        ("lib/report/tidy.py", "BUSY_PERCENT = 10", "BUSY_PERCENT = 20"),
        ("notebooks/adam.ipynb", "Relative error", "Wrong by"),
    )


def test_a_constant_changes_the_digests_of_the_experiments_that_import_its_module(changed):
    touched = changed(("lib/attention.py", ".triu(1 + first)", ".triu(2 + first)"))
    assert {"attention", "step", "compile"} <= touched
    assert "ceilings" not in touched
    assert touched == {name for name in EXPERIMENTS if "attention" in code_digest.modules(name)}


def test_a_case_is_a_part_of_its_own_experiment_and_of_those_that_build_on_it(changed):
    touched = changed(("lib/experiments/step.py", '"fp32": 1e-4', '"fp32": 2e-4'))
    assert {"step", "warmup", "memory", "kernels"} <= touched
    assert not touched & {"adam", "attention", "ceilings", "precision"}


def test_a_measuring_cell_a_baseline_or_a_setting_makes_the_records_of_its_own_experiment_stale(changed):
    assert changed(
        ("notebooks/adam.ipynb", "measure.times(work, plan)", "measure.times(work, plans)"),
        ("lib/catalog.py", '"recorded": 1', '"recorded": 2'),
        ("lib/catalog.py", 'baseline={"allocator": "keeps"}', 'baseline={"allocator": "default"}'),
    ) == {"adam", "kernels", "allocator"}


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
