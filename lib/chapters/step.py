"""Analyse the training step: roofline, predictions and a published claim.

A least time follows the roofline (Williams, Waterman and Patterson 2009): operations at the ceiling of matrix
products, or bytes at the ceiling of memory.
"""

import math
from functools import partial

import pandas as pd

from lib.catalog import CATALOG
from lib.cost.flops import model_shape
from lib.records import baselines
from lib.report import claims, compare, hypotheses, roofline, sentences, tidy
from lib.report.claims import Found, about
from lib.report.hypotheses import LEAST, MOST, Hypothesis
from lib.report.sentences import Statement

PHASES = ("forward", "backward", "optimizer")
PLAIN = {"attention": "naive", "optimizer": "single_tensor"}  # what the assignment's model has


def flops(row: pd.Series) -> float:
    """Return the FLOPs of both passes of a step, three times `forward_flops`."""
    return 3 * row["forward_flops"]


def points(steps: pd.DataFrame) -> pd.DataFrame:
    """Return a roofline point for each case and phase of training steps.

    The records have the least bytes of everything but matrix products. Added to them are each matrix, read once per
    pass, and its gradient, written once, in fp32."""
    rows = []
    for phase in PHASES:
        steps = tidy.with_rate(steps, f"{phase}_gflops", f"{phase}_flops", f"{phase}_ms", scale=1e-9)
    table = tidy.medians(steps, *(f"{phase}_{unit}" for phase in PHASES for unit in ("gflops", "flops", "bytes")))
    table = table[table["forward_gflops"].notna()]
    for _, row in tidy.labelled(table, steps.attrs["fields"]).iterrows() if len(table) else ():
        weights = 4 * model_shape(row["size"], int(row["context_length"])).matrix_parameters
        more = {"forward": weights, "backward": 2 * weights, "optimizer": 0}
        for phase in PHASES:
            intensity = row[f"{phase}_flops"] / (row[f"{phase}_bytes"] + more[phase])
            label = row["label"] if phase == "backward" else ""
            found = {"name": phase, "label": label, "intensity": intensity, "gflops": row[f"{phase}_gflops"]}
            rows.append(found | row[["precision", "hardware", "noisy"]].to_dict())
    return pd.DataFrame(rows, columns=roofline.COLUMNS)


def theory(every: pd.DataFrame, ceilings: pd.DataFrame) -> list[Hypothesis]:
    """Predict a step's phases, its least time and its growth with the context."""
    peaks, speed = tidy.limits(ceilings)
    steps = tidy.select(every, mode="train_step")
    steps = tidy.with_quotient(steps, "backward_to_forward", "backward_ms", "forward_ms")
    steps = tidy.with_percent_of(steps, "mfu_percent", "forward_flops", peaks, times=3)
    steps = tidy.with_least_time(steps, peaks, speed)
    plain = {"precision": "fp32", "compiled": False, **PLAIN}
    head = tidy.largest(steps, "parameters", **plain)
    short, long = hypotheses.ends(steps, "context_length", tidy.largest(steps, "context_length", **plain))
    forward, backward, optimizer, least = (
        hypotheses.value(steps, name, head)
        for name in ("forward_flops", "backward_flops", "optimizer_bytes", "least_ms")
    )
    grown, longer = (
        hypotheses.value(steps, name, long) / hypotheses.value(steps, name, short)
        for name in ("forward_flops", "least_ms")
    )
    mfu = 3e5 * forward / peaks.get("fp32", math.nan) / least
    took, grew = partial(hypotheses.median, steps, case=head), partial(hypotheses.ratio, steps, of=long, to=short)
    at = sentences.at(", {size} at {context_length}", head)
    tokens = f", {long['size']}, {short['context_length']} to {long['context_length']}" if long.get("size") else ""
    rows = [
        (f"backward to forward{at}", "FLOPs of products, 2F to F", backward / forward, took("backward_to_forward")),
        (
            f"optimizer, ms{at}",
            "28 bytes a parameter at memory's ceiling",
            1e3 * optimizer / speed,
            took("optimizer_ms"),
        ),
        (f"whole step, ms{at}", "products, then bytes, at the ceilings", least, took("total_ms"), LEAST),
        (f"MFU, %{at}", "the products' part of that time", mfu, took("mfu_percent"), MOST),
        (f"growth of the forward pass{tokens}", "FLOPs, 2NBT + 4LBT²d", grown, grew("forward_ms")),
        (f"growth of the whole step{tokens}", "the least times of both", longer, grew("total_ms")),
    ]
    return [Hypothesis(*row) for row in rows]


def backward_twice_forward(data: claims.Data) -> list[Found]:
    """Find backward to forward in the same iteration, for each eager fp32 step."""
    steps = claims.rows(data, "step", mode="train_step", precision="fp32", compiled=False, **PLAIN)
    steps = tidy.with_quotient(steps, "backward_to_forward", "backward_ms", "forward_ms")
    return claims.medians(steps, "backward_to_forward", about(2), claims.SIZED)


def all_switches(steps: pd.DataFrame) -> Statement:
    """Say how much faster the step with the most switches on is than the plain one."""
    table = compare.against_plain(steps)
    if table.empty:
        return Statement("No step was measured with several switches on.", sentences.NO_DATA, "train_step")
    best = min(table.to_dict("records"), key=lambda row: row["ratio"].value)
    case = {name: best[name] for name in steps.attrs["fields"]}
    switches = [tidy.word(name, case[name]) for name in CATALOG["step"].baseline if name != "mode"]
    return sentences.compare(
        steps, "total_ms", case, baselines.plain("step", case), f"the step with {sentences.listed(switches)}",
        "the plain one", sentences.at("at size {size}, context {context_length}", case),
    )  # fmt: skip
