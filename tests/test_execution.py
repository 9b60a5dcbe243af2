"""A notebook is executed by the Python that runs here, and fails in one line."""

import json
import sys

import nbformat
import pytest
from nbformat import v4

from lib import execution
from lib.notebooks import NotebookFailed


def write(file, *cells):
    """Write a notebook of cells, each a source, or a source and its tag."""
    made = []
    for cell in cells:
        source, *tags = (cell,) if isinstance(cell, str) else cell
        made.append(v4.new_code_cell(source, metadata={"tags": tags}))
    nbformat.write(v4.new_notebook(cells=made), file)
    return file


@pytest.fixture(scope="module")
def shared():
    with execution.shared_kernel() as kernel:
        yield kernel


@pytest.fixture
def output(tmp_path):
    return tmp_path / "runs" / "done.ipynb"


def outputs(file) -> list[list]:
    cells = nbformat.read(file, as_version=4).cells
    return [[shown.get("text") or shown.get("ename") for shown in cell.outputs] for cell in cells]


def test_a_kernel_is_of_the_python_that_runs_here_without_a_users_kernels_profile_and_style(
    tmp_path, monkeypatch, output
):
    spec = tmp_path / "share" / "kernels" / "python3"
    spec.mkdir(parents=True)
    unwanted = {"argv": ["/bin/false", "{connection_file}"], "display_name": "another", "language": "python"}
    (spec / "kernel.json").write_text(json.dumps(unwanted))
    monkeypatch.setenv("JUPYTER_PATH", str(tmp_path / "share"))
    profile = tmp_path / "user" / "profile_default"
    (profile / "startup").mkdir(parents=True)
    (profile / "startup" / "own.py").write_text("import sys; sys.own = True")
    (profile / "ipython_config.py").write_text("c.InteractiveShell.ast_node_interactivity = 'all'")
    (profile / "matplotlibrc").write_text("text.usetex: True")
    monkeypatch.setenv("IPYTHONDIR", str(profile.parent))
    monkeypatch.setenv("MATPLOTLIBRC", str(profile))
    monkeypatch.setenv("PYTHONSTARTUP", str(profile / "startup" / "own.py"))
    cell = (
        "import sys, lib, matplotlib\n1\nprint(sys.executable, hasattr(sys, 'own'), matplotlib.rcParams['text.usetex'])"
    )
    with execution.shared_kernel() as kernel:
        execution.execute(kernel, write(tmp_path / "one.ipynb", cell), output, {})
    assert outputs(output) == [[f"{sys.executable} False False\n"]]


def test_parameters_replace_the_defaults_and_names_of_the_previous_notebook_are_gone(tmp_path, shared, output):
    source = write(tmp_path / "one.ipynb", ("size = 1", "parameters"), "print(size, 'left' in globals())\nleft = 2")
    for size in (5, 6):
        execution.execute(shared, source, output, {"size": size})
        assert outputs(output)[-1] == [f"{size} False\n"]


@pytest.mark.parametrize(("tags", "later"), [([], []), (["raises-exception"], ["later\n"])])
def test_another_error_fails_the_notebook_at_once_or_at_its_end(tmp_path, shared, output, tags, later):
    source = write(tmp_path / "one.ipynb", "print('before')", ("1 / 0", *tags), "print('later')")
    with pytest.raises(NotebookFailed, match=r"ZeroDivisionError: division by zero, in done\.ipynb"):
        execution.execute(shared, source, output, {})
    assert outputs(output) == [["before\n"], ["ZeroDivisionError"], later]


@pytest.mark.parametrize("text", ["", "<<<<<<< HEAD", "[]"])
def test_a_file_that_is_no_notebook_is_named(tmp_path, shared, output, text):
    (tmp_path / "one.ipynb").write_text(text)
    with pytest.raises(NotebookFailed, match=r"^one\.ipynb: cannot be read"):
        execution.execute(shared, tmp_path / "one.ipynb", output, {})


def test_a_notebook_that_ends_early_has_failed(tmp_path, shared, output):
    source = write(tmp_path / "one.ipynb", "import sys; sys.exit(0)", "print('later')")
    with pytest.raises(NotebookFailed, match=r"SystemExit|before its last cell"):
        execution.execute(shared, source, output, {})


def test_nothing_is_sent_for_an_output_widget_while_a_cell_waits_for_its_reply(tmp_path, shared, output, monkeypatch):
    sent = []
    monkeypatch.setattr("nbclient.output_widget.OutputWidget.send", lambda *message, **_: sent.append(message))
    cell = "import ipywidgets\nshown = ipywidgets.Output()\nwith shown:\n    print('inside')"
    execution.execute(shared, write(tmp_path / "one.ipynb", cell), output, {})
    assert not sent
