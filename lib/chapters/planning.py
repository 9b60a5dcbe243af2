"""Plan steps on several devices by one device's ceilings and a network's latency and bandwidth."""

import math
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import NamedTuple

import pandas as pd

from lib.chapters import capacity
from lib.config import SIZES
from lib.cost import flops
from lib.cost.flops import Shape, model_shape
from lib.parallel import accounting
from lib.parallel.accounting import SCHEMES, Network
from lib.records.frame import Frame
from lib.report import roofline, sentences, tidy
from lib.report.sentences import Statement
from lib.stats import digits

WORLDS = (1, 2, 4, 8, 16, 32, 64)
PLANNED = tuple(size for size in SIZES if size != "tiny")
PHASES = ("forward", "backward", "optimizer")
WAY = ("sdpa", "fused")  # the attention and the optimizer of ranks, and of what is planned
GIB, BUCKET_MIB = 2**30, accounting.BUCKET_BYTES / 2**20
COLUMNS = "size scheme world context_length precision total_ms rank_gib tokens_per_s fits"
CHECKED = "size context_length precision variant world ceilings_ms predicted_ms total_ms error_percent"

WIDE = {  # columns of the whole plan, each a table by size, scheme and number of devices
    "total_ms": "Time of a step by the planner, ms, by number of devices",
    "rank_gib": "Memory of a rank by the planner, GiB, by number of devices",
    "tokens_per_s": "Throughput of all devices by the planner, tokens a second, by their number",
}
NOTE = "Each device has a batch of its own: 4 sequences, in fp32, with attention sdpa and the fused AdamW."


class Step(NamedTuple):
    """Hold what a step computes: its shape, precision, and attention and optimizer."""

    shape: Shape
    precision: str
    way: tuple[str, str] = WAY


@dataclass(frozen=True)
class Device:
    """Hold what one device can do: FLOP/s by precision, bytes/s, seconds a call, usable bytes.

    `seen` has the ms of each phase of the eager steps that were measured on it."""

    flops: Mapping[str, float]
    bandwidth: float
    call_s: float
    usable_bytes: float
    kind: str = "cpu"
    seen: Mapping[Step, Mapping[str, float]] = field(default_factory=dict)

    def least_ms(self, step: Step) -> dict[str, float]:
        """Return the time of each phase of a step at the ceilings, in eager operations."""
        found = {}
        for phase in PHASES:
            costs = flops.step_costs(step.shape, step.precision, *step.way, (phase,))
            computed_s = costs.flops / self.flops[step.precision] + costs.bytes / self.bandwidth
            parts = (computed_s, costs.operations * self.call_s)
            found[phase] = 1e3 * (max(parts) if self.kind == "cuda" else sum(parts))  # a GPU works while it is called
        return found

    def phases_ms(self, step: Step) -> dict[str, float]:
        """Return the time of each phase: at the ceilings, and slower as in the step nearest in FLOPs.

        Only steps with this precision are looked at. Without one, the ceilings are met."""

        def distance(one: Step) -> tuple[float, bool]:
            work, other = (flops.forward_flops(each.shape) for each in (step, one))
            return abs(math.log(other / work)), one.way != step.way

        least = self.least_ms(step)
        near = min((one for one in self.seen if one.precision == step.precision), key=distance, default=None)
        if near is None:
            return least
        by_ceilings = self.least_ms(near)
        return {phase: ms * self.seen[near][phase] / by_ceilings[phase] for phase, ms in least.items()}

    def without(self, shape: Shape) -> "Device":
        """Return the device as if no step with this shape had been measured."""
        return replace(self, seen={one: ms for one, ms in self.seen.items() if one.shape != shape})

    def shared(self, ranks: int) -> "Device":
        """Return the part of the device that each of several ranks has."""
        parts = {precision: rate / ranks for precision, rate in self.flops.items()}
        seen = {one: {phase: ranks * ms for phase, ms in phases.items()} for one, phases in self.seen.items()}
        return replace(self, flops=parts, bandwidth=self.bandwidth / ranks, seen=seen)


