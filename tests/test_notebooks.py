"""Notebooks keep their form, and give an answer or one line at whatever parameters."""

import ast
import re
import shutil
from dataclasses import fields

import nbformat
import pytest

from lib import catalog, execution, notebooks
from lib.experiments import cases
from lib.report import answers

FILES = sorted(notebooks.NOTEBOOKS.glob("*.ipynb"))
FORBIDDEN = (ast.ClassDef, ast.Try, ast.AsyncFunctionDef)
STRIP = "jupyter nbconvert --clear-output --inplace FILE strips them"
LOOKS_UP = re.compile(r"\b(tidy|compare|roofline|published|answers)\.\w+\(")


def code_cells(file):
    return [cell for cell in nbformat.read(file, as_version=4).cells if cell.cell_type == "code"]


@pytest.mark.parametrize("file", FILES, ids=lambda file: file.stem)
def test_a_notebook_is_stored_without_outputs_and_its_cells_are_short(file):
    nbformat.validate(nbformat.read(file, as_version=4))
    total = 0
    for cell in code_cells(file):
        assert not cell.outputs, STRIP
        assert cell.execution_count is None, STRIP
        tree = ast.parse(cell.source.rstrip().removesuffix(";"))  # magics and shell commands do not parse
        assert not any(isinstance(node, FORBIDDEN) for node in ast.walk(tree)), cell.source
        assert "sys.path" not in cell.source
        lines = [line for line in cell.source.splitlines() if line.strip()]
        assert len(lines) <= 15, cell.source
        total += len(lines)
    assert total <= 150


@pytest.mark.parametrize("experiment", notebooks.experiments())
def test_parameters_are_the_fields_of_a_possible_case_and_the_settings(experiment):
    names = [field.name for field in fields(cases.case_class(experiment))]
    assert sorted(notebooks.parameters(experiment)) == sorted([*names, *notebooks.SETTINGS])
    assert list(notebooks.parameters(experiment))[-3:] == list(notebooks.SETTINGS)
    assert cases.grid(experiment)
    assert notebooks.parameters(experiment)["round"] == 0
    assert notebooks.parameters(experiment)["machine"] == ""


def test_each_experiment_has_an_entry_and_each_entry_a_notebook():
    assert set(notebooks.experiments()) == set(catalog.CATALOG)


@pytest.mark.parametrize("file", [file for file in FILES if file.stem != "explore"], ids=lambda file: file.stem)
def test_a_cell_that_looks_data_up_lets_the_notebook_go_on(file):
    for cell in code_cells(file):
        tags = cell.metadata.get("tags", [])
        statements = [node for node in ast.parse(cell.source).body if not isinstance(node, ast.FunctionDef)]
        source = "\n".join(ast.unparse(node) for node in statements)
        if not {"parameters", "measure"} & set(tags) and LOOKS_UP.search(source):
            assert "raises-exception" in tags, cell.source


def run(notebook, folder, **parameters):
    """Execute a whole notebook by hand or about a machine; return its answers and the names of its errors."""
    output = folder / f"{notebook}.ipynb"
    execution.execute(notebooks.NOTEBOOKS / f"{notebook}.ipynb", output, parameters)
    executed = nbformat.read(output, as_version=4)
    outputs = [output for cell in executed.cells if cell.cell_type == "code" for output in cell.outputs]
    return answers.collect(executed), [output.ename for output in outputs if output.output_type == "error"]


ODD = {
    "adam": {"variant": "fused", "num_params": 3, "param_size": 100, "amsgrad": False},
    "attention": {"variant": "sdpa", "seq_len": 64, "d_head": 8, "precision": "bf16"},
    "attention_module": {"d_model": 32, "context_length": 16, "num_heads": 2, "precision": "bf16", "compiled": False},
    "calibration": {},
    "ceilings": {},
    "collectives": {},
    "kernels": {"size": "tiny", "context_length": 16, "precision": "bf16", "compiled": False},
    "ladder": {"size": "tiny", "context_length": 16, "switches": "plain", "losses": False},
    "memory": {"size": "tiny", "context_length": 16, "precision": "bf16"},
    "parallel": {"size": "tiny", "context_length": 16, "variant": "flat"},
    "precision": {"subject": "toy", "precision": "bf16"},
    "step": {"size": "tiny", "context_length": 16, "batch_size": 1, "precision": "bf16", "mode": "forward"},
    "warmup": {"size": "tiny", "context_length": 16},
}


@pytest.mark.parametrize("notebook", ODD)
def test_at_odd_parameters_by_hand_a_notebook_answers_or_says_what_is_missing(notebook, own_results, tmp_path):
    told, errors = run(notebook, tmp_path, seconds=0.02, **ODD[notebook])
    assert set(errors) <= {"NotMeasured"}
    assert told or errors


@pytest.mark.parametrize("notebook", [name for name in notebooks.experiments() if name != "parallel"])
def test_a_machine_whose_only_record_ran_out_of_memory_gives_one_line(notebook, save_record, tmp_path):
    first = cases.grid(notebook)[0]
    save_record(
        notebook, {field.name: getattr(first, field.name) for field in fields(first)}, status="oom", ran_out="case"
    )
    _, errors = run(notebook, tmp_path, machine="test-1c")
    assert set(errors) <= {"NotMeasured"}


@pytest.mark.parametrize("notebook", ["summary", "questions", "method", "published", "compile", "peers"])
def test_notebooks_that_only_tell_go_on_without_records(notebook, save_record, tmp_path):
    save_record("adam", vars(cases.grid("adam")[0]), status="failed", reason="a test")
    _, errors = run(notebook, tmp_path, machine="test-1c")
    assert set(errors) <= {"NotMeasured"}


def test_explore_draws_and_keeps_what_it_shows(save_record, tmp_path):
    for variant in ("single_tensor", "fused"):
        case = vars(cases.grid("adam", variant=variant)[0])
        for round in (1, 2):
            save_record("adam", case, round=round, total_ms=[1.0 * round, 2.0 * round])
    shutil.copy(notebooks.NOTEBOOKS / "explore.ipynb", tmp_path)
    execution.execute(tmp_path / "explore.ipynb", tmp_path / "out.ipynb", {})
    assert (tmp_path / "explored.svg").read_text().count("<svg") == 1
    assert len((tmp_path / "explored.csv").read_text().splitlines()) == 1 + 4
