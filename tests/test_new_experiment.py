"""A new experiment costs five files and edits in six: tests/support/toy, added to a copy of the repository."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from lib.paths import ROOT

TOY = ROOT / "tests" / "support" / "toy"
ENTRY = """    "softmax": Experiment(
        title="Softmaxes",
        ceiling="memory",
        baseline={"variant": "stepwise"},
        variants={"stepwise": "ink", "one_call": "green"},
        settings={"checks": 1},
    ),
}
"""
LINE = "softmax: {variant: [stepwise, one_call], width: [64, 256], warmup: 1, samples: 10, pairs: 10, checks: 2}\n"
SHOW_AND_TEST = """
import sys
from pathlib import Path
import executed
import pytest
from lib import notebooks
from lib.records import results
(machine,) = results.machines()[:1]
shown = executed.shown(notebooks.CHAPTERS / "14_softmax.ipynb", machine=machine)
Path("chapter.html").write_text("".join(one._repr_html_() for one in shown))
files = ["tests/experiments/test_softmax.py", "tests/test_notebooks.py", "tests/experiments/test_cases.py"]
sys.exit(pytest.main(["-p", "no:cacheprovider", *files, "-k", "softmax"]))  # the tests of form
"""


@pytest.fixture
def repository(tmp_path):
    """A copy of the repository with the new experiment."""
    for folder in ("lib", "notebooks", "tests"):
        shutil.copytree(ROOT / folder, tmp_path / folder, ignore=shutil.ignore_patterns("__pycache__", "toy"))
    for name in ("pyproject.toml", "constraints.txt"):
        shutil.copy(ROOT / name, tmp_path)
    shutil.copytree(TOY, tmp_path, dirs_exist_ok=True)
    catalog = tmp_path / "lib" / "catalog.py"
    assert catalog.read_text().endswith("),\n}\n")
    catalog.write_text(catalog.read_text().removesuffix("}\n") + ENTRY)
    for name in ("smoke", "quick", "quick-gpu", "cpu", "gpu"):
        with (tmp_path / "notebooks" / "sweeps" / f"{name}.yaml").open("a") as file:
            file.write(LINE)
    (tmp_path / "notebooks" / "sweeps" / "one.yaml").write_text(LINE)  # the line alone, to run nothing else here
    return tmp_path


def run(folder: Path, *command: str) -> str:
    path = os.pathsep.join(map(str, (folder, folder / "tests" / "support")))
    own = {"PYTHONPATH": path, "RESULTS": str(folder / "reports" / "results"), "OMP_NUM_THREADS": "1"}
    done = subprocess.run(
        [sys.executable, *command], cwd=folder, env=os.environ | own, capture_output=True, text=True, timeout=300
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def test_a_new_experiment_is_measured_and_told_and_costs_five_files_and_six_edits(repository):
    added = [file.relative_to(TOY).as_posix() for file in sorted(TOY.rglob("*.*")) if "__pycache__" not in file.parts]
    assert added == [
        "lib/chapters/softmax.py", "lib/experiments/softmax.py", "notebooks/report/14_softmax.ipynb",
        "notebooks/softmax.ipynb", "tests/experiments/test_softmax.py",
    ]  # fmt: skip
    run(repository, "-m", "lib.sweep", "one")
    records = sorted((repository / "reports" / "results").glob("*/softmax/*.json"))
    assert len(records) == 4
    run(repository, "-c", SHOW_AND_TEST)
    page = (repository / "chapter.html").read_text()
    assert "one call" in page.lower()
    assert "<svg" in page
    assert page.count("<tr>") == 1 + 2  # each width of the variant that has a baseline
