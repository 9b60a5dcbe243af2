"""Bound times by the best rates that the same machine was seen to reach.

This is the roofline (Williams, Waterman and Patterson 2009). A ceiling is the best rate that any round's median
reached, so that no code beats it but by a cache or by noise.
"""

from collections.abc import Collection, Sequence
from dataclasses import replace

import numpy as np
import pandas as pd

from lib import records
from lib.catalog import CATALOG
from lib.config import MODES, SIZES
from lib.cost.flops import adam_bytes, forward_flops, shape_of

MOVING = ("read", "copy", "add", "adamw")  # operations of ceilings that only move memory
PRODUCTS = ("matmul", "projection", "up", "down", "head", "products")
PRODUCT_PHASES = ("forward_ms", "input_gradients_ms", "weight_gradients_ms")  # a third of the FLOPs each
FLOPS_AN_ELEMENT = {"read": 1, "add": 1, "adamw": 14}
EXACT = 1e-5  # a relative error up to which products of fp32 have rounded nothing: fp32 itself may be off by as much
STEPS = ("step", "ladder", "kernels", "memory", "peers")  # experiments whose iteration is a training step


def bound_ms(experiment: str, machine: str, table: pd.DataFrame) -> pd.Series:
    """Return the shortest time in ms of each case of one machine.

    A phase takes at least its FLOPs at the best rate of products in its precision, and at least its bytes at the best
    rate of memory. The bound is NaN for other experiments than steps, attention and AdamW, and if the ceilings were
    not measured."""
    total_ms = pd.Series(np.nan, table.index)
    parts = list_phases(experiment, table)
    ceilings = load_ceilings(machine)
    if not parts or ceilings.empty:
        return total_ms
    products, memory = best_rates(ceilings)
    arithmetic = pd.MultiIndex.from_arrays([table["device"], precisions(table)])
    flops_per_ms = products.reindex(arithmetic).to_numpy() / 1e3
    bytes_per_ms = memory.reindex(table["device"]).to_numpy() / 1e3
    total_ms[:] = 0.0
    for flops, moved_bytes in parts:
        total_ms += np.maximum(flops / flops_per_ms, moved_bytes / bytes_per_ms)
    return total_ms


def tell_untimed(step: pd.DataFrame, timed: Collection[str]) -> str:
    """Say how long a step of sizes that are not `timed` would take, as near to its bound as this one.

    `step` is one row of the plain table. The bound is that of the products' FLOPs and the optimizer's bytes."""
    texts = []
    for row in step.dropna(subset="bound_percent").itertuples():
        products, memory = best_rates(load_ceilings(row.machine))
        for size in SIZES.keys() - set(timed):
            shape = shape_of(replace(SIZES[size], context_length=row.context_length), row.batch_size)
            # the backward pass has twice the products of the forward pass
            products_s = 3 * forward_flops(shape) / products[row.device, row.precision]
            bound_s = products_s + adam_bytes(shape.parameters, amsgrad=False) / memory[row.device]
            seconds = float(f"{100 * bound_s / row.bound_percent:.2g}")
            texts.append((shape.parameters, f"{size} {seconds:g} s"))
    told = ", ".join(text for _, text in sorted(texts))
    return f"Estimates, whether they fit or not: as near to their bounds, others take {told}." if texts else ""


def load_ceilings(machine: str) -> pd.DataFrame:
    """Load a machine's ceilings, and its updates by fused AdamW."""
    return join_lists(records.load_any("ceilings", machine), machine)


