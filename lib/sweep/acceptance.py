"""Check that a record from a kernel is the requested one, and that its phases add up."""

from lib.records import results
from lib.sweep.plan import Task

PHASES = ("forward_ms", "backward_ms", "synchronization_ms", "optimizer_ms")
ROUNDING = 1e-3  # allowed relative gap between total and sum of phases, which are readings of one clock


def check(record: dict, task: Task, name: str) -> None:
    """Raise ValueError unless a record is the requested one and its phases add up to the total."""
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
