"""Predict how long a sweep will take on this machine.

A case with a record should take what it took before. For others, costs by theory are multiplied by the iterations that
the settings ask for, at recorded rates or ones measured in a second.
"""

import functools
import time
from collections.abc import Mapping
from dataclasses import asdict
from typing import NamedTuple

from lib import model, timing
from lib.experiments import cases, measure
from lib.instruments import allocator, cache, environment
from lib.records import baselines, results
from lib.sweep import plan
from lib.sweep.plan import Task
from lib.sweep.progress import clock

# as seen on two machines of two cores, an Intel Xeon and an AMD EPYC
SLOWDOWN = 1.4  # how much longer an iteration takes than its costs, each at its best rate
EAGER_SLOWDOWN = 4  # how much longer an operation takes with Python and autograd around it
FOLLOWED_S = 0.5e-3  # more for each operation while memory is followed
COMPILED_S = 1.2, 0.008  # to compile a graph, and more for each of its operations
COMPILER_S = 5.0  # the compiler's own start in a process
CACHED = 0.3  # of the time to compile, where an earlier round of the sweep has compiled the graph
BESIDE_S = 0.03  # for each case, mostly noise probes
START_S = 2 * time.process_time()  # to start a kernel: twice what this process's imports took


class UnitSeconds(NamedTuple):
    """Hold the least seconds for one FLOP (by precision), byte, operation and drawn number."""

    flop: Mapping[str, float]
    byte: float
    operation: float
    draw: float

    def iteration_s(self, case) -> float:
        """Predict the time of an iteration of a case."""
        costs, precision = case.costs(), getattr(case, "precision", "fp32")
        parts = costs.flops * self.flop[precision], costs.bytes * self.byte, costs.operations * self.operation
        return SLOWDOWN * sum(parts)


@functools.cache
def rates(device: str) -> UnitSeconds:
    """Return the rates of this machine: the best in its records of its limits, else measured now."""
    files = results.files(environment.machine(device), "ceilings")
    records = [results.cached(file) for file in files if results.status(file) == "ok"]

    def best_s(operation: str, rows: int, precision: str = "fp32") -> float:
        def alike(case: Mapping) -> bool:  # smaller ones may stay in a cache
            return (case["operation"], case["precision"]) == (operation, precision) and case["rows"] >= rows

        found = [record["metrics"] for record in records if alike(record["case"])]
        if not found:
            work = cases.EXPERIMENTS["ceilings"](operation, rows, rows, precision, device).setup()
            found = [work.facts | measure.times(work, timing.Plan(warmup=1, samples=10))]
        units = [next(one[name] for name in ("flops", "moved_bytes", "calls") if name in one) for one in found]
        return min(min(one["total_ms"]) / 1e3 / unit for one, unit in zip(found, units, strict=True))

    allocator.use(allocator.chosen())
    environment.keep_quota()
    products = {precision: best_s("matmul", 1024, precision) for precision in ("fp32", "bf16")}
    began = time.perf_counter()
    drawn = model.linear(1024, 1024).weight.numel()
    draw_s = (time.perf_counter() - began) / drawn
    products |= {"tf32": products["fp32"], "fp16": products["bf16"]}
    return UnitSeconds(products, best_s("copy", 4096), EAGER_SLOWDOWN * best_s("call", 1), draw_s)


def predicted(tasks: list[Task]) -> dict[str, float]:
    """Predict the seconds that each experiment's missing records will take, one after the other."""
    found: dict[str, float] = dict.fromkeys((task.experiment for task in tasks), 0.0)
    for task in tasks:
        todo = {name: task.cases[name] for name in task.todo() if name not in task.too_large}
        if not todo:
            continue
        built = {name: cases.EXPERIMENTS[task.experiment](**case) for name, case in todo.items()}
        here, settings = rates(task.device), task.parameters
        seconds = START_S + COMPILER_S * any(map(_compiles, built.values()))
        for name, case in built.items():
            earlier = plan.earlier_s(task.experiment, todo[name], task.machine)
            seconds += min(task.timeout, earlier or case_seconds(case, settings, here))
        found[task.experiment] += seconds
    return found


def sentence(tasks: list[Task]) -> str:
    """Say how long a sweep takes, by experiment, the longest first."""
    found = sorted(predicted(tasks).items(), key=lambda pair: -pair[1])
    parts = ", ".join(f"{name} {clock(seconds)}" for name, seconds in found)
    return f"predicted to take {clock(sum(seconds for _, seconds in found))}: {parts}"


def _compiles(case) -> bool:
    return getattr(case, "compiles", getattr(case, "compiled", False))


def case_seconds(case, settings: Mapping, rates: UnitSeconds) -> float:
    """Predict the seconds of a case in a round with these settings of its notebook."""
    costs, each = case.costs(), rates.iteration_s(case)
    baseline, plain = (find(case.experiment, asdict(case)) for find in (baselines.of, baselines.plain))
    others = [type(case)(**fields) for fields in (baseline, plain) if fields and settings["pairs"]]
    flush = cache.flushed_bytes(case.device) * rates.byte if getattr(case, "cold", False) else 0.0
    most, limit = (settings["warmup"], settings["samples"]), settings["seconds"]
    if settings["target_percent"]:
        most = [min(n, max(least, limit / each)) for n, least in zip(most, (2, timing.LEAST), strict=True)]
    counted = sum(most)
    if case.experiment == "memory" and not (case.checkpoint and settings["pairs"]):
        counted = 0  # it only follows memory
    seconds = (3 + counted) * (each + flush)  # with the check, the first and the peaks
    for both in (each + rates.iteration_s(other) for other in others):
        paired = min(settings["pairs"], max(timing.LEAST_PAIRS, limit / both))
        seconds += (paired + min(timing.UNCOUNTED, max(1, 0.2 * limit / both))) * (both + 2 * flush)
    seconds += costs.drawn * rates.draw * (1 + len(others) + (case.experiment == "warmup"))
    if _compiles(case):
        again = CACHED if settings["round"] > 1 else 1
        return BESIDE_S + seconds + again * (COMPILED_S[0] + COMPILED_S[1] * costs.operations)
    followed = {"allocator": 0, "warmup": 0, "memory": 2, "precision": 0, "kernels": 4 + settings.get("recorded", 0)}
    return BESIDE_S + seconds + followed.get(case.experiment, 1) * FOLLOWED_S * costs.operations
