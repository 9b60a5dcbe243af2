"""Notebooks keep their form, and give an answer or one line at whatever parameters."""

import ast
import os
import re
import subprocess
import sys

import nbformat
import papermill
import pytest
from nbformat import v4

import odd
from lib import catalog, execution, notebooks, records
from lib.experiments import cases
from lib.paths import ROOT
from lib.report import answers, old_kind

FILES = sorted(notebooks.NOTEBOOKS.glob("*.ipynb"))
FORBIDDEN = (ast.ClassDef, ast.Try, ast.AsyncFunctionDef)
STRIP = "jupyter nbconvert --clear-output --inplace FILE strips them"
OLD = []  # experiments whose notebook is of the old kind; test_notebooks_again has those of the new one
for notebook_file in FILES:
    if notebook_file.stem in catalog.CATALOG and old_kind.is_old(nbformat.read(notebook_file, as_version=4)):
        OLD.append(notebook_file.stem)
LOOKS_UP = re.compile(r"\b(tidy|compare|answers)\.\w+\(")


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
        lines = [line for line in cell.source.splitlines() if line.strip()]
        assert len(lines) <= 15, cell.source
        total += len(lines)
        # in the old kind a cell that looks up lets the notebook go on; explore has no missing answers
        tags = cell.metadata.get("tags", [])
        tree.body = [node for node in tree.body if not isinstance(node, ast.FunctionDef)]
        looks_up = LOOKS_UP.search(ast.unparse(tree)) and not {"parameters", "measure"} & set(tags)
        if looks_up and old_kind.is_old(notebook) and file.stem != "explore":
            assert "raises-exception" in tags, cell.source
    # explore is a small program with menus, and no chapter
    assert total <= (150 if old_kind.is_old(notebook) or file.stem == "explore" else 120)


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


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    """Execute a notebook in a kernel that all share; return its answers and the names of its errors.

    There are records of two machines: on one everything ran out of memory, on the other a case of Adam's failed."""
    folder = tmp_path_factory.mktemp("notebooks")
    around = {"machine": "small-1c", "hardware": "a test"}
    with pytest.MonkeyPatch.context() as patch, execution.shared_kernel() as kernel:
        patch.setenv("RESULTS", str(folder / "results"))
        for name in catalog.CATALOG:
            records.save(records.create(name, vars(cases.grid(name)[0]), 1, "oom", {"reason": "a test"}, around))
        broken = around | {"machine": "broken-1c"}
        records.save(records.create("adam", vars(cases.grid("adam")[0]), 1, "failed", {"reason": "a test"}, broken))

        def run(notebook, **parameters):
            source = folder / f"{notebook}.ipynb"
            output = folder / f"{notebook}-executed.ipynb"
            cells = nbformat.read(notebooks.NOTEBOOKS / source.name, as_version=4)
            if notebook in catalog.CATALOG:
                # after all cells the measuring one must still take none of their names for a mistyped parameter
                again = f'measure.run("{notebook}", {{**vars(), "machine": "small-1c"}});'
                cells.cells.append(v4.new_code_cell(again))
            nbformat.write(cells, source)
            execution.execute(kernel, source, output, parameters)
            executed = nbformat.read(output, as_version=4)
            outputs = [output for cell in executed.cells for output in cell.get("outputs", [])]
            return answers.collect(executed), {output.ename for output in outputs if output.output_type == "error"}

        yield run


@pytest.mark.parametrize(("notebook", "parameters"), odd.sets(OLD))
def test_at_odd_parameters_by_hand_a_notebook_answers_or_says_what_is_missing(notebook, parameters, run):
    told, errors = run(notebook, seconds=0.02, **parameters)
    assert errors <= {"NotMeasured"}
    # one rung alone has no gain to tell
    assert any(key.startswith(notebook) for key in told) or notebook == "ladder"


LITTLE = [(name, "small-1c") for name in (*OLD, "compile")]
LITTLE += [(name, "broken-1c") for name in ("summary", "questions", "method", "published", "compile", "peers")]


@pytest.mark.parametrize(("notebook", "machine"), LITTLE)
def test_where_all_ran_out_of_memory_or_has_no_records_a_notebook_says_what_is_missing(notebook, machine, run):
    _, errors = run(notebook, machine=machine)
    assert errors <= {"NotMeasured"}


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


def test_ranks_are_compared_with_one_process_on_the_same_batch(run):
    around = {"machine": "two-1c", "hardware": "a test"}
    kept = [f"{when}_{name}_mib" for when in ("after", "predicted") for name in ("parameters", "gradients", "states")]
    # by batch, milliseconds of one process and of two ranks
    for batch_size, times_ms in {2: (1.0, 3.0), 4: (4.0, 5.0)}.items():
        for (variant, world), ms in zip({"plain": 1, "fsdp": 2}.items(), times_ms, strict=True):
            case = vars(cases.grid("parallel", variant=variant, world=world, batch_size=batch_size)[0])
            metrics = {"total_ms": [ms] * 10, "parameters": 10, **{name: [1.0] for name in kept}}
            for round in (1, 2, 3):
                records.save(records.create("parallel", case, round, "ok", metrics, around))
    told, errors = run("parallel", machine="two-1c")
    assert not errors
    assert "on the ranks it takes 3.00 times as long" in told["parallel"]


def test_compiling_pays_after_what_it_costs_over_what_it_saves(run):
    shown = []
    for folder in sorted((ROOT / "reports/reference").glob("xeon-*")):
        told, _ = run("compile", machine=folder.name)
        for text in told.values():
            shown += re.findall(r"pays after ([\d,]+): ([\d.]+) (m?s) over ([\d.]+) (m?s)\.", text)
    assert shown
    to_ms = {"ms": 1.0, "s": 1000.0}
    for steps, cost, cost_unit, gain, gain_unit in shown:
        quotient = float(cost) * to_ms[cost_unit] / (float(gain) * to_ms[gain_unit])
        # two digits, and whole steps
        assert float(steps.replace(",", "")) == pytest.approx(quotient, rel=0.05, abs=1)
