"""Plan a sweep on this machine: the records that each kernel has to make, in order.

A plan consists of plain values, so that a node can plan for itself while another machine supervises.
"""

import functools
import json
import math
import os
import sys
from collections.abc import Container, Mapping
from dataclasses import asdict, dataclass, replace
from pathlib import Path

import pandas as pd
from tqdm import tqdm

from lib.catalog import CATALOG
from lib.experiments import measure
from lib.instruments import allocator, environment, peak_memory, processor
from lib.instruments.device import on
from lib.records import code_digest, results
from lib.report import tidy
from lib.sweep import sweep_file
from lib.sweep.lock import Shard

EMULATED, NATIVE = "this processor only emulates bf16, which takes long", "for processors that only emulate bf16"
CARD, CARD_BYTES = "H100 80GB", 80 * 10**9  # of the datasheets: a dry run without CUDA predicts for it


@dataclass(frozen=True)
class Task:
    """A kernel's work on one machine; all dicts are keyed by the name of a record.

    `cases` has each case's fields in the order of measuring, `predicted` its bytes, `unavailable` the reasons why some
    cannot run. The supervisor puts `environment` and `code` into the records that it writes itself. `last` is true in
    the cases' last round. Lower tiers come first."""

    experiment: str
    parameters: dict
    timeout: float
    device: str
    machine: str
    cases: dict[str, dict]
    predicted: dict[str, int]
    unavailable: dict[str, str]
    environment: dict
    code: str
    last: bool
    tier: int = 1

    @property
    def round(self) -> int:
        """Return the round of its records."""
        return self.parameters["round"]

    @property
    def alone(self) -> bool:
        """Tell if it needs the whole machine to itself."""
        return self.device != "cuda" or CATALOG[self.experiment].alone

    def todo(self, again: frozenset[str] = frozenset(), finished: Container[tuple[str, str]] = ()) -> list[str]:
        """List the records to make, in order.

        `again` names the statuses that are measured again, or `stale`; not those `finished` since the sweep began, by
        machine and name."""
        able = (name for name in self.cases if name not in self.unavailable)
        return [name for name in able if not self._done(name, again, finished)]

    def _done(self, name: str, again: frozenset[str], finished: Container[tuple[str, str]]) -> bool:
        """Tell if a case has its record, or failed in an earlier round and is not tried again."""
        if (self.machine, name) in finished:
            return True
        earlier = [results.called(self.experiment, self.cases[name], r) for r in range(1, self.round)]
        ends = [self.status(each, frozenset() if (self.machine, each) in finished else again) for each in earlier]
        return self.status(name, again) not in measure.NOT_YET or any(end in measure.FATAL for end in ends)

    def status(self, name: str, again: frozenset[str] = frozenset()) -> str | None:
        """Return the status of a record, or None if it is missing or to be made again."""
        file = results.folder() / self.machine / f"{name}.json"
        found = results.status(file)
        retried = found in again and not (found == "oom" and _asked_too_much(file))
        return None if retried or (found and "stale" in again and results.stale(file)) else found


def _asked_too_much(file: Path) -> bool:
    """Tell if a case that ran out of memory asked for more than its device can give at best."""
    record = results.cached(file)
    total_mib = record["environment"].get("gpu_memory_mib") or record["environment"].get("memory_mib", math.inf)
    return record["metrics"].get("asked_bytes", 0) > peak_memory.USABLE * peak_memory.MIB * total_mib


def planned(sweep: str, dry: bool = False) -> list[Task]:
    """Plan a sweep on this machine, ordered by tier, then round, then what needs the whole machine.

    A `dry` plan of a sweep that needs CUDA is for `CARD` where there is none. Raises ValueError as `sweep_file.load`
    does, and for a sweep that this machine has no device for."""
    kernels = sweep_file.load(sweep)
    missing = on("cuda").missing() if any(kernel.needs == "cuda" for kernel in kernels) else None
    if missing and not dry:
        raise ValueError(f"{sweep}.yaml: needs cuda: {missing}; --dry still lists the cases")
    tasks = [_task(kernel, bool(missing)) for kernel in kernels]
    return sorted(tasks, key=lambda task: (task.tier, task.round, not task.alone))


