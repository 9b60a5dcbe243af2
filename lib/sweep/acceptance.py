"""Check that a record from a kernel is the requested one and physically plausible."""

import statistics

from lib.records import results
from lib.sweep.plan import Task

PHASES = ("forward_ms", "backward_ms", "optimizer_ms")
ROUNDING = 1e-3  # allowed relative gap between total and sum of phases, which are readings of one clock
MOST_MFU = 1.05  # relative to the measured ceiling, which itself varies a little


def check(record: dict, task: Task, name: str) -> None:
    """Raise ValueError unless a record is the requested one and its times are plausible.

    Phases must add up to the total, and the MFU must not exceed `MOST_MFU`."""
    if record["environment"]["machine"] != task.machine:
        raise ValueError(f"machine: expected {task.machine}")
    if record["environment"].get("torch") != task.environment.get("torch"):
        raise ValueError(f"torch: expected {task.environment.get('torch')}, the version that planned the sweep")
    called = results.called(record["experiment"], record["case"], record["round"])
    if called != name or record["case"] != task.cases.get(name):
        raise ValueError(f"case: expected that of {name} in the sweep")
    if record["code"] != task.code:
        raise ValueError(f"code: expected {task.code}; did the code change while the sweep ran?")
    _check_phases(record["metrics"])
    if task.cases[name].get("mode") == "train_step":
        _check_mfu(record["metrics"], _matmul_rates(task.machine, task.cases[name]["precision"]))


def _check_phases(metrics: dict) -> None:
    phases = [metrics[name] for name in PHASES if isinstance(metrics.get(name), list)]
    totals = metrics.get("total_ms")
    if not phases or not isinstance(totals, list):
        return
    if {len(phase) for phase in phases} != {len(totals)}:
        raise ValueError("metrics: expected every phase in every iteration")
    for parts, total in zip(zip(*phases, strict=True), totals, strict=True):
        if abs(sum(parts) - total) > ROUNDING * total:
            raise ValueError("metrics: expected the phases of an iteration to add up to its total")


def _check_mfu(metrics: dict, ceilings: list[float]) -> None:
    """Raise ValueError if a training step is faster than the machine's ceiling allows."""
    times, flops = metrics.get("total_ms"), metrics.get("forward_flops")
    if times and flops and ceilings and 3 * flops / (statistics.median(times) / 1e3) > MOST_MFU * max(ceilings):
        raise ValueError(f"metrics: expected an MFU of at most {MOST_MFU}")


def _matmul_rates(machine: str, precision: str) -> list[float]:
    """List the FLOP/s of matrix products in this machine's records of ceilings."""
    rates = []
    for file in results.files(machine, "ceilings"):
        if results.status(file) == "ok":
            record = results.cached(file)
            if record["case"]["operation"] == "matmul" and record["case"]["precision"] == precision:
                metrics = record["metrics"]
                rates.append(metrics["flops"] / (statistics.median(metrics["run_ms"]) / 1e3))
    return rates
