"""Whether a record that a kernel wrote is the one it was asked for, and can be true; knows no experiment."""

import statistics

from lib import results

PHASES = ("forward_ms", "backward_ms", "optimizer_ms")
ROUNDING = 1e-3  # what the phases of an iteration may differ from its total by: they are the same clock's readings
MOST_MFU = 1.05  # of the ceiling measured on the machine, which itself varies a little


class Refused(Exception):
    """A record that is not taken into the store, with the reason."""


def check(record: dict, name: str, machine: str, case: dict, code: str) -> None:
    """Raise Refused unless a valid record is that of a case on a machine by this code, its phases add up to its total,
    and it needed no more than the machine can do."""
    if record["environment"].get("machine") != machine:
        raise Refused(f"machine: {record['environment'].get('machine')!r} must be {machine!r}")
    if record["case"] != case or results.called(record["experiment"], record["case"], record["round"]) != name:
        raise Refused(f"case: it is not that of {name}")
    if record["code"] != code:
        raise Refused(f"code: {record['code']!r} must be {code!r}; did the code change while the sweep ran?")
    _check_phases(record["metrics"])
    _check_mfu(record["metrics"], case, machine)


def _check_phases(metrics: dict) -> None:
    phases = [metrics[name] for name in PHASES if isinstance(metrics.get(name), list)]
    totals = metrics.get("total_ms")
    if not phases or not isinstance(totals, list):
        return
    if {len(phase) for phase in phases} != {len(totals)}:
        raise Refused("metrics: not every iteration has all of its phases")
    for parts, total in zip(zip(*phases, strict=True), totals, strict=True):
        if abs(sum(parts) - total) > ROUNDING * total:
            raise Refused(f"metrics: phases of {sum(parts):.6g} ms do not add up to {total:.6g} ms")


def _check_mfu(metrics: dict, case: dict, machine: str) -> None:
    """A training step whose products would run above the ceiling of its precision is mismeasured."""
    times, flops = metrics.get("total_ms"), metrics.get("forward_flops")
    if not times or not flops or case.get("mode") != "train_step":
        return
    ceiling = max(_rates(machine, case["precision"]), default=None)
    if ceiling is None:
        return
    mfu = 3 * flops / (statistics.median(times) / 1e3) / ceiling
    if mfu > MOST_MFU:
        raise Refused(f"metrics: an MFU of {mfu:.2f} is more than {MOST_MFU}")


def _rates(machine: str, precision: str) -> list[float]:
    """FLOP/s of the matrix products that this machine's ceilings in the store have."""
    found = []
    for file in results.files(machine, "ceilings"):
        if results.status(file) == "ok":
            record = results.known(file)
            if record["case"]["operation"] == "matmul" and record["case"]["precision"] == precision:
                metrics = record["metrics"]
                found.append(metrics["flops"] / (statistics.median(metrics["run_ms"]) / 1e3))
    return found
