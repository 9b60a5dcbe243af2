"""Measures what the runner itself costs: the start of a kernel, the way between two cases, a rendering of the page."""

import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

import nbformat

from lib import execution, timing
from lib.experiments import measure
from lib.instruments import environment
from lib.report.document import page as report

TURNS = 8
CASES = 30
LOADING = "import time, torch; print(time.monotonic())"  # whose clock is the same in every process
PLAIN = "import time; began = time.monotonic(); import torch; print(time.monotonic() - began)"


def start(device: str) -> dict[str, list[float]]:
    """`kernel_ms`, from the start of a kernel to the end of a cell that loads torch, and `torch_ms`, the loading of
    torch by a plain process: so many of each in turns, after one of each that fills the caches of the disk."""
    found: dict[str, list[float]] = {"kernel_ms": [], "torch_ms": []}
    with tempfile.TemporaryDirectory() as name:
        source, output = Path(name, "loading.ipynb"), Path(name, "done.ipynb")
        nbformat.write(nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell(LOADING)]), source)
        for _ in range(TURNS + 1):
            began = time.monotonic()
            execution.execute(source, output, {})
            (cell,) = nbformat.read(output, as_version=4).cells
            found["kernel_ms"].append(1e3 * (float(cell.outputs[0].text) - began))
            plain = subprocess.run([sys.executable, "-c", PLAIN], capture_output=True, text=True, check=True)
            found["torch_ms"].append(1e3 * float(plain.stdout))
    return {name: times[1:] for name, times in found.items()}


@dataclass(frozen=True)
class Calibration:
    """One check of the measuring, on a device."""

    experiment: ClassVar[str] = "calibration"
    check: str
    device: str


def between(device: str) -> dict[str, list[float]]:
    """`case_ms`, a case in which nothing is measured, from one to the next, its record written; and `canaries_ms`, the
    two canaries that are the only work in it, by themselves; in turns."""
    found: dict[str, list[float]] = {"case_ms": [], "canaries_ms": []}
    with _other_results():
        for turn in range(CASES):
            began = time.perf_counter()
            with measure.recording(Calibration("nothing", device), round=turn + 1):
                pass
            middle = time.perf_counter()
            for _ in range(2):
                timing.canary(device)
            found["case_ms"].append(1e3 * (middle - began))
            found["canaries_ms"].append(1e3 * (time.perf_counter() - middle))
    return {name: times[1:] for name, times in found.items()}  # the first asks what the environment is


@contextmanager
def _other_results() -> Iterator[None]:
    """A results folder for the block, which is gone afterwards."""
    former = os.environ.get("RESULTS")
    with tempfile.TemporaryDirectory() as name:
        os.environ["RESULTS"] = str(Path(name, "results"))
        try:
            yield
        finally:
            os.environ.pop("RESULTS")
            os.environ |= {} if former is None else {"RESULTS": former}


def page(device: str) -> dict[str, list[float]]:
    """`render_ms`: one rendering of the report of this machine, from the records that there are."""
    with tempfile.TemporaryDirectory() as name:
        began = time.perf_counter()
        report.render(environment.machine(device), Path(name, "report.html"))
        return {"render_ms": [1e3 * (time.perf_counter() - began)]}
