"""Run one case under NVIDIA's Nsight Systems and read its table of kernels.

`python -m lib.experiments.nsys size=small context_length=128` is the program that nsys watches. It warms up, then runs
one iteration with NVTX ranges between cudaProfilerStart and cudaProfilerStop. Other parameters take the defaults of
the notebook `kernels`, the first value of a list.
"""

import argparse
import ast
import contextlib
import csv
import gc
import math
import os
import shlex
import shutil
import subprocess
import sys
import tempfile
import uuid
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path

import torch

from lib import cli, notebooks, validate
from lib.experiments import cases
from lib.experiments.kernels import Kernels
from lib.experiments.measure import Recording
from lib.experiments.training import Training
from lib.instruments import device, peak_memory, processes

WARMUP = 5
LIMIT_S = 120  # for each of the two commands; a case has far more
COLUMNS = {  # of the report nvtx_kern_sum, from NVIDIA's documentation of `nsys stats`
    "NVTX Range": "range",
    "Kernel Name": "kernel",
    "Kern Inst": "calls",
    "Total Time (ns)": "total_us",
    "Avg (ns)": "mean_us",
    "Med (ns)": "median_us",
    "Min (ns)": "min_us",
    "Max (ns)": "max_us",
    "StdDev (ns)": "deviation_us",
}


def missing(case: Kernels) -> str | None:
    """Return why nsys cannot watch the case here, or None."""
    if case.device != "cuda":
        return f"it traces only CUDA, and the case ran on {case.device}"
    return None if shutil.which("nsys") else "nsys is not installed"


def command(case: Kernels, report: str = "kernels", python: str = Path(sys.executable).name) -> list[str]:
    """Return the command that captures one iteration into `report`.nsys-rep."""
    options = ["--trace=cuda,nvtx", "--sample=none", "--capture-range=cudaProfilerApi", "--capture-range-end=stop"]
    given = [f"{name}={value}" for name, value in asdict(case).items()]
    program = [python, "-m", "lib.experiments.nsys", *given]
    return ["nsys", "profile", *options, "--force-overwrite=true", f"--output={report}", *program]


def stats(report: str = "kernels") -> list[str]:
    """Return the command that prints the kernels by NVTX range, as CSV."""
    options = ["--report=nvtx_kern_sum", "--format=csv", "--force-export=true"]
    return ["nsys", "stats", *options, f"{report}.nsys-rep"]


def shell(case: Kernels) -> str:
    """Return both commands, to be typed in the folder of the repository."""
    return f"{shlex.join(command(case))}\n{shlex.join(stats())}"


def metrics(record: Recording) -> dict:
    """Return `nsys`, the table of kernels by range, or `nsys_missing`, the reason why not.

    It frees what the record built, to make room. Returns nothing for a compiled case, whose kernels have other names,
    and before the last round of a sweep."""
    case = record.case
    if case.compiles or "SWEEP_ROUND_FOLLOWS" in os.environ:
        return {}
    if reason := missing(case):
        return {"nsys_missing": reason}
    for work in record.built:
        vars(work).clear()
    gc.collect()
    device.on(case.device).release()
    try:
        peak_memory.preflight(case.predicted_bytes(), case.device)
    except peak_memory.TooLarge:
        return {"nsys_missing": "too little memory is left for a second process"}
    return _run_nsys(case)


def _run_nsys(case: Kernels) -> dict:
    with tempfile.TemporaryDirectory(prefix="nsys-") as folder:
        report = str(Path(folder, "kernels"))
        for step in (command(case, report, sys.executable), stats(report)):  # PATH may name another Python first
            try:
                done = _finished(step)
            except subprocess.TimeoutExpired:
                return {"nsys_missing": f"nsys {step[1]} took longer than {LIMIT_S} s"}
            if done.returncode:
                reason = (done.stderr.strip() or "it gave no reason").splitlines()[-1]
                return {"nsys_missing": f"nsys {step[1]} failed: {reason}"}
    try:
        return {"nsys": table(done.stdout)}
    except ValueError as error:
        return {"nsys_missing": f"nsys stats cannot be read: {error}"}


