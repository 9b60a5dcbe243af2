"""Whether a record that a kernel wrote is the one it was asked for, and can be true; knows of experiments only what a
step and the ceilings must add up to.
"""

import statistics

from lib.records import results
from lib.sweep.plan import Task

PHASES = ("forward_ms", "backward_ms", "optimizer_ms")
ROUNDING = 1e-3  # what the phases of an iteration may differ from its total by: they are the same clock's readings
MOST_MFU = 1.05  # of the ceiling measured on the machine, which itself varies a little


def check(record: dict, task: Task, name: str) -> None:
    """Raise ValueError unless a valid record is the one of this name that a task was to make, its phases add up to its
    total, and it needed no more than the machine can do."""
    if record["environment"]["machine"] != task.machine:
        raise ValueError(f"machine: must be {task.machine}")
    if record["environment"].get("torch") != task.environment.get("torch"):
        raise ValueError(f"torch: must be {task.environment.get('torch')}, which the sweep was planned with")
    called = results.called(record["experiment"], record["case"], record["round"])
    if called != name or record["case"] != task.cases.get(name):
        raise ValueError(f"case: must be that of {name}, as the sweep has it")
    if record["code"] != task.code:
        raise ValueError(f"code: must be {task.code}; did the code change while the sweep ran?")
    _check_phases(record["metrics"])
    if task.cases[name].get("mode") == "train_step":
        _check_mfu(record["metrics"], _rates(task.machine, task.cases[name]["precision"]))


def _check_phases(metrics: dict) -> None:
    phases = [metrics[name] for name in PHASES if isinstance(metrics.get(name), list)]
    totals = metrics.get("total_ms")
    if not phases or not isinstance(totals, list):
        return
    if {len(phase) for phase in phases} != {len(totals)}:
        raise ValueError("metrics: not every iteration has all of its phases")
    for parts, total in zip(zip(*phases, strict=True), totals, strict=True):
        if abs(sum(parts) - total) > ROUNDING * total:
            raise ValueError("metrics: the phases of an iteration do not add up to its total")


def _check_mfu(metrics: dict, ceilings: list[float]) -> None:
    """A training step whose products would run above the ceiling of its precision is mismeasured."""
    times, flops = metrics.get("total_ms"), metrics.get("forward_flops")
    if times and flops and ceilings and 3 * flops / (statistics.median(times) / 1e3) > MOST_MFU * max(ceilings):
        raise ValueError(f"metrics: its MFU is more than {MOST_MFU}")


def _rates(machine: str, precision: str) -> list[float]:
    """FLOP/s of the matrix products that this machine's ceilings in the store have."""
    found = []
    for file in results.files(machine, "ceilings"):
        if results.status(file) == "ok":
            record = results.cached(file)
            if record["case"]["operation"] == "matmul" and record["case"]["precision"] == precision:
                metrics = record["metrics"]
                found.append(metrics["flops"] / (statistics.median(metrics["run_ms"]) / 1e3))
    return found