def device(steps: pd.DataFrame, ceilings: pd.DataFrame) -> Device | None:
    """Return the device of these records of ceilings and steps; None where a ceiling is missing."""
    products, bandwidth = roofline.limits(ceilings)
    if "fp32" not in products or not bandwidth > 0:
        return None
    call, eager = roofline.call_us(ceilings), measured(steps)
    seen = {
        step_of(row): {phase: row[f"{phase}_ms"].value for phase in PHASES}
        for row in eager.to_dict("records")
        if row["precision"] in products
    }
    call_s = call.value / 1e6 if call else 0.0
    return Device(products, bandwidth, call_s, capacity.usable_bytes(ceilings), ceilings["device"].iloc[0], seen)


def measured(steps: pd.DataFrame) -> pd.DataFrame:
    """Return the medians of the eager steps of one process."""
    eager = tidy.select(steps, status="ok", mode="train_step", compiled=False)
    return tidy.medians(eager, "total_ms", *(f"{phase}_ms" for phase in PHASES))


def step_of(row: Mapping, ranks: int = 1) -> Step:
    """Return what a case computes on one of its ranks.

    Steps on several have the attention and optimizer of `WAY`."""
    shape = replace(model_shape(row["size"], row["context_length"]), batch_size=float(row["batch_size"] / ranks))
    return Step(shape, row["precision"], (row["attention"], row["optimizer"]) if "attention" in row else WAY)


def step_ms(
    of: Device, network: Network, scheme: str, step: Step, world: int, bucket_mib: float = BUCKET_MIB
) -> dict[str, float]:
    """Return the phases of a rank's step and what its collectives add to them, in ms."""
    times = of.phases_ms(step)
    if scheme in ("sharded", "fsdp"):
        times["optimizer"] /= world
    phases_s = {phase: ms / 1e3 for phase, ms in times.items()}
    messages = accounting.step_messages(scheme, step.shape, step.precision, 2**20 * bucket_mib)
    return times | {"synchronization": 1e3 * accounting.exposed_s(messages, network, world, phases_s)}


def plan(of: Device | None, network: Network | None, context_length: int, precision: str = "fp32") -> pd.DataFrame:
    """Return time, memory and throughput of a step by size, scheme and number of devices.

    Each device has a batch of its own. `fits` says whether a rank's memory holds the step."""
    rows = []
    for size in PLANNED if of and network else ():
        shape = model_shape(size, context_length)
        for scheme in SCHEMES:
            for world in WORLDS:
                parts = step_ms(of, network, scheme, Step(shape, precision), world)
                held = accounting.memory_bytes(scheme, shape, world, precision, *WAY, of.kind)
                total, needed = sum(parts.values()), sum(held.values())
                row = {"size": size, "scheme": scheme, "world": world, "context_length": context_length}
                row |= {"precision": precision, "total_ms": total, "rank_gib": needed / GIB}
                row |= {"tokens_per_s": world * shape.tokens / total * 1e3}
                rows.append(row | {"synchronization_ms": parts["synchronization"], "fits": needed <= of.usable_bytes})
    return pd.DataFrame(rows, columns=None if rows else COLUMNS.split())


def best(planned: pd.DataFrame) -> pd.DataFrame:
    """Return the fastest scheme of each size that fits on the most devices, and why where none does.

    `least_world` is the fewest devices on which any scheme fits."""
    rows = []
    for size, every in planned.groupby("size", sort=False):
        fits, most = tidy.select(every, fits=True), tidy.select(every, world=WORLDS[-1])
        fastest = tidy.select(fits, world=WORLDS[-1]).sort_values("total_ms").to_dict("records")[:1]
        rows += [row | {"least_world": fits["world"].min(), "why": ""} for row in fastest]
        if not fastest:
            least = digits.number(most["rank_gib"].min())
            rows.append({"size": size, "world": WORLDS[-1], "why": f"a rank needs {least} GiB or more"})
    return Frame(rows, columns=[*planned.columns, "least_world", "why"])


def wide(planned: pd.DataFrame, column: str) -> pd.DataFrame:
    """Return a column of a plan by size and scheme, with a column for each number of devices.

    Data parallelism has the same memory in all its variants, so that `rank_gib` has one row for them."""
    table = planned
    if column == "rank_gib":
        table = tidy.select(planned, scheme=["bucketed", "sharded", "fsdp"])
        table = table.replace({"scheme": {"bucketed": "data parallel"}})
    found = table.pivot_table(index=["size", "scheme"], columns="world", values=column, sort=False).reset_index()
    return found.rename(columns={world: f"{world}" for world in WORLDS}).rename_axis(columns=None)


