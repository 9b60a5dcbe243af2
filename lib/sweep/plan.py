"""What a machine makes of a sweep: the records that each kernel is to make, in their order, and what it lacks.

Plain values, so that a machine can plan for itself while another one supervises. Measures nothing.
"""

import functools
import json
import math
import os
import sys
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass

import pandas as pd
from tqdm import tqdm

from lib.catalog import CATALOG
from lib.experiments import measure
from lib.instruments import environment, peak_memory
from lib.records import code_digest, results
from lib.sweep import sweep_file
from lib.sweep.lock import Shard


@dataclass(frozen=True)
class Task:
    """A kernel as the machine that is to run it sees it. `cases` are the fields of each case by the name of its record,
    in the order in which the notebook measures them; `predicted` their bytes; `too_large` the metrics of those that do
    not fit; `lacking` why others cannot run; `environment` and `code` are for the rows that no kernel can write; `last`
    says whether no round of the cases follows."""

    experiment: str
    parameters: dict
    timeout: float
    device: str
    machine: str
    cases: dict[str, dict]
    predicted: dict[str, int]
    too_large: dict[str, dict]
    lacking: dict[str, str]
    environment: dict
    code: str
    last: bool

    @property
    def round(self) -> int:
        """The round whose records it makes."""
        return self.parameters["round"]

    @property
    def alone(self) -> bool:
        """Whether it needs the whole machine, so that nothing else may run there at the same time."""
        return self.device != "cuda" or CATALOG[self.experiment].alone

    def todo(self, again: frozenset[str] = frozenset()) -> list[str]:
        """The names of the records that are still to be made, in their order; also, where asked for, of those that are
        `stale`, or whose case `crashed` or ran into its `timeout`."""
        return [name for name in self.cases if name not in self.lacking and not self._done(name, again)]

    def _done(self, name: str, again: frozenset[str]) -> bool:
        """Whether it has its record, or ended badly in an earlier round, so that it is not tried again."""
        earlier = (results.called(self.experiment, self.cases[name], r) for r in range(1, self.round))
        ends = [self.status(each, again) for each in earlier]
        return self.status(name, again) is not None or any(end in measure.FATAL for end in ends)

    def status(self, name: str, again: frozenset[str] = frozenset()) -> str | None:
        """The status of the record of a name, or None without one that counts."""
        file = results.folder() / self.machine / f"{name}.json"
        found = results.status(file)
        return None if found in again or ("stale" in again and results.stale(file)) else found


def planned(sweep: str) -> list[Task]:
    """The tasks of a sweep on this machine, round by round, those that need the whole machine first in each. Raises
    ValueError as `sweep_file.load` does."""
    tasks = [_task(kernel) for kernel in sweep_file.load(sweep)]
    return sorted(tasks, key=lambda task: (task.round, not task.alone))


def _task(kernel: sweep_file.Kernel) -> Task:
    device = kernel.cases[0].device
    ordered = dict.fromkeys([*measure.shuffled(measure.available(kernel.cases), kernel.round), *kernel.cases])
    named = {results.called(kernel.experiment, asdict(case), kernel.round): case for case in ordered}
    lacking = {name: reason for name, case in named.items() if (reason := case.unavailable())}
    predicted = {name: case.predicted_bytes() for name, case in named.items()}
    return Task(
        kernel.experiment, kernel.parameters, kernel.timeout, device, environment.machine(device),
        cases={name: asdict(case) for name, case in named.items()}, predicted=predicted,
        too_large=_too_large(predicted, device), lacking=lacking, environment=_environment(device),
        code=code_digest.code(kernel.experiment), last=kernel.last,
    )  # fmt: skip


def _too_large(predicted: dict[str, int], device: str) -> dict[str, dict]:
    """The metrics of the cases that are predicted not to fit, so that no process need start for them. The memory of a
    GPU is asked for in the process that measures, since to ask takes some of it."""
    found = {}
    for name, size in predicted.items() if device == "cpu" else ():
        try:
            peak_memory.preflight(size, device)
        except peak_memory.TooLarge as error:
            found[name] = error.metrics()
    return found


@functools.cache
def _environment(device: str) -> dict:
    return environment.describe(device)


def in_shard(tasks: list[Task], shard: Shard) -> list[Task]:
    """Return the tasks of a shard: all rounds of a kernel are in the same one, whatever the machine."""
    kernels = sorted({_key(task) for task in tasks})
    dealt = measure.shuffled(kernels, 0)
    mine = {dealt[number] for number in shard.range(len(dealt))}
    return [task for task in tasks if _key(task) in mine]


