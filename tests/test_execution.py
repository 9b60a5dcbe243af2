"""A notebook is executed by the Python that runs here, wherever its sockets have to be."""

import contextlib
import json
import sys

import pytest

import cells
from lib import execution


@pytest.mark.parametrize("kept", [False, True])
def test_a_kernel_is_of_the_python_that_runs_here_whatever_jupyter_finds(tmp_path, monkeypatch, kept):
    spec = tmp_path / "share" / "kernels" / "python3"
    spec.mkdir(parents=True)
    other = {"argv": ["/bin/false", "{connection_file}"], "display_name": "another", "language": "python"}
    (spec / "kernel.json").write_text(json.dumps(other))
    monkeypatch.setenv("JUPYTER_PATH", str(tmp_path / "share"))
    source = cells.write(tmp_path / "one.ipynb", f"import sys; assert sys.executable == {sys.executable!r}")
    with execution.shared_kernel() if kept else contextlib.nullcontext() as given:
        execution.execute(source, tmp_path / "done.ipynb", {}, kept=given)
