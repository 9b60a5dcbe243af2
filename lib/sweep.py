"""Runs a sweep: each of its kernels is a notebook that papermill executes and that saves records.

Knows nothing of how an experiment measures. A sweep resumes by itself: what has a valid record is done.
"""

import argparse
import contextlib
import math
import os
import sys
import tempfile
import time
from dataclasses import asdict
from datetime import UTC, datetime

import pandas as pd

from lib import commandline, environment, measure, memory, notebook, results, sweepfile
from lib.notebook import NotebookFailed
from lib.sweepfile import Kernel
from lib.watch import Progress, Watch


def todo(kernel: Kernel) -> list:
    """The cases of a kernel without a record, in the order in which its notebook measures them."""
    return measure.remaining(kernel.cases, kernel.round)


def run(kernels: list[Kernel], budget: float) -> None:
    """Execute the kernels that have something to do, until `budget` seconds have passed. A case whose kernel
    dies is recorded as crashed, one beyond its time limit as timeout; the rest of the kernel's cases goes on in
    a new one. When a cell of a notebook fails, which is a bug, the other kernels are still executed, and then
    NotebookFailed is raised."""
    deadline, progress = time.time() + budget, Progress(kernels)
    with tempfile.TemporaryDirectory(prefix="inductor-") as compiled, contextlib.closing(progress):
        # a cache of compiled graphs that is empty in the first round, so that compile times are cold there
        os.environ |= {"SWEEP_DEADLINE": str(deadline), "TORCHINDUCTOR_CACHE_DIR": compiled}
        for kernel in kernels:
            measure.record_too_large(todo(kernel), kernel.round)
        failures = []
        for kernel in kernels:
            progress.recount(kernels)
            while todo(kernel) and time.time() < deadline:
                began, started = time.monotonic(), datetime.now(UTC).isoformat(timespec="seconds")
                try:
                    timed_out = _execute(kernel, progress)
                except NotebookFailed as error:
                    failures.append(str(error))
                    break
                if (left := todo(kernel)) and (timed_out or time.time() < deadline):
                    seconds = time.monotonic() - began
                    status = "timeout" if timed_out else "crashed"
                    measure.save(left[0], kernel.round, status, {}, started, seconds)
                    progress.case_done(left[0], seconds)
        if failures:
            raise NotebookFailed("\n".join(failures))


def _execute(kernel: Kernel, progress: Progress) -> bool:
    """One papermill run; returns whether its kernel was stopped for taking too long over a case."""
    from lib.kernel import execute  # papermill takes a second to import, and is not needed to find all done

    machine = environment.machine(kernel.cases[0].device)
    stamp = datetime.now(UTC).strftime("%Y%m%dT%H%M%S")
    output = results.runs() / machine / f"{stamp}-{kernel.experiment}-r{kernel.round}.ipynb"
    os.environ["SWEEP_RUN"] = output.stem
    with Watch(kernel, progress) as watch:
        execute(notebook.NOTEBOOKS / f"{kernel.experiment}.ipynb", output, kernel.parameters)
    return watch.timed_out


def plan(kernels: list[Kernel]) -> pd.DataFrame:
    """One row a case: its rounds, its predicted memory, what would become of it (`runs`, `too large` or the reason
    why it is left out) and the statuses of the records that it has."""
    rounds: dict = {}
    for kernel in kernels:
        for case in kernel.cases:
            rounds.setdefault(case, []).append(kernel.round)
    available = {device: memory.available_bytes(device) for device in {case.device for case in rounds}}
    rows = []
    for case, numbers in rounds.items():
        fate = "too large" if case.predicted_bytes() > available[case.device] else "runs"
        found = [results.status(measure.record_path(case, number)) for number in numbers]
        rows.append(
            {
                "experiment": case.experiment, "case": results.name(asdict(case)), "rounds": len(numbers),
                "predicted, MiB": round(case.predicted_bytes() / memory.MIB), "fate": case.unavailable() or fate,
                "records": " ".join(dict.fromkeys(status for status in found if status)),
            }
        )  # fmt: skip
    return pd.DataFrame(rows)


def dry(kernels: list[Kernel]) -> str:
    """What a sweep would do, a line a case, and the sums."""
    table = plan(kernels)
    fates = "; ".join(f"{count} {fate}" for fate, count in table["fate"].value_counts().items())
    device = kernels[0].cases[0].device
    available = memory.available_bytes(device) / memory.MIB
    lines = table[["experiment", "case", "rounds", "predicted, MiB", "fate", "records"]].to_string(index=False)
    return f"{lines}\n{len(table)} cases in {len(kernels)} kernels, {available:,.0f} MiB available on {device}: {fates}"


def summary(kernels: list[Kernel]) -> str:
    """What the sweep's records say, in a few lines: how many cases ended how, and each that did not end well."""
    table = plan(kernels)
    able = table[table["fate"].isin(["runs", "too large"])]
    ended = able["records"].where(able["records"] != "", "not measured yet")
    lines = ["  ".join(f"{status}: {count}" for status, count in ended.value_counts().items())]
    bad = able[able["records"].str.contains("|".join(measure.FATAL))]
    if len(bad):
        lines.append(bad[["records", "experiment", "case", "predicted, MiB"]].to_string(index=False))
    for reason, left_out in table.drop(able.index).groupby("fate"):
        lines.append(f"left out: {len(left_out)} cases, since {reason}")
    return "\n".join(lines)


def parser() -> argparse.ArgumentParser:
    """The parser of this command line."""
    names = ", ".join(sweepfile.names()).replace("%", "%%")
    made = commandline.parser(
        "lib.sweep",
        "Run a sweep, or go on with it: what has its record is not measured again.",
        ("smoke", "quick", "gpu --dry", "gpu --budget 3000"),
        {1: "a notebook failed", 2: commandline.BAD_INPUT, 130: "stopped by Ctrl-C; the same command goes on"},
    )
    made.add_argument("sweep", help=f"one of {names}: a file of notebooks/sweeps")
    made.add_argument("--budget", default="inf", help="stop between cases after so many seconds")
    made.add_argument("--dry", action="store_true", help="list the cases with their predicted memory, run nothing")
    return made


def main(arguments: list[str] | None = None) -> int:
    """The command line; returns 0, 1 when a notebook failed, 2 for bad input, 130 when stopped by Ctrl-C."""
    given = parser().parse_args(arguments)
    try:
        budget = _seconds(given.budget)
        kernels = sweepfile.load(given.sweep)
    except ValueError as error:
        print(error, file=sys.stderr)
        return 2
    if given.dry:
        print(dry(kernels))
        return 0
    if not any(todo(kernel) for kernel in kernels):
        print(f"{given.sweep}: every case has its record, nothing to measure")
        return 0
    os.environ["RESULTS"] = str(results.folder().resolve())
    try:
        run(kernels, budget)
    except KeyboardInterrupt:
        print("stopped; the same command continues from here", file=sys.stderr)
        return 130
    except NotebookFailed as error:
        print(error, file=sys.stderr)
        return 1
    print(summary(kernels))
    return 0


def _seconds(text: str) -> float:
    """The budget as a number. Raises ValueError unless it is a positive one."""
    try:
        budget = float(text)
    except ValueError:
        budget = math.nan
    if not budget > 0:
        raise ValueError(f"budget: {text!r} must be a positive number of seconds")
    return budget


if __name__ == "__main__":
    sys.exit(main())