def _key(task: Task) -> str:
    """What a task has in common with its other rounds."""
    return json.dumps([task.experiment, {k: v for k, v in task.parameters.items() if k != "round"}], sort_keys=True)


def pins(tasks: list[Task]) -> list[str]:
    """What CUDA_VISIBLE_DEVICES says for each GPU that tasks of one GPU can use side by side: those that are here and
    have the name of the first one, after which the machine is called; a line on standard error tells of the others."""
    if not any(task.device == "cuda" for task in tasks):
        return []
    gpus = environment.gpus()
    given = os.environ.get("CUDA_VISIBLE_DEVICES")
    named = [pin.strip() for pin in given.split(",")] if given else [str(number) for number in range(len(gpus))]
    if named and named[0].startswith("MIG"):  # a process sees but the first part of a GPU, and so cannot ask the others
        return named
    kept = [pin for pin, gpu in zip(named, gpus, strict=False) if gpu == gpus[0]]
    if others := [pin for pin in named if pin not in kept]:
        tqdm.write(f"left out: GPU {', '.join(others)}, not here or not like the first", file=sys.stderr)
    return kept


def known_seconds(tasks: list[Task], wanted: Iterable[tuple[str, str]]) -> dict[tuple[str, str], float | None]:
    """Seconds that a record of the same case took, here or else on any machine, by the machine and name of the records
    that are wanted."""
    every = {(task.machine, name): (task.experiment, case) for task in tasks for name, case in task.cases.items()}
    stems = {key: results.called(*every[key], 0).removesuffix("0") for key in wanted}
    seconds = {stem: _seconds(stem) for stem in set(stems.values())}
    return {key: seconds[stem] for key, stem in stems.items()}


def _seconds(stem: str) -> float | None:
    files = (file for root in (results.folder(), results.REFERENCE) for file in root.glob(f"*/{stem}*.json"))
    return next((results.cached(file)["seconds"] for file in files if results.status(file)), None)


def table(tasks: list[Task], available: Mapping[str, int]) -> pd.DataFrame:
    """One row a case: its rounds, its predicted memory, what would become of it (`runs`, `too large` for the bytes that
    are available on its device, or the reason why it is left out) and the statuses of the records that it has."""
    rows: dict = {}
    for task in tasks:
        for name, case in task.cases.items():
            fate = "too large" if task.predicted[name] > available.get(task.device, math.inf) else "runs"
            row = rows.setdefault(
                (task.machine, task.experiment, results.name(case)),
                {
                    "experiment": task.experiment, "case": results.name(case), "rounds": 0,
                    "predicted, MiB": round(task.predicted[name] / peak_memory.MIB),
                    "fate": task.lacking.get(name, fate), "records": [],
                },
            )  # fmt: skip
            row["rounds"] += 1
            row["records"] += [status] if (status := task.status(name)) else []
    frame = pd.DataFrame(rows.values())
    frame["records"] = [" ".join(dict.fromkeys(found)) for found in frame["records"]]
    return frame


def dry(tasks: list[Task]) -> str:
    """What a sweep would do, a line a case, and the sums."""
    if not tasks:
        return "0 cases: there are more shards than kernels"
    available = {device: peak_memory.available_bytes(device) for device in {task.device for task in tasks}}
    found = table(tasks, available)
    fates = "; ".join(f"{count} {fate}" for fate, count in found["fate"].value_counts().items())
    lines = found[["experiment", "case", "rounds", "predicted, MiB", "fate", "records"]].to_string(index=False)
    device = tasks[0].device
    mib = available[device] / peak_memory.MIB
    return f"{lines}\n{len(found)} cases in {len(tasks)} kernels, {mib:,.0f} MiB available on {device}: {fates}"


def summary(tasks: list[Task]) -> str:
    """What the sweep's records say, in a few lines: how many cases ended how, and each that did not end well."""
    found = table(tasks, {})  # the devices need not be here
    able = found[found["fate"] == "runs"]
    ended = able["records"].where(able["records"] != "", "not measured yet")
    lines = ["  ".join(f"{status}: {count}" for status, count in ended.value_counts().items())]
    bad = able[able["records"].str.contains("|".join(measure.FATAL))]
    if len(bad):
        lines.append(bad[["records", "experiment", "case", "predicted, MiB"]].to_string(index=False))
    for reason, left_out in found.drop(able.index).groupby("fate"):
        lines.append(f"left out: {len(left_out)} cases, since {reason}")
    return "\n".join(lines)