def join_lists(ceilings: pd.DataFrame, machine: str) -> pd.DataFrame:
    """Add a machine's updates by fused AdamW to records of its ceilings, alone and in training steps.

    They become the operation `adamw` on one column. They may reach a better rate of memory: a list of parameters can be
    larger than any matrix of the ceilings."""
    facts = ["device", "status", "elements", "moved_bytes", "total_ms"]
    lists = [records.load_any("adam", machine).query("variant == 'fused'").reindex(columns=facts)]
    for experiment in ("ladder", "peers"):
        steps = records.load_any(experiment, machine)
        switches = steps.reindex(columns=["switches"])["switches"].astype(str)
        steps = steps[switches.str.contains("fused") & ~switches.str.contains("masters")]
        times = steps.reindex(columns=["optimizer_ms", "paired_optimizer_ms"]).bfill(axis="columns")["optimizer_ms"]
        steps = steps.rename(columns={"parameters": "elements", "optimizer_bytes": "moved_bytes"})
        lists.append(steps.assign(total_ms=times).reindex(columns=facts))
    updates = pd.concat(lists, ignore_index=True).dropna().query("status == 'ok'")
    if updates.empty:
        return ceilings
    updates = updates.assign(operation="adamw", precision="fp32", rows=updates["elements"], columns=1)
    return pd.concat([ceilings, updates], ignore_index=True)


def best_rates(ceilings: pd.DataFrame) -> tuple[pd.Series, pd.Series]:
    """Return the best FLOP/s by device and precision, and bytes/s by device, of `list_rates`."""
    products, moving = list_rates(ceilings)
    return products.groupby(["device", "precision"])["rate"].max(), moving.groupby("device")["rate"].max()


def list_rates(ceilings: pd.DataFrame) -> tuple[pd.DataFrame, pd.DataFrame]:
    """Return the records of products and those of memory, each with its `rate`.

    - A rate is that of the median, in FLOP/s or bytes/s.
    - Records of products have their own precision in `arithmetic`. Where `bf16_products` or `tf32` round nothing they
      are another library's products in fp32: such records come twice, with fp32 for `precision` as well.
    - Those of memory are the ones that no cache holds better than the largest matrix."""
    ceilings = ceilings[ceilings["status"] == "ok"]
    # a sweep may have measured products alone, or memory alone
    facts = ceilings.columns.union(["total_ms", "flops", "moved_bytes", "output_error"], sort=False)
    ceilings = ceilings.reindex(columns=facts).assign(arithmetic=ceilings["precision"])
    errors = ceilings["output_error"].map(np.max, na_action="ignore").astype(float)
    is_exact = ceilings["precision"].isin(["bf16_products", "tf32"]) & (errors <= EXACT)
    ceilings = pd.concat([ceilings, ceilings[is_exact].assign(precision="fp32")], ignore_index=True)
    products = ceilings[ceilings["operation"].isin(PRODUCTS)]
    flops_s = _rates(products, "total_ms", products["flops"])
    # one of a weight's three products may have a better rate than all three
    for metric in PRODUCT_PHASES:
        if metric in products:
            flops_s = np.fmax(flops_s, _rates(products, metric, products["flops"] / 3))
    moving = ceilings[ceilings["operation"].isin(MOVING)]
    elements = moving["rows"] * moving["columns"]
    # what is smaller than the largest matrix may reach the rate of a cache; a list of `join_lists` has one column
    matrix_elements = elements.where(moving["columns"] > 1)
    moving = moving[elements >= matrix_elements.groupby(moving["device"]).transform("max")]
    return products.assign(rate=flops_s), moving.assign(rate=_rates(moving, "total_ms", moving["moved_bytes"]))


def usual_rates(ceilings: pd.DataFrame) -> pd.Series:
    """Return the usual bytes/s by device: the mean of all processes of the operation with the best."""
    rates = list_best(ceilings)
    return np.exp(np.log(rates["rate"]).groupby(rates["device"]).mean())


def list_best(ceilings: pd.DataFrame) -> pd.DataFrame:
    """Return the rates of every process for the operation on memory that has the best one, by device."""
    _, moving = list_rates(ceilings)
    best = moving.sort_values("rate").drop_duplicates("device", keep="last")
    return moving.merge(best[["device", "operation", "rows", "columns"]])


def call_us(machine: str) -> pd.Series:
    """Return the µs of a call that computes next to nothing, by device.

    On CUDA it is a launch. The value is the geometric mean of the rounds' medians, and a device without any is left
    out."""
    calls = records.load_any("ceilings", machine).query("operation == 'call' and status == 'ok'")
    # a sample is the time of a thousand calls in ms, which is that of one call in µs
    medians_us = calls.reindex(columns=["total_ms"])["total_ms"].map(np.median, na_action="ignore").astype(float)
    return np.exp(np.log(medians_us).groupby(calls["device"]).mean())


