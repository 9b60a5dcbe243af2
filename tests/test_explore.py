"""The notebook `explore` draws every experiment, and what a menu changes."""

from unittest.mock import Mock

import nbformat
import pytest

from lib import execution, notebooks, records
from lib.paths import REFERENCE

EXPLORE = notebooks.NOTEBOOKS / "explore.ipynb"
MACHINES = ["xeon-2c-0e51", "nvidia-h100-80gb-hbm3-6a71"]  # a CPU and a GPU, of whose records git keeps some


@pytest.fixture
def run(own_results, monkeypatch):
    """Run the cells of the notebook here, with parameters in place of its own; return its names."""
    monkeypatch.setattr(records, "REFERENCE", REFERENCE)
    # outside of a kernel there is nothing to update; papermill's test has the figure as SVG
    monkeypatch.setattr("lib.report.plots.svg", lambda figure, alt: alt)
    monkeypatch.setattr("IPython.display.display", lambda *_, **__: Mock())

    def run(**parameters):
        names = {}
        for cell in nbformat.read(EXPLORE, as_version=4).cells:
            if cell.cell_type == "code":
                exec(cell.source, names)
            if "parameters" in cell.metadata.get("tags", []):
                names |= parameters
        return names

    return run


@pytest.mark.parametrize("machine", MACHINES)
def test_the_first_figure_of_every_experiment_has_the_cases_as_points(machine, run):
    names = run(machine=machine)
    for file in (REFERENCE / machine).glob("*.jsonl"):
        experiment = file.stem
        names["menus"]["experiment"].value = experiment
        figure, rows = names["update"]()
        (axes,) = figure.axes
        y = names["menus"]["y"].value
        drawn = sorted(value for line in axes.lines for value in line.get_ydata())
        assert drawn == sorted(names["load"](experiment, machine)[y].dropna()), experiment
        assert len(rows) == len(drawn) > 0
        joins = {column: joined_cases(rows, column) for column in names["menus"]["x"].options}
        # where some field joins cases, the first figure has a line
        assert joins[names["menus"]["x"].value] > 0 or not any(joins.values()), experiment
        labels = [label.get_text() for label in axes.get_xticklabels()]
        assert set(labels) >= set(rows.select_dtypes("str").get(axes.get_xlabel(), [])) or "+\n" in "".join(labels)


def joined_cases(rows, column):
    """Count the cases that some line along a column has beside its first."""
    fields = list(rows.loc[:, :"machine"].columns.drop(column))
    return (rows.groupby(fields, dropna=False).size() - 1).sum()


def test_a_condition_leaves_its_cases_and_a_bad_one_is_one_line(run):
    names = run(experiment="attention", machine="xeon-2c-0e51", only="seq_len > 256")
    _, rows = names["update"]()
    assert set(rows["seq_len"]) == {1024, 2048}
    table = names["load"]("attention", "xeon-2c-0e51")
    for condition in ("seq_len > (", "seq_lem > 256", "seq_len", "1", "variant + 1", "x = 1", "seq_len > 'a'", "@x"):
        left, line = names["filter_rows"](table, condition)
        assert left is table
        assert line.startswith(f"only: got {condition!r}, expected")
        assert "\n" not in line
    everything, line = names["filter_rows"](table, "  ")
    assert (len(everything), line) == (len(table), "")


def test_cells_that_run_again_add_no_observer(run):
    names = run(experiment="adam")
    cells = [cell.source for cell in nbformat.read(EXPLORE, as_version=4).cells if cell.cell_type == "code"]
    for source in [*cells, *reversed(cells)]:
        exec(source, names)
    draw = names["draw"]
    calls = []
    names["draw"] = lambda *arguments: calls.append(arguments) or draw(*arguments)
    names["menus"]["log"].value = False
    assert len(calls) == 1


WRONG = {"experiment": "attentoin", "machine": "xeon", "x": "seq_lem", "y": "variant", "hue": "total_ms"}


@pytest.mark.parametrize(("name", "value"), WRONG.items())
def test_a_wrong_parameter_is_refused_in_one_line(name, value, run):
    with pytest.raises(ValueError, match=f"^{name}: got '{value}', expected .* \\(nearest: [^\n]*$"):
        run(**{name: value})


def test_papermill_keeps_the_figure_in_the_notebook(tmp_path):
    output = tmp_path / "out.ipynb"
    with execution.shared_kernel() as kernel:
        execution.execute(kernel, EXPLORE, output, {"experiment": "adam", "machine": "xeon-2c-0e51", "x": "param_size"})
    shown = [str(output.get("data", "")) for output in nbformat.read(output, as_version=4).cells[-1].outputs]
    assert sum('aria-label="total_ms against param_size"' in text for text in shown) == 1
