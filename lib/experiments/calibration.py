"""Test the measuring itself on this machine, and keep the results as records.

The checks time known waits, compare this timer with another, look for differences between equal programs and between
programs that differ by 10%, and time the overhead of marks, kernels and records. `lib.report.self_check` judges them.
"""

import argparse
import functools
import math
import multiprocessing
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar
from unittest import mock

import nbformat
import torch
from torch.utils.benchmark import Timer

from lib import cli, execution, timing
from lib.experiments import measure
from lib.experiments.ceilings import Ceilings
from lib.instruments import noise
from lib.instruments.device import named, on
from lib.records import results
from lib.stats import comparisons
from lib.stats.comparisons import Measured
from lib.timing import Iteration, Mark, Plan

COMPARISONS, PROCESSES = 100, 5  # of programs, each in every process
SHORT_COMPARISONS, SHORT_PROCESSES = 50, 3  # the fewest that the self-check judges
UNIT, PLANTED = 20, 22  # calls in the small program, and in one that takes 10% longer
STARTS, CASES = 8, 30  # starts of a kernel, and empty cases
LOADING = "import time, torch; print(time.monotonic())"  # a clock that all processes share
PLAIN = "import time; began = time.monotonic(); import torch; print(time.monotonic() - began)"


@dataclass(frozen=True)
class Calibration:
    """One check of the measuring on one device."""

    experiment: ClassVar[str] = "calibration"
    check: str
    device: str


def spin(device: str) -> dict[str, list[float]]:
    """Time waits of known length: `known_ms`, and the measured `median_ms` of each."""
    known = (0.01, 0.1, 1.0, 10.0)

    def spinning(ns: int) -> Iteration:
        def iteration(mark: Mark) -> None:
            end = time.perf_counter_ns() + ns
            while time.perf_counter_ns() < end:
                pass
            mark("run")

        return iteration

    found = [timing.measure(spinning(round(ms * 1e6)), timing.HostClock(), Plan(5, 100)).metrics() for ms in known]
    return {"known_ms": list(known), "median_ms": [statistics.median(one["run_ms"]) for one in found]}


def timer(device: str) -> dict[str, list[float]]:
    """Time a matrix product with this timer and with torch.utils.benchmark, alternately."""
    matrix = torch.ones((512, 512) if device == "cpu" else (4096, 4096), device=device)
    scope = {"torch": torch, "matrix": matrix, "out": torch.empty_like(matrix)}
    theirs = Timer("torch.mm(matrix, matrix, out=out)", globals=scope, num_threads=torch.get_num_threads())

    def iteration(mark: Mark) -> None:
        torch.mm(matrix, matrix, out=scope["out"])
        mark("run")

    def ours_ms() -> float:
        return statistics.median(timing.measure(iteration, on(device).clock(), Plan(2, 10)).metrics()["run_ms"])

    def timer_ms() -> float:
        theirs.timeit(2)
        return statistics.median(theirs.timeit(1).median for _ in range(10)) * 1e3

    return _alternate(ours_ms, timer_ms, 30)


def _alternate(first: Callable[[], float], second: Callable[[], float], count: int) -> dict[str, list[float]]:
    """Call two functions `count` times, each first in every other pair; return results by name."""
    orders = [(first, second) if i % 2 else (second, first) for i in range(count)]
    pairs = [{one.__name__: one() for one in order} for order in orders]
    return {one.__name__: [pair[one.__name__] for pair in pairs] for one in (first, second)}


def _operands(device: str) -> tuple[torch.Tensor, torch.Tensor]:
    """Return a small matrix and a tensor for its product."""
    matrix = torch.ones((160, 160) if device == "cpu" else (1024, 1024), device=device)
    return matrix, torch.empty_like(matrix)


def _program(operands: tuple[torch.Tensor, torch.Tensor], calls: int) -> Iteration:
    """Return an iteration of `calls` small matrix products; 20 take about a millisecond."""
    matrix, out = operands

    def iteration(mark: Mark) -> None:
        for _ in range(calls):
            torch.mm(matrix, matrix, out=out)
        mark("run")

    return iteration


def _ratio(device: str, first: Iteration, second: Iteration, most: int, seed: int) -> Measured:
    """Return the ratio of two programs by at most `most` pairs."""
    pairs = timing.compare(first, second, on(device).clock(), most=most, seed=seed).metrics()
    return comparisons.of_pairs(pairs["paired_ms"], pairs["baseline_ms"])


def programs(device: str, count: int) -> dict[str, list[float]]:
    """Compare a program with itself and with one that does 10% more.

    Returns of each kind, for each of `count` comparisons, `<kind>_log` of the ratio, the standard error of that, the
    number of pairs and the time of the longer program."""
    found, operands = {}, _operands(device)
    base = _program(operands, UNIT)
    for kind, calls in (("equal", UNIT), ("planted", PLANTED)):
        program = _program(operands, calls)
        made = [_ratio(device, program, base, timing.PILOT, seed) for seed in range(count)]
        found |= {f"{kind}_log": [one.logs[0] for one in made], f"{kind}_log_error": [one.noise for one in made]}
        found |= {f"{kind}_pairs": [one.n for one in made], f"{kind}_ms": [one.ms for one in made]}
    return found


def placed(device: str) -> dict[str, list[float]]:
    """Compare a program with the same one on other memory, 40 times."""
    operands = [_operands(device) for _ in range(41)]  # all alive, so that each has memory of its own
    base, *others = (_program(each, UNIT) for each in operands)
    return {"ratio": [math.exp(_ratio(device, each, base, 150, i).logs[0]) for i, each in enumerate(others)]}


