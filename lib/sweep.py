"""Runs a sweep: its YAML becomes kernels, each a notebook that papermill executes and that saves records.

Knows nothing of how an experiment measures. A sweep resumes by itself: what has a valid record is done.
"""

import argparse
import contextlib
import itertools
import math
import os
import sys
import tempfile
import time
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from pathlib import Path

import pandas as pd
import yaml

from lib import cases, check, commandline, environment, measure, memory, notebook, results
from lib.notebook import NotebookFailed
from lib.watch import Progress, Watch

SWEEPS = notebook.NOTEBOOKS / "sweeps"
OPTIONS = {"rounds": 1, "timeout": 600, "fresh": None}  # of a block, or of the whole sweep


@dataclass(frozen=True)
class Kernel:
    """One papermill run: a notebook with its parameters, the cases that it measures, and its time limit."""

    experiment: str
    parameters: dict
    cases: list
    timeout: float

    @property
    def round(self) -> int:
        """The round whose records it writes."""
        return self.parameters["round"]

    def todo(self) -> list:
        """The cases without a record, in the order in which the notebook measures them."""
        return list(measure.remaining(self.cases, self.round))


def load(name: str) -> list[Kernel]:
    """The kernels of the sweep of that name, round by round. Raises ValueError, naming file, field, rule and
    nearest valid name, for anything in the file that could not run."""
    check.choice("sweep", name, sorted(file.stem for file in SWEEPS.glob("*.yaml")))
    file = SWEEPS / f"{name}.yaml"
    try:
        return read(file)
    except ValueError as error:
        raise ValueError(f"{file.name}: {error}") from None


def read(file: Path) -> list[Kernel]:
    """The kernels of a sweep file, round by round; see `load`."""
    try:
        content = yaml.load(file.read_text(), Loader=_Loader)
    except yaml.YAMLError as error:
        raise ValueError(f"not valid YAML: {' '.join(str(error).split())}") from None
    if not isinstance(content, dict):
        raise ValueError("a sweep is a mapping of experiments to axes")
    options = {name: content.pop(name, default) for name, default in OPTIONS.items()}
    if not content:
        raise ValueError("a sweep names at least one experiment")
    kernels = []
    for experiment, blocks in content.items():
        check.choice("experiment", experiment, cases.EXPERIMENTS)
        for block in blocks if isinstance(blocks, list) else [blocks]:
            kernels += _kernels(experiment, options | _mapping(experiment, block))
    _refuse_duplicates(kernels)
    rounds = sorted({kernel.round for kernel in kernels})
    return [kernel for r in rounds for kernel in measure.shuffled([k for k in kernels if k.round == r], r)]


class _Loader(yaml.SafeLoader):
    """YAML without the silent loss of a key that stands twice."""

    def construct_mapping(self, node, deep=False):
        keys = [self.construct_object(key, deep=True) for key, _ in node.value]
        for key in keys:
            if keys.count(key) > 1:
                raise ValueError(f"{key!r} stands there twice")
        return super().construct_mapping(node, deep)


def _mapping(experiment: str, block) -> dict:
    if block is not None and not isinstance(block, dict):
        raise ValueError(f"{experiment}: {block!r} must be a mapping of axes to values")
    return block or {}


def _kernels(experiment: str, block: dict) -> list[Kernel]:
    """The kernels of one block: a kernel for each round and each value of its fresh axes."""
    axes, fields = dict(notebook.parameters(experiment)), notebook.fields(experiment)
    allowed = [*OPTIONS, *(name for name in axes if name != "round")]
    for name in block:
        check.choice(experiment, name, allowed)
    rounds, timeout, fresh = (block.pop(name) for name in OPTIONS)
    fresh = _listed(fresh) if fresh else []
    for name in fresh:
        check.choice(f"{experiment}.fresh", name, fields)
    axes |= block
    settings = notebook.settings(experiment)
    least = {"rounds": 1, "timeout": 1, **settings}
    for name, value in {"rounds": rounds, "timeout": timeout, **{s: axes[s] for s in settings}}.items():
        if least[name] is False:
            if type(value) is not bool:
                raise ValueError(f"{experiment}.{name}: {value!r} must be true or false")
            continue
        if type(value) is not int and not (name in ("target_percent", "seconds") and type(value) is float):
            raise ValueError(f"{experiment}.{name}: {value!r} must be a whole number")
        check.at_least(f"{experiment}.{name}", value, least[name])
    for name, value in axes.items():
        if value is None or value == [] or isinstance(value, dict):
            raise ValueError(f"{experiment}.{name}: {value!r} must be a value or a list of values")
    pinned = [[(name, value) for value in _listed(axes[name])] for name in fresh]
    kernels = []
    for round, point in itertools.product(range(1, rounds + 1), itertools.product(*pinned)):
        chosen = axes | dict(point) | {"round": round}
        try:
            grid = cases.grid(experiment, **{name: chosen[name] for name in fields})
            kernels.append(Kernel(experiment, chosen, grid, timeout))
        except ValueError as error:
            raise ValueError(f"{experiment}.{error}") from None
    return kernels


def _listed(value) -> list:
    return value if isinstance(value, list) else [value]


def _refuse_duplicates(kernels: list[Kernel]) -> None:
    seen = set()
    for kernel in kernels:
        for case in kernel.cases:
            if (case, kernel.round) in seen:
                raise ValueError(f"{kernel.experiment}: {case} stands in the sweep twice")
            seen.add((case, kernel.round))


def run(kernels: list[Kernel], budget: float) -> None:
    """Execute the kernels that have something to do, until `budget` seconds have passed. A case whose kernel
    dies is recorded as crashed, one beyond its time limit as timeout; the rest of the kernel's cases goes on in
    a new one. When a cell of a notebook fails, which is a bug, the other kernels are still executed, and then
    NotebookFailed is raised."""
    deadline, progress = time.monotonic() + budget, Progress(kernels)
    with tempfile.TemporaryDirectory(prefix="inductor-") as compiled, contextlib.closing(progress):
        # a cache of compiled graphs that is empty in the first round, so that compile times are cold there
        os.environ["TORCHINDUCTOR_CACHE_DIR"] = compiled
        for kernel in kernels:
            measure.record_too_large(kernel.todo(), kernel.round)
        failures = []
        for kernel in kernels:
            progress.recount(kernels)
            while kernel.todo() and time.monotonic() < deadline:
                os.environ["SWEEP_SECONDS_LEFT"] = str(deadline - time.monotonic())
                began, started = time.monotonic(), datetime.now(UTC).isoformat(timespec="seconds")
                try:
                    timed_out = _execute(kernel, progress)
                except NotebookFailed as error:
                    failures.append(str(error))
                    break
                if (left := kernel.todo()) and (timed_out or time.monotonic() < deadline):
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
    names = ", ".join(sorted(file.stem for file in SWEEPS.glob("*.yaml")))
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
        kernels = load(given.sweep)
    except ValueError as error:
        print(error, file=sys.stderr)
        return 2
    if given.dry:
        print(dry(kernels))
        return 0
    if not any(kernel.todo() for kernel in kernels):
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
