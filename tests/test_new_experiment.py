"""A new experiment is three files, an entry and lines in the sweeps: tests/support/toy, added to a copy."""

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from lib.paths import ROOT

TOY = ROOT / "tests" / "support" / "toy"
ENTRY = """
    "softmax": Experiment(
        title="Softmaxes", fields=("variant", "width", "device"),
        variants={"stepwise": Variant(), "one_call": Variant("stepwise")}
    ),
}  # fmt: skip


def baseline"""
LINE = "softmax: {variant: [stepwise, one_call], width: [64, 256], rounds: 1, seconds: 0.02}\n"
SHOW_AND_TEST = """
import sys
import pytest
from lib import records
from lib.report import page
page.CHAPTERS, page.CATALOG = (), ["softmax"]
assert not page.render(records.machines())
files = ["tests/experiments/test_softmax.py", "tests/test_notebooks.py", "tests/test_notebooks_again.py"]
sys.exit(pytest.main(["-p", "no:cacheprovider", *files, "-k", "softmax"]))
"""


@pytest.fixture
def repository(tmp_path):
    for folder in ("lib", "notebooks", "tests"):
        shutil.copytree(ROOT / folder, tmp_path / folder, ignore=shutil.ignore_patterns("__pycache__", "toy"))
    shutil.copytree(ROOT / "reports" / "template", tmp_path / "reports" / "template")
    for name in ("pyproject.toml", "constraints.txt"):
        shutil.copy(ROOT / name, tmp_path)
    shutil.copytree(TOY, tmp_path, dirs_exist_ok=True)
    catalog = tmp_path / "lib" / "catalog.py"
    before, after = catalog.read_text().split("\n}  # fmt: skip\n\n\ndef baseline")
    catalog.write_text(before + ENTRY + after)
    (tmp_path / "notebooks" / "sweeps" / "one.yaml").write_text(LINE)
    return tmp_path


def run(folder: Path, *command: str) -> None:
    path = os.pathsep.join(map(str, (folder, folder / "tests" / "support")))
    own = {"PYTHONPATH": path, "RESULTS": str(folder / "reports" / "results"), "OMP_NUM_THREADS": "1"}
    done = subprocess.run(
        [sys.executable, *command], cwd=folder, env=os.environ | own, capture_output=True, text=True, timeout=300
    )
    assert done.returncode == 0, done.stdout + done.stderr


def test_a_new_experiment_is_measured_and_told_and_is_three_files_and_an_entry(repository):
    added = [file.relative_to(TOY).as_posix() for file in sorted(TOY.rglob("*.*")) if "__pycache__" not in file.parts]
    assert added == [
        "lib/experiments/softmax.py", "notebooks/softmax.ipynb", "tests/experiments/test_softmax.py",
    ]  # fmt: skip
    run(repository, "-m", "lib.sweep", "one")
    assert len(list((repository / "reports" / "results").glob("*/softmax/*.json"))) == 4
    run(repository, "-c", SHOW_AND_TEST)
    page = (repository / "reports" / "report.html").read_text()
    assert re.search("At 256 numbers a row, (stepwise|one_call) takes ", page)
    assert "<svg" in page
    assert page.count("<tr>") == 1 + 2  # each width of the variant that has a baseline