def overhead(device: str) -> dict[str, list[float]]:
    """Time a step of a millisecond with marks at its three phases, and in a plain loop."""
    (matrix, out), block = _operands(device), 20

    def iteration(mark: Mark) -> None:
        for phase in ("forward", "backward", "optimizer"):
            for _ in range(UNIT // 3):
                torch.mm(matrix, matrix, out=out)
            mark(phase)

    def marked_ms() -> float:
        return statistics.fmean(timing.measure(iteration, on(device).clock(), Plan(0, block)).metrics()["total_ms"])

    def plain_ms() -> float:
        clock = on(device).clock()
        clock.start()
        for _ in range(block):
            iteration(lambda phase: None)
        clock.mark()
        return clock.stop()[0][0] / 1e6 / block

    return _alternate(marked_ms, plain_ms, 100)


def repeated(device: str) -> dict[str, list[float]]:
    """Measure the rates of a matrix product and of a copy, five times each."""
    rows = {"cpu": (1024, 4096)}.get(device, (8192, 16384))
    works = [Ceilings(name, n, n, "fp32", device).setup() for name, n in zip(("matmul", "copy"), rows, strict=True)]
    found: dict[str, list[float]] = {"product_gflops": [], "copy_gbs": []}
    for _ in range(5):
        for (name, rates), work in zip(found.items(), works, strict=True):
            fact = work.facts["flops" if name == "product_gflops" else "moved_bytes"]
            times = timing.measure(work.iteration, on(device).clock(), Plan(2, 20)).metrics()["run_ms"]
            rates.append(fact / statistics.median(times) / 1e6)
    return found


def start(device: str) -> dict[str, list[float]]:
    """Time the start of a kernel until it has imported torch, and the import alone."""
    found: dict[str, list[float]] = {"kernel_ms": [], "torch_ms": []}
    with tempfile.TemporaryDirectory() as name:
        source, output = Path(name, "loading.ipynb"), Path(name, "done.ipynb")
        nbformat.write(nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell(LOADING)]), source)
        for _ in range(STARTS + 1):
            began = time.monotonic()
            execution.execute(source, output, {})
            (cell,) = nbformat.read(output, as_version=4).cells
            found["kernel_ms"].append(1e3 * (float(cell.outputs[0].text) - began))
            plain = subprocess.run([sys.executable, "-c", PLAIN], capture_output=True, text=True, check=True)
            found["torch_ms"].append(1e3 * float(plain.stdout))
    return {name: times[1:] for name, times in found.items()}  # the first filled the disk caches


def between(device: str) -> dict[str, list[float]]:
    """Time a case that measures nothing, with its record, and its two noise probes alone."""
    found: dict[str, list[float]] = {"case_ms": [], "noise_probes_ms": []}
    with tempfile.TemporaryDirectory() as name, mock.patch.dict(os.environ, RESULTS=str(Path(name, "results"))):
        for i in range(CASES):
            began = time.perf_counter()
            with measure.recording(Calibration("nothing", device), round=i + 1):
                pass
            middle = time.perf_counter()
            for _ in range(2):
                noise.probe(device)
            found["case_ms"].append(1e3 * (middle - began))
            found["noise_probes_ms"].append(1e3 * (time.perf_counter() - middle))
    return {name: times[1:] for name, times in found.items()}  # the first looked up the environment


CHECKS: dict[str, Callable[..., dict[str, list[float]]]] = {
    check.__name__: check for check in (spin, timer, programs, placed, overhead, repeated, start, between)
}

SHORT = ("spin", "timer", "overhead", "programs")  # the checks of the short form


def parser() -> argparse.ArgumentParser:
    """Build the parser of this command line."""
    made = cli.parser(
        "lib.experiments.calibration",
        "Test the measuring itself on this machine in a few minutes. lib.report.self_check judges the results.",
        ("", "spin timer", "--short"),
        {2: "bad input"},
    )
    made.add_argument(
        "checks", nargs="*", choices=[*CHECKS, []], metavar="check", help=f"any of {', '.join(CHECKS)} (default: all)"
    )
    made.add_argument(
        "--short", action="store_true", help="half a minute: fewer checks and comparisons, and none that has its record"
    )
    return made


def main(arguments: list[str] | None = None) -> int:
    """Run every check, or those named on the command line; return 0."""
    given = parser().parse_args(arguments)
    device = named()
    count, processes = (SHORT_COMPARISONS, SHORT_PROCESSES) if given.short else (COMPARISONS, PROCESSES)
    for name in given.checks or (SHORT if given.short else CHECKS):
        rounds = [r + 1 for r in range(processes if name == programs.__name__ else 1)]
        if given.short and all(_checked(name, device, round) for round in rounds):
            continue
        print(f"{name}: {CHECKS[name].__doc__.splitlines()[0]}", flush=True)
        if name != programs.__name__:
            _record(CHECKS[name], name, device, 1)
            continue
        check = functools.partial(CHECKS[name], count=count)
        with multiprocessing.get_context("spawn").Pool(1, maxtasksperchild=1) as fresh:
            fresh.starmap(_record, [(check, name, device, round) for round in rounds], chunksize=1)
    return 0


def _checked(name: str, device: str, round: int) -> bool:
    """Return True if a check has a record of today's code in this round."""
    file = measure.record_path(Calibration(name, device), round)
    return results.status(file) == "ok" and not results.stale(file)


def _record(check: Callable[[str], dict], name: str, device: str, round: int) -> None:
    """Run a check and save its record."""
    with measure.recording(Calibration(name, device), round) as record:
        record.metrics |= check(device)


if __name__ == "__main__":
    sys.exit(main())