def _rates(rows: pd.DataFrame, metric: str, amounts: pd.Series) -> pd.Series:
    """Return a rate: FLOPs or bytes a second, at each record's median time in ms."""
    return 1e3 * amounts / rows[metric].map(np.median, na_action="ignore").astype(float)


def list_points(ceilings: pd.DataFrame, attention: pd.DataFrame) -> pd.DataFrame:
    """Return the points of a roofline: products, operations on memory, and attention.

    Columns: `kind`, `operation` (of attention the variant), `precision`, `flops_a_byte`, `rate_tflops`."""
    shapes = ceilings[(ceilings["operation"] != "products") & ceilings["flops"].notna()].assign(kind="product")
    # a weight of `inputs` x `columns` makes three products; each reads two matrices and writes the third
    inputs = shapes["flops"] / (6 * shapes["rows"] * shapes["columns"])
    numbers = shapes["rows"] * (inputs + shapes["columns"]) + inputs * shapes["columns"]
    shapes["moved_bytes"] = 3 * numbers * shapes["precision"].map({"bf16": 2, "fp16": 2}).fillna(4)
    moving = ceilings[ceilings["operation"].isin(FLOPS_AN_ELEMENT)].assign(kind="memory")
    elements = moving["rows"] * moving["columns"]
    moving["flops"] = elements * moving["operation"].map(FLOPS_AN_ELEMENT)
    # what is smaller than the largest matrix may lie in a cache, above the roof
    moving = moving[elements == elements.max()]
    programs = attention.assign(kind="attention", operation=attention["variant"])
    ((programs["flops"], programs["moved_bytes"]),) = list_phases("attention", attention)
    points = pd.concat([shapes, moving, programs], ignore_index=True)
    points["flops_a_byte"] = points["flops"] / points["moved_bytes"]
    points["rate_tflops"] = points["flops"] / points["total_ms"] / 1e9
    points = points[["kind", "operation", "precision", "flops_a_byte", "rate_tflops"]].dropna()
    return points[points["rate_tflops"] > 0]


def list_phases(experiment: str, table: pd.DataFrame) -> Sequence[tuple[pd.Series, pd.Series]]:
    """Return the FLOPs and least bytes of each phase that the cases run, if known."""
    nothing = pd.Series(0.0, table.index)
    if experiment == "adam":
        return [(nothing, table["moved_bytes"])]
    if experiment == "attention":
        flops = table["forward_flops"]
        if "causal_flops" in table:
            flops = table["causal_flops"].fillna(flops)
        # backward has twice the products of forward; where no scores were kept, it computes half of forward's again
        holders = [name for name, variant in CATALOG["attention"].variants.items() if variant.holds_scores]
        passes = table["variant"].isin(holders).map({True: 3.0, False: 3.5})
        return [(passes * flops, table["moved_bytes"])]
    if experiment == "attention_module":
        forward = (table["forward_flops"], table["forward_bytes"])
        backward = (2 * table["forward_flops"], table["backward_bytes"])
        return [forward, backward]
    parts = []
    if experiment in STEPS:
        mode = table.get("mode", pd.Series("train_step", table.index))
        for phase in MODES["train_step"]:
            runs = mode.isin([name for name, phases in MODES.items() if phase in phases])
            # the optimizer multiplies no matrices, and has no FLOPs here
            flops = table.get(f"{phase}_flops", nothing)
            parts.append((flops.where(runs, 0.0), table[f"{phase}_bytes"].where(runs, 0.0)))
    return parts


def precisions(table: pd.DataFrame) -> pd.Series:
    """Return the arithmetic of each case's products: its precision, or else fp32."""
    if "precision" in table:
        return table["precision"]
    if "switches" in table:
        # a switch of this kind has the name of its precision
        return table["switches"].str.extract(r"\b(bf16_products|bf16)\b", expand=False).fillna("fp32")
    return pd.Series("fp32", table.index)
