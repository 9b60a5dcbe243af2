"""Predict how long a sweep will take on this machine.

A case with a record should take what it took before. For others, costs by theory are multiplied by the iterations that
the settings ask for, at recorded rates, ones measured in a second, or those of a GPU's datasheet.
"""

import functools
import time
from collections.abc import Mapping
from dataclasses import asdict
from typing import NamedTuple

from lib import model, timing
from lib.experiments import cases, measure
from lib.instruments import allocator, cache, environment, noise
from lib.instruments.device import Cpu, Cuda, Mps
from lib.records import baselines, results
from lib.report.published import datasheets
from lib.sweep import plan
from lib.sweep.plan import Task
from lib.sweep.progress import clock

# as seen on two machines of two cores, an Intel Xeon and an AMD EPYC
SLOWDOWN = 1.4  # how much longer an iteration takes than its costs, each at its best rate
EAGER_SLOWDOWN = 4  # how much longer an operation takes with Python and autograd around it
FOLLOWED_S = 0.5e-3  # more for each operation while memory or kernels are followed
GRAPH_S = 1.2  # to compile a graph, and more for each of its operations
COMPILER_S = 5.0  # the compiler's own start in a process
CACHED = 0.3  # of the time to compile, where an earlier round of the sweep has compiled the graph
START_S = 2 * time.process_time()  # to start a kernel: twice what this process's imports took


class UnitSeconds(NamedTuple):
    """Hold the least seconds for one FLOP (by precision), byte, operation and drawn number.

    `compiled` is to compile an operation, `peaks` for one while the peaks of its iteration are found, `beside` for each
    case, mostly noise probes, and `start` to start a kernel. A warm-up and sampling last for `least_s` or more. If it
    `overlaps`, the device computes while Python calls the next operations."""

    flop: Mapping[str, float]
    byte: float
    operation: float
    draw: float
    compiled: float = 0.008
    peaks: float = FOLLOWED_S
    beside: float = 0.03
    start: float = START_S
    least_s: tuple[float, float] = Cpu.least_s
    overlaps: bool = False

    def iteration_s(self, case) -> float:
        """Predict the time of an iteration of a case."""
        costs, precision = case.costs(), getattr(case, "precision", "fp32")
        computed = costs.flops * self.flop[precision] + costs.bytes * self.byte
        called = costs.operations * self.operation
        return SLOWDOWN * (max(computed, called) if self.overlaps else computed + called)


# what is unlike a CPU; assumed, since none was measured
UNLIKE = {
    "cuda": {
        "compiled": 1.5 / 400,  # 1 to 2 s for a layer, which is about 400 operations forward, backward and of AdamW
        "peaks": 0.0,  # counted by the allocator
        "beside": 4 * noise.PROBE_S,  # two noise probes, each with its warm-up
        "start": 6.0,  # of which half for CUDA's context and libraries
        "least_s": Cuda.least_s,
        "overlaps": True,
    },
    "mps": {"beside": 4 * noise.PROBE_S, "least_s": Mps.least_s},
}
LAUNCH_S = 5e-6  # of an eager operation on a GPU: assumed, most of it Python's
DRAWN_BYTES = 40  # to draw a weight: five kernels that each read and write it


@functools.cache
def rates(device: str) -> UnitSeconds:
    """Return the rates of this machine: the best in its records of its limits, else measured now.

    Those of `plan.CARD` are from its datasheet."""
    if device == plan.CARD:
        sheet = datasheets().set_index(["hardware", "precision"]).loc[plan.CARD]
        products, byte = (1e-12 / sheet["tflops"]).to_dict(), 1e-9 / sheet["memory_gb_per_s"].iloc[0]
        products["fp16"] = products["bf16"]
        return UnitSeconds(products, byte, LAUNCH_S, DRAWN_BYTES * byte, **UNLIKE["cuda"])
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
    call_s = EAGER_SLOWDOWN * best_s("call", 1)
    return UnitSeconds(products, best_s("copy", 4096), call_s, draw_s, **UNLIKE.get(device, {}))


