"""Notebooks keep their form: no outputs, no machinery, parameters that are the fields of their case."""

import ast
from dataclasses import fields

import nbformat
import pytest

from lib import notebooks
from lib.experiments import cases

EXPLORE = notebooks.NOTEBOOKS / "explore.ipynb"  # the one beside them that measures nothing
MEASUREMENT = sorted(set(notebooks.NOTEBOOKS.glob("*.ipynb")) - {EXPLORE})
CHAPTERS = sorted((notebooks.NOTEBOOKS / "report").glob("*.ipynb"))
MEASURING = ("torch.", "lib.timing.", "lib.experiments.", "lib.instruments.", "lib.sweep.")  # not in a chapter
FORBIDDEN = (ast.FunctionDef, ast.ClassDef, ast.Try, ast.AsyncFunctionDef, ast.Lambda)


def code(notebook):
    return [cell for cell in nbformat.read(notebook, as_version=4).cells if cell.cell_type == "code"]


def name(path):
    return path.stem


@pytest.mark.parametrize("notebook", [*MEASUREMENT, EXPLORE, *CHAPTERS], ids=name)
def test_a_notebook_is_stored_without_outputs_and_its_cells_are_thin(notebook):
    nbformat.validate(nbformat.read(notebook, as_version=4))
    lengths = []
    for cell in code(notebook):
        assert not cell.outputs
        assert cell.execution_count is None
        tree = ast.parse(cell.source)  # magics and shell commands do not parse
        assert not any(isinstance(node, FORBIDDEN) for node in ast.walk(tree)), cell.source
        assert "sys.path" not in cell.source
        if "parameters" not in cell.metadata.get("tags", []):
            lengths.append(len([line for line in cell.source.splitlines() if line.strip()]))
    assert max(lengths) <= 12
    assert sum(lengths) <= 40 or notebook not in MEASUREMENT


def test_each_experiment_has_its_notebook_and_no_other():
    assert notebooks.experiments() == [path.stem for path in MEASUREMENT] == sorted(cases.EXPERIMENTS)


@pytest.mark.parametrize("experiment", cases.EXPERIMENTS)
def test_the_parameters_of_a_notebook_are_a_possible_case_measured_by_hand_and_the_settings(experiment):
    expected = [field.name for field in fields(cases.EXPERIMENTS[experiment])]
    defaults = notebooks.parameters(experiment)
    assert list(defaults) == expected + list(notebooks.settings(experiment))
    assert cases.grid(experiment, **{name: defaults[name] for name in expected})
    assert defaults["round"] == 0


@pytest.mark.parametrize("notebook", CHAPTERS, ids=name)
def test_a_chapter_measures_nothing_and_takes_its_machine_as_parameter(notebook):
    cells = code(notebook)
    (parameters,) = [cell for cell in cells if "parameters" in cell.metadata.get("tags", [])]
    assert parameters.source.startswith("machine = ")
    imports = [
        node
        for cell in cells
        for node in ast.walk(ast.parse(cell.source))
        if isinstance(node, ast.Import | ast.ImportFrom)
    ]
    modules = {".".join(filter(None, (getattr(node, "module", ""), of.name))) for node in imports for of in node.names}
    assert modules
    assert not [module for module in modules if f"{module}.".startswith(MEASURING)]