def _task(kernel: sweep_file.Kernel, on_card: bool) -> Task:
    """Return the task of a kernel on this machine, or as if `CARD` were here and could run every case."""
    device = CARD if on_card else kernel.cases[0].device
    machine, around = (CARD, {}) if on_card else (environment.machine(device), _environment(device))
    ordered = dict.fromkeys([*measure.shuffled(measure.available(kernel.cases), kernel.round), *kernel.cases])
    named = {results.called(kernel.experiment, asdict(case), kernel.round): case for case in ordered}
    reasons = {} if on_card else {name: case.unavailable() for name, case in named.items()}
    emulates = device == "cpu" and processor.emulates_bf16()
    if kernel.needs == "bf16" and emulates:
        reasons |= {name: EMULATED for name, case in named.items() if getattr(case, "precision", "") == "bf16"}
    if kernel.needs == "emulated_bf16" and not emulates:
        reasons |= dict.fromkeys(named, NATIVE)
    return Task(
        kernel.experiment, kernel.parameters, kernel.timeout, device, machine,
        cases={name: asdict(case) for name, case in named.items()},
        predicted={name: case.predicted_bytes() for name, case in named.items()},
        unavailable={name: why for name, why in reasons.items() if why}, environment=around,
        code=code_digest.code(kernel.experiment), last=kernel.last, tier=kernel.tier,
    )  # fmt: skip


@functools.cache
def _environment(device: str) -> dict:
    """Return the environment of records that no kernel writes, with the allocator that one would use."""
    return environment.describe(device) | {"allocator": allocator.chosen() if allocator.can_keep() else "default"}


def in_shard(tasks: list[Task], shard: Shard) -> list[Task]:
    """Return the tasks of a shard; all rounds of a kernel are in the same shard on every machine."""
    kernels = sorted({_key(task) for task in tasks})
    dealt = measure.shuffled(kernels, 0)
    mine = {dealt[number] for number in shard.range(len(dealt))}
    return [task for task in tasks if _key(task) in mine]


def _key(task: Task) -> str:
    """Return the key that a task shares with its other rounds."""
    return json.dumps([task.experiment, {k: v for k, v in task.parameters.items() if k != "round"}], sort_keys=True)


def further_rounds(tasks: list[Task]) -> list[Task]:
    """Return tasks for one extra round of every case that had a noisy round."""
    found = []
    for task in (task for task in tasks if task.last):
        number = task.round + 1
        noisy = {name: case for name, case in task.cases.items() if any(map(_noisy, _rounds(task, case)))}
        renamed = {name: results.called(task.experiment, case, number) for name, case in noisy.items()}
        if noisy:
            found.append(
                replace(
                    task, parameters=task.parameters | {"round": number}, unavailable={},
                    cases={renamed[name]: case for name, case in noisy.items()},
                    predicted={renamed[name]: task.predicted[name] for name in noisy},
                )
            )  # fmt: skip
    return found


def _rounds(task: Task, case: dict) -> list[Path]:
    names = (results.called(task.experiment, case, number) for number in range(1, task.round + 1))
    return [results.folder() / task.machine / f"{name}.json" for name in names]


def _noisy(file: Path) -> bool:
    """Tell if a file holds the record of a case that was measured on a noisy machine."""
    if results.status(file) != "ok":
        return False
    record = results.cached(file)
    quietest = results.quietest(record["environment"]["machine"])
    row = pd.Series(record["metrics"] | {"environment": record["environment"], "quietest_ms": quietest})
    return tidy.NOISY in tidy.disturbances(row)