def checked(of: Device | None, network: Network | None, steps: pd.DataFrame, ddp: pd.DataFrame) -> pd.DataFrame:
    """Set the planner's time beside each measured step, of one process and of several ranks.

    A step of one process, whose `variant` names attention and optimizer, is predicted from those of other shapes. Ranks
    on a CPU share its cores. `error_percent` is that of the prediction; `ceilings_ms` takes the ceilings alone."""
    rows = []
    for row in measured(steps).to_dict("records") if of else ():
        step = step_of(row)
        if step.precision in of.flops:
            times = {"ceilings_ms": of.least_ms(step), "predicted_ms": of.without(step.shape).phases_ms(step)}
            found = {name: sum(phases.values()) for name, phases in times.items()}
            rows.append(_beside(row, found, ", ".join(step.way), 1))
    known = tidy.medians(tidy.select(ddp, status="ok"), "total_ms") if of and network else ddp.iloc[:0]
    for row in known.to_dict("records"):
        world, scheme = row["world"], {"torch": "bucketed"}.get(row["variant"], row["variant"])
        own, bucket = of.shared(world if row["backend"] == "gloo" else 1), row["bucket_mib"] or BUCKET_MIB
        if row["precision"] in of.flops:
            parts = step_ms(own, network, scheme, step_of(row, world), world, bucket)
            name = f"{row['variant']}, {bucket:g} MiB" if row["variant"] == "bucketed" else row["variant"]
            rows.append(_beside(row, {"predicted_ms": sum(parts.values())}, name, world))
    return Frame(rows, columns=None if rows else CHECKED.split())


def _beside(row: Mapping, predicted: Mapping, variant: str, world: int) -> dict:
    """Return a measured case with its prediction and the prediction's error."""
    names = ("size", "context_length", "precision", "total_ms", "hardware", "noisy", "quantity")
    kept = {name: row[name] for name in names if name in row}
    error = 100 * (predicted["predicted_ms"] / row["total_ms"].value - 1)
    return kept | {"variant": variant, "world": world} | dict(predicted) | {"error_percent": error}


def error(of_steps: pd.DataFrame, *records: pd.DataFrame) -> Statement:
    """State how far the planner is from the measured steps of one process, and of several ranks."""
    said = []
    for name, chosen in (
        ("measured steps of one process", of_steps[of_steps["world"] == 1]),
        ("of several ranks", of_steps[of_steps["world"] > 1]),
    ):
        off = sorted(chosen["error_percent"])
        if off:
            ends = [f"{'+' if end > 0 else '−'}{digits.count(abs(end))}%" for end in (off[0], off[-1])]
            said.append(f"{ends[0]} to {ends[1]} on {digits.count(len(off))} {name}")
    if not said:
        return sentences.missing("The planner has nothing to check.", *records)
    evidence = "Each step is predicted from the ceilings and the slowdown of the nearest other step."
    names = tuple(name for one in records if len(one) for name in sentences.names(one, {}))
    return Statement(f"The planner's error is {' and '.join(said)}.", "measured", evidence, names)


def answer(planned: pd.DataFrame, of: Device | None) -> Statement:
    """State what the largest size needs of devices like this one, and its throughput on the most."""
    table = best(planned)
    if table.empty:
        return sentences.missing("Without ceilings and collectives nothing is planned.")
    fits = table[table["why"] == ""]
    if fits.empty:
        return Statement(f"No size fits on {WORLDS[-1]} devices like this one.", "derived", "The planner's memory.")
    row = fits.iloc[-1]
    text = (
        f"By the planner, {digits.count(row['world'])} devices like this one train {row['size']} with {row['scheme']} "
        f"at {digits.count(row['tokens_per_s'])} tokens a second, {digits.number(row['rank_gib'])} of "
        f"{digits.number(of.usable_bytes / GIB)} GiB each. The fewest that can: {digits.count(row['least_world'])}."
    )
    return Statement(text, "derived", "Ceilings, slowdown of the nearest measured step, latency and bandwidth fitted.")
