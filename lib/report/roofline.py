"""Compute the shortest time that the measured ceilings allow.

It stands beside the times of steps, attention, AdamW and kernels in the report. The roofline bounds a rate by the best
rate of products and by the best rate of memory (Williams, Waterman and Patterson 2009). Both are the best that any
library and operation was seen to reach on this machine, so that no code beats them but by a cache or by noise. The time
of a step's own products is another number: what its shapes reach by themselves.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import pandas as pd

from lib import records
from lib.config import MODES, SIZES
from lib.records import NotMeasured
from lib.report import tidy
from lib.stats import intervals
from lib.stats.intervals import Interval

MOVING = ("read", "copy", "add", "adamw")
PRODUCTS = ("matmul", "projection", "up", "down", "head", "products")
PRODUCT_PHASES = ("forward_ms", "input_gradients_ms", "weight_gradients_ms")  # a third of the FLOPs each
STEP_FACTS = ("forward_flops", "backward_flops", "forward_bytes", "backward_bytes", "optimizer_bytes", "tokens")


@dataclass(frozen=True)
class Ceilings:
    """Hold the best rates of a machine, each with its interval over processes.

    - `products`: FLOP/s by precision, of any product by any library.
    - `memory`: bytes a second, of any operation that only moves data.
    - `own`: FLOP/s of the products with the weights of a step, by precision, d_model and tokens.
    - `call_us`: microseconds of a call that computes next to nothing, or None.
    """

    products: Mapping[str, Interval]
    memory: Interval
    own: Mapping[tuple[str, int, int], Interval]
    call_us: Interval | None

    def bound_ms(self, precision: str, phases: Sequence[tuple[float, float]]) -> Interval:
        """Return the shortest time in ms of phases, each of so many FLOPs and bytes.

        A phase takes at least the longer of the two."""
        products = self.products[precision]
        binding_flops = 0.0
        binding_bytes = 0.0
        for flops, moved_bytes in phases:
            if flops / products.value > moved_bytes / self.memory.value:
                binding_flops += flops
            else:
                binding_bytes += moved_bytes
        parts = [products.inverse.scaled(1e3 * binding_flops), self.memory.inverse.scaled(1e3 * binding_bytes)]
        parts = [part for part in parts if part.value > 0]
        total_ms = sum(part.value for part in parts)
        # phases that one ceiling bounds share its error; the errors of the two ceilings are independent
        error_ms = math.hypot(*[part.value * part.log_error for part in parts])
        rounds = min(part.rounds for part in parts)
        return Interval(total_ms, total_ms, total_ms, rounds).widened(error_ms / total_ms)


def of_records(frame: pd.DataFrame) -> Ceilings:
    """Return the ceilings in records; raise NotMeasured without products or memory."""
    frame = tidy.ok(frame)
    moving = frame[frame["operation"].isin(MOVING)]
    # what a smaller matrix reaches may be the rate of a cache
    largest_elements = (moving["rows"] * moving["columns"]).max()
    products: dict[str, list[Interval]] = {}
    own: dict[tuple[str, int, int], list[Interval]] = {}
    memory = []
    call_us = None
    for values, of_case in tidy.cases(frame):
        operation = values["operation"]
        precision = values["precision"]
        if operation in PRODUCTS:
            flops = of_case["flops"].iloc[0]
            rates = [_rate(of_case, "total_ms", flops)]
            if operation == "products":
                own.setdefault((precision, values["columns"], values["rows"]), []).extend(rates)
            # of a weight's three products, one may be faster than all
            for metric in PRODUCT_PHASES:
                if tidy.rounds(of_case, metric):
                    rates.append(_rate(of_case, metric, flops / 3))
            products.setdefault(precision, []).extend(rates)
        if operation in MOVING and values["rows"] * values["columns"] == largest_elements:
            memory.append(_rate(of_case, "total_ms", of_case["moved_bytes"].iloc[0]))
        if operation == "call":
            call_us = _rate(of_case, "total_ms", of_case["calls"].iloc[0]).inverse.scaled(1e6)
    if not products or not memory:
        raise NotMeasured("the ceilings of products and of memory")
    best_products = {precision: _largest(rates) for precision, rates in products.items()}
    return Ceilings(best_products, _largest(memory), {key: _largest(rates) for key, rates in own.items()}, call_us)


def _rate(of_case: pd.DataFrame, metric: str, amount: float) -> Interval:
    """Return an amount of FLOPs, bytes or calls a second, from the times of one case in ms."""
    return intervals.median(tidy.rounds(of_case, metric)).inverse.scaled(1e3 * amount)


def _largest(values: Sequence[Interval]) -> Interval:
    return max(values, key=lambda interval: interval.value)


def step_phases(row: Mapping) -> list[tuple[float, float]]:
    """Return the FLOPs and least bytes of each phase that a step's mode runs."""
    phases = MODES[row.get("mode", "train_step")]
    # the optimizer multiplies no matrices, and has no FLOPs here
    return [(row.get(f"{phase}_flops", 0.0), row[f"{phase}_bytes"]) for phase in phases]


def bounds(
    table: pd.DataFrame, machine: str, phases: Callable[[Mapping], list[tuple[float, float]]] = step_phases,
    time: str = "total_ms",
) -> pd.DataFrame:  # fmt: skip
    """Add `bound_ms`, `bound_percent` and for training steps `own_ms` to a table of medians.

    `bound_percent` is the bound's share of the time. `phases` gives the FLOPs and bytes of a row; by default those of a
    step, whose facts (STEP_FACTS) the table keeps. A row without precision is fp32. `own_ms` is the time of the step's
    own products alone. All are missing where the machine's ceilings were not measured."""
    nothing = {"bound_ms": None, "bound_percent": None, "own_ms": None}
    table = table.assign(**nothing)
    # a notebook may tell what it has just measured by hand, of a machine without records
    if machine not in records.machines():
        return table
    try:
        limits = of_records(records.load("ceilings", machine))
    except NotMeasured:
        return table
    added = []
    for row in table.to_dict("records"):
        precision = row.get("precision", "fp32")
        if row[time] is None or precision not in limits.products:
            added.append(nothing)
            continue
        bound = limits.bound_ms(precision, phases(row))
        percent = row[time].inverse.widened(bound.log_error).scaled(100 * bound.value)
        added.append({"bound_ms": bound, "bound_percent": percent, "own_ms": _own_ms(row, limits)})
    return table.assign(**pd.DataFrame(added, index=table.index, dtype=object))


def _own_ms(row: Mapping, limits: Ceilings) -> Interval | None:
    """Return the time of a training step's FLOPs at the rate of products with its weights.

    It is None for a row that is no training step, and where that rate was not measured."""
    if "size" not in row or row.get("mode", "train_step") != "train_step":
        return None
    rate = limits.own.get((row.get("precision", "fp32"), SIZES[row["size"]].d_model, row.get("tokens")))
    if rate is None:
        return None
    return rate.inverse.scaled(1e3 * (row["forward_flops"] + row["backward_flops"]))