def pins(tasks: list[Task]) -> list[str]:
    """List the GPUs that run tasks side by side, each as a value of CUDA_VISIBLE_DEVICES.

    They must be of the same model as the first, which names the machine. Others are reported on standard error."""
    if not any(task.device == "cuda" for task in tasks):
        return []
    gpus = on("cuda").models()
    given = [pin.strip() for pin in os.environ.get("CUDA_VISIBLE_DEVICES", "").split(",")]
    named = [pin for pin in given if pin] or [str(number) for number in range(len(gpus))]
    if named and named[0].startswith("MIG"):  # a process sees only the first MIG part, and cannot query the others
        return named
    kept = [pin for pin, gpu in zip(named, gpus, strict=False) if gpu == gpus[0]]
    if others := [pin for pin in named if pin not in kept]:
        tqdm.write(f"left out: GPU {', '.join(others)}, not found or not of the first GPU's model", file=sys.stderr)
    return kept


def earlier_s(name: str, machine: str = "*") -> float | None:
    """Return the seconds that a record took before, else that of round 1 or 2; None without any."""
    stem = name.rpartition(".r")[0]
    folders = [folder for root in (results.folder(), results.REFERENCE) for folder in sorted(root.glob(machine))]
    files = (folder / f"{each}.json" for each in (name, f"{stem}.r1", f"{stem}.r2") for folder in folders)
    return next((results.cached(file)["seconds"] for file in files if results.status(file)), None)


def table(tasks: list[Task], limits: Mapping[str, Mapping[str, int]]) -> pd.DataFrame:
    """Tabulate the cases, one per row: rounds, predicted memory, fate, and the statuses of their records.

    `limits` has the bytes beyond which a case on a device has a fate: `too large`, or `no room now`. Others have the
    fate `runs`, or the reason why they are left out."""
    rows: dict = {}
    for task in tasks:
        for name, case in task.cases.items():
            fates = (fate for fate, most in limits.get(task.device, {}).items() if task.predicted[name] > most)
            fate = next(fates, "runs")
            row = rows.setdefault(
                (task.machine, task.experiment, results.name(case)),
                {
                    "experiment": task.experiment, "case": results.name(case), "rounds": 0,
                    "predicted, MiB": round(task.predicted[name] / peak_memory.MIB),
                    "fate": task.unavailable.get(name, fate), "records": [],
                },
            )  # fmt: skip
            row["rounds"] += 1
            row["records"] += [status] if (status := task.status(name)) else []
    frame = pd.DataFrame(rows.values())
    frame["records"] = [" ".join(dict.fromkeys(found)) for found in frame["records"]]
    return frame


def dry(tasks: list[Task]) -> str:
    """Describe what a sweep would do, one line per case, and the totals."""
    if not tasks:
        return "0 cases: this shard is empty, since there are more shards than kernels"
    found = table(tasks, {device: limits_bytes(device) for device in {task.device for task in tasks}})
    fates = "; ".join(f"{fate}: {count}" for fate, count in found["fate"].value_counts().items())
    lines = found[["experiment", "case", "rounds", "predicted, MiB", "fate", "records"]].to_string(index=False)
    device = tasks[0].device
    most, now = (f"{limit / peak_memory.MIB:,.0f}" for limit in limits_bytes(device).values())
    memory = f"a case on {device} may use {most} MiB, now {now} MiB"
    return f"{lines}\n{len(found)} cases in {len(tasks)} kernels, {memory}: {fates}"


def limits_bytes(device: str) -> dict[str, int]:
    """Return the limits of `table`, the one of all memory first."""
    if device == CARD:
        return dict.fromkeys(("too large", "no room now"), int(peak_memory.USABLE * CARD_BYTES))
    return {"too large": peak_memory.most_bytes(device), "no room now": peak_memory.available_bytes(device)}


def summary(tasks: list[Task]) -> str:
    """Count the cases by status, and list those that failed or were left out."""
    found = table(tasks, {})  # the devices need not be here
    able = found[found["fate"] == "runs"]
    ended = able["records"].where(able["records"] != "", "not measured yet")
    lines = ["  ".join(f"{status}: {count}" for status, count in ended.value_counts().items())]
    bad = able[able["records"].str.contains("|".join([*measure.FATAL, "no_room"]))]
    if len(bad):
        lines.append(bad[["records", "experiment", "case", "predicted, MiB"]].to_string(index=False))
    for reason, left_out in found.drop(able.index).groupby("fate"):
        lines.append(f"left out, because {reason}: {len(left_out)}")
    return "\n".join(lines)
