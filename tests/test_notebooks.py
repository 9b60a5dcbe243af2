"""Notebooks keep their form, and give an answer or one line at whatever parameters."""

import ast
import os
import re
import subprocess
import sys

import nbformat
import papermill
import pytest

from lib import catalog, notebooks
from lib.paths import ROOT

FILES = sorted(notebooks.NOTEBOOKS.glob("*.ipynb"))
FORBIDDEN = (ast.ClassDef, ast.Try, ast.AsyncFunctionDef)
STRIP = "jupyter nbconvert --clear-output --inplace FILE strips them"


@pytest.mark.parametrize("file", FILES, ids=lambda file: file.stem)
def test_a_notebook_keeps_its_form(file):
    notebook = nbformat.read(file, as_version=4)
    nbformat.validate(notebook)
    total = 0
    for cell in [cell for cell in notebook.cells if cell.cell_type == "code"]:
        assert not cell.outputs, STRIP
        assert cell.execution_count is None, STRIP
        tree = ast.parse(cell.source.rstrip().removesuffix(";"))  # magics and shell commands do not parse
        assert not any(isinstance(node, FORBIDDEN) for node in ast.walk(tree)), cell.source
        assert "sys.path" not in cell.source
        lines = cell.source.splitlines()
        assert len(lines) - lines.count("") <= 15, cell.source
        total += len(lines)
    assert total <= 120


def test_each_experiment_has_an_entry_and_each_entry_a_notebook():
    measuring = []
    for file in FILES:
        for cell in nbformat.read(file, as_version=4).cells:
            if "measure" in cell.metadata.get("tags", []):
                measuring.append(file.stem)
                # so that an executed notebook shows what it measured
                assert cell.source.endswith(f'\nrecords = measure.run("{file.stem}", vars())\nrecords')
    assert set(measuring) == set(catalog.CATALOG)


@pytest.mark.parametrize("experiment", catalog.CATALOG)
def test_parameters_are_the_fields_of_a_case_and_the_settings(experiment):
    names = {*catalog.CATALOG[experiment].fields, "seconds", "round", "machine"}
    defaults = papermill.inspect_notebook(str(notebooks.NOTEBOOKS / f"{experiment}.ipynb"))
    assert set(defaults) == names
    assert [(name, defaults[name]["default"]) for name in list(defaults)[-2:]] == [("round", "0"), ("machine", '""')]


def test_a_mistyped_parameter_ends_plain_papermill_in_one_line_and_nothing_is_measured(own_results, tmp_path):
    output = tmp_path / "out.ipynb"
    source = notebooks.NOTEBOOKS / "adam.ipynb"
    command = [sys.executable, "-m", "papermill", "--no-progress-bar", source, output, "-p", "varient", "fused"]
    done = subprocess.run(command, env=os.environ | {"PYTHONPATH": str(ROOT)}, capture_output=True, text=True)
    assert done.returncode == 1
    errors = []
    for cell in nbformat.read(output, as_version=4).cells:
        errors += [shown for shown in cell.get("outputs", []) if shown.output_type == "error"]
    (line,) = errors[0].traceback
    assert line.startswith("parameter: got 'varient', expected one of variant, ")
    assert line.endswith("(nearest: variant)")
    assert not own_results.exists()


def test_each_answer_that_the_summary_quotes_is_told_by_its_chapter():
    keys = re.findall(r'\\"([a-z_.]+)\\": \\"', (notebooks.NOTEBOOKS / "summary.ipynb").read_text())
    assert len(keys) > 15
    for key in keys:
        chapter = key.partition(".")[0]
        source = (notebooks.NOTEBOOKS / f"{chapter}.ipynb").read_text()
        # as a literal, by number, or from a dict of answers
        told = [f'report.answer(\\"{key}\\"', f'report.answer(f\\"{chapter}.{{', f'\\"{key}\\": ']
        assert any(text in source for text in told), key