def predicted(tasks: list[Task], again: frozenset[str] = frozenset()) -> dict[str, float]:
    """Predict the seconds that each experiment's records will take, one after the other.

    They are those that are missing, and those to make `again` (see `Task.todo`)."""
    found: dict[str, float] = dict.fromkeys((task.experiment for task in tasks), 0.0)
    for task in tasks:
        most = plan.limits_bytes(task.device)["too large"]
        todo = {name: task.cases[name] for name in task.todo(again) if task.predicted[name] <= most}
        if not todo:
            continue
        built = {name: cases.EXPERIMENTS[task.experiment](**case) for name, case in todo.items()}
        here, settings = rates(task.device), task.parameters
        seconds = here.start + COMPILER_S * any(case.compiles for case in built.values())
        for name, case in built.items():
            earlier = plan.earlier_s(name, task.machine)
            seconds += min(task.timeout, earlier or case_seconds(case, settings, here))
        found[task.experiment] += seconds
    return found


def sentence(tasks: list[Task], again: frozenset[str] = frozenset()) -> str:
    """Say how long a sweep takes, by tier and experiment, the longest first; `again` as in `predicted`."""
    each = {number: [task for task in tasks if task.tier == number] for number in sorted({t.tier for t in tasks})}
    tiers = {number: predicted(those, again) for number, those in each.items()}
    total = sum(sum(found.values()) for found in tiers.values())
    by_sheet = tasks[0].device == plan.CARD
    where = f" on an {plan.CARD}, by its datasheet since no CUDA device is here" if by_sheet else ""
    lines = [f"predicted to take {clock(total)}{where}:"]
    for tier, found in tiers.items():
        parts = [f"{name} {clock(seconds)}" for name, seconds in sorted(found.items(), key=lambda pair: -pair[1])]
        whole = f"tier {tier} {clock(sum(found.values()))}: " if len(tiers) > 1 else ""
        lines.append(f"  {whole}{', '.join(parts)}")
    return "\n".join(lines)


def case_seconds(case, settings: Mapping, rates: UnitSeconds) -> float:
    """Predict the seconds of a case in a round with these settings of its notebook."""
    costs, each = case.costs(), rates.iteration_s(case)
    baseline, plain = (find(case.experiment, asdict(case)) for find in (baselines.of, baselines.plain))
    others = [type(case)(**fields) for fields in (baseline, plain) if fields and settings["pairs"]]
    flush = cache.flushed_bytes(case.device) * rates.byte if getattr(case, "cold", False) else 0.0
    most, limit = (settings["warmup"], settings["samples"]), settings["seconds"]
    if settings["target_percent"]:
        most = [min(n, max(least, limit / each)) for n, least in zip(most, (2, timing.LEAST), strict=True)]
    seconds = 3 * (each + flush)  # the check, the first and the peaks
    if case.experiment != "memory" or (case.checkpoint and settings["pairs"]):  # otherwise it only follows memory
        seconds += sum(max(least, n * (each + flush)) for n, least in zip(most, rates.least_s, strict=True))
    switches = len(baselines.switched(case.experiment, asdict(case)))
    trials = switches * (switches + 1) // 2 if settings.get("search") else 0  # each with one switch less left
    for pair in [(each, rates.iteration_s(other)) for other in others] + trials * [(each, each)]:
        runs = [1 + (1e9 * one < timing.EVICTED_NS) for one in pair]
        both = sum(n * one for n, one in zip(runs, pair, strict=True))
        paired = min(settings["pairs"], max(timing.LEAST_PAIRS, limit / both))
        uncounted = max(rates.least_s[0] / both, min(timing.UNCOUNTED, max(1, 0.2 * limit / both)))
        seconds += (paired + uncounted) * (both + sum(runs) * flush)
    seconds += 2 * settings.get("steps", 0) * each + trials * _compile_s(case, rates) / 2  # half of them from the cache
    seconds += costs.drawn * rates.draw * (1 + len(others) + (case.experiment == "warmup"))
    seconds += rates.beside + sum(CACHED * _compile_s(other, rates) for other in others)
    if case.compiles:
        return seconds + (CACHED if settings["round"] > 1 else 1) * _compile_s(case, rates)
    followed = {"allocator": 0, "warmup": 0, "memory": 2, "precision": 0, "kernels": 4 + settings.get("recorded", 0)}
    each_s = FOLLOWED_S if case.experiment in followed else rates.peaks
    return seconds + followed.get(case.experiment, 1) * each_s * costs.operations


def _compile_s(case, rates: UnitSeconds) -> float:
    return GRAPH_S + rates.compiled * case.costs().operations if case.compiles else 0.0