def _finished(step: list[str]) -> subprocess.CompletedProcess:
    """Run a command to its end or for `LIMIT_S`, and leave nothing that it started.

    nsys starts the program in a session of its own, so both are found by a mark. It continues that of a sweep, which
    finds them too. Raises subprocess.TimeoutExpired."""
    mark = f"{os.environ.get(processes.MARK, '')}/nsys-{uuid.uuid4().hex}"
    with subprocess.Popen(
        step, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, cwd=notebooks.NOTEBOOKS.parent,
        env=os.environ | {processes.MARK: mark}, start_new_session=True,
    ) as started:  # fmt: skip
        try:
            printed, said = started.communicate(timeout=LIMIT_S)
        finally:
            processes.end(mark, started.pid)
    return subprocess.CompletedProcess(step, started.returncode, printed, said)


def table(text: str) -> dict[str, list]:
    """Read the output of `stats` as a table in microseconds.

    Ranges are named without their domain. A kernel is listed in every range that encloses its launch. Raises
    ValueError without kernels, without one of `COLUMNS`, or for a cell that is no number."""
    lines = text.splitlines()
    header = next((i for i, line in enumerate(lines) if "NVTX Range" in line and "Kernel Name" in line), len(lines))
    read = csv.DictReader(lines[header:])
    if lacking := [name for name in COLUMNS if name not in (read.fieldnames or COLUMNS)]:
        raise ValueError(f"it has no column {', '.join(lacking)}")
    rows = [row for row in read if row["NVTX Range"]]
    if not rows:
        raise ValueError("it lists no kernel in a range")
    return {name: [_parse_cell(row[heading] or "", name) for row in rows] for heading, name in COLUMNS.items()}


def _parse_cell(cell: str, name: str) -> str | int | float:
    if name in ("range", "kernel"):
        return cell.rpartition(":")[2] if name == "range" else cell
    number = int(cell) if name == "calls" else float(cell) / 1e3
    if not math.isfinite(number):
        raise ValueError(f"{name}: got {cell}, expected a finite number")
    return number


def iterate_in_ranges(training: Training, push: Callable[[str], object], pop: Callable[[], object]) -> None:
    """Run one iteration with a range around each of its phases."""
    names = iter(training.phases)
    push(next(names))

    def mark(_: str) -> None:
        pop()
        if following := next(names, None):
            push(following)

    training.iteration(mark)


def capture(case: Kernels) -> None:
    """Warm up, then run one iteration for nsys to capture; needs CUDA."""
    training = Training(case)
    case.annotate(training, torch.cuda.nvtx.range)
    for _ in range(WARMUP):
        training.before()
        training.iteration(lambda name: None)
    training.before()
    # nsys looks for ranges in the thread that launched a kernel; the backward pass would have a thread of its own
    with torch.autograd.set_multithreading_enabled(False), torch.cuda.profiler.profile():
        iterate_in_ranges(training, torch.cuda.nvtx.range_push, torch.cuda.nvtx.range_pop)
        device.on(case.device).synchronize()


def parse(arguments: list[str]) -> Kernels:
    """Return the case that `name=value` arguments describe; raises ValueError for a bad one."""
    fields, defaults = notebooks.fields("kernels"), notebooks.parameters("kernels")
    chosen = {name: default[0] if isinstance(default := defaults[name], list) else default for name in fields}
    for argument in arguments:
        name, _, text = argument.partition("=")
        validate.choice("parameter", name, fields)
        chosen[name] = text
        with contextlib.suppress(ValueError, SyntaxError):  # else it is a name
            chosen[name] = ast.literal_eval(text)
    (case,) = cases.grid("kernels", **chosen)
    return case


def parser() -> argparse.ArgumentParser:
    """Build the parser of this command line."""
    made = cli.parser(
        "lib.experiments.nsys",
        "Run one iteration of a training step for Nsight Systems to capture. nsys starts this program.",
        ("", "size=small context_length=128"),
        {2: f"{cli.BAD_INPUT}, or no CUDA"},
    )
    fields = ", ".join(notebooks.fields("kernels"))
    made.add_argument("parameters", nargs="*", metavar="NAME=VALUE", help=f"of {fields} (default: the notebook's)")
    return made


def main(arguments: list[str] | None = None) -> int:
    """Run the command line; return 0, or 2 for bad input or without CUDA."""
    given = parser().parse_args(arguments)
    try:
        case = parse(given.parameters)
        validate.choice("device", case.device, ["cuda"])
    except ValueError as error:
        print(error, file=sys.stderr)
        return 2
    torch.manual_seed(0)
    capture(case)
    return 0


if __name__ == "__main__":
    sys.exit(main())
