"""The hypotheses of the chapters on parts of a model: attention, its module, what is compiled, the optimizer; as in
`lib.chapters.step`, and measures nothing.
"""

import math

import pandas as pd

from lib.chapters import attention_module
from lib.cost import flops as cost
from lib.cost import memory
from lib.report import hypotheses, tidy
from lib.report.hypotheses import LEAST, MOST, Hypothesis, power
from lib.report.tidy import limits
from lib.stats.intervals import Interval

MIB = 2**20


def of_attention(attention: pd.DataFrame, ceilings: pd.DataFrame) -> list[Hypothesis]:
    """Exponents in the number of tokens, what is kept, the least time, and the mask."""
    peaks, speed = limits(ceilings)
    longest = tidy.largest(attention, "seq_len", precision="fp32", causal=True, cold=False, d_head=64)
    naive = {**longest, "variant": "naive"}
    ends = {name: hypotheses.ends(attention, "seq_len", {**longest, "variant": name}) for name in ("naive", "tiled")}
    times = {name: long["seq_len"] / short["seq_len"] if long["seq_len"] else 0 for name, (short, long) in ends.items()}

    def grows(metric: str, name: str) -> Interval | None:
        short, long = ends[name]
        return power(hypotheses.ratio(attention, metric, long, short), times[name])

    flops, moved = (hypotheses.value(attention, name, naive) for name in ("forward_flops", "moved_bytes"))
    shape = [longest[name] for name in ("batch_size", "seq_len", "d_head", "causal")]
    kept = sum(memory.attention_kept_bytes("naive", *map(int, shape)).values()) / MIB if shape[0] else math.nan
    masked = tidy.largest(
        tidy.select(attention, variant="sdpa", causal=False), "seq_len", precision="fp32", cold=False, d_head=64
    )
    open_, masked = masked, {**masked, "causal": True} if masked["seq_len"] else masked
    seen = [
        cost.attention_flops(1, int(masked["seq_len"]), 1, causal) if masked["seq_len"] else math.nan
        for causal in (True, False)
    ]
    at = f", {longest['seq_len']:,} tokens" if longest["seq_len"] else ""
    return [
        Hypothesis("exponent of naive's time in T", "FLOPs and bytes, T²", 2.0, grows("total_ms", "naive")),
        Hypothesis(
            f"naive, ms{at}", "the longer of FLOPs and bytes at the ceilings",
            1e3 * max(3 * flops / peaks.get("fp32", math.nan), moved / speed),
            hypotheses.median(attention, "total_ms", naive), LEAST,
        ),
        Hypothesis(
            "exponent of what naive keeps", "scores alone, T²", 2.0, grows("forward_end_mib", "naive"), MOST
        ),
        Hypothesis("exponent of what tiled keeps", "one number a query, T", 1.0, grows("forward_end_mib", "tiled")),
        Hypothesis(
            f"naive keeps, MiB{at}", "closed formula", kept, hypotheses.median(attention, "forward_end_mib", naive)
        ),
        Hypothesis(
            "sdpa with the mask to without", "scores that a query may see", seen[0] / seen[1],
            hypotheses.ratio(attention, "total_ms", masked, open_), LEAST,
        ),
    ]  # fmt: skip


def of_module(modules: pd.DataFrame, ceilings: pd.DataFrame) -> list[Hypothesis]:
    """Attention with its projections: growth by FLOPs where they are the limit and by the roofline where bytes may be,
    and its memory."""
    peaks, speed = limits(ceilings)
    modules = attention_module.with_least_time(modules, peaks, {"memory": speed} if speed > 0 else {})
    widest = tidy.largest(modules, "projection_flops", precision="fp32", compiled=False)
    narrower, wider = hypotheses.ends(modules, "d_model", widest)
    brief, longer = hypotheses.ends(modules, "context_length", widest, longest=False)
    shorter, longest = hypotheses.ends(modules, "context_length", widest)

    def exponent(axis: str, metric: str, ends: tuple[dict, dict]) -> float | Interval | None:
        low, high = ends
        times = high[axis] / low[axis] if high[axis] else 0
        if metric == "total_ms":
            return power(hypotheses.ratio(modules, metric, high, low), times)
        fold = hypotheses.value(modules, metric, high) / hypotheses.value(modules, metric, low)
        return math.log(fold) / math.log(times) if times else math.nan

    weights, context = hypotheses.value(modules, "weights_bytes", widest), widest["context_length"] or math.nan
    width, batch = widest["d_model"] or math.nan, widest["batch_size"] or math.nan
    tables = 4 * context * width / (widest["num_heads"] or math.nan)
    arrays = 4 * 4 * batch * context * width
    at = f", C = {widest['d_model']:,}, T = {widest['context_length']:,}" if widest["d_model"] else ""
    steps = f", C = {widest['d_model']:,}, T = {brief['context_length']} to {longer['context_length']}" if at else ""
    rows = [("context_length", (shorter, longest), "T"), ("d_model", (narrower, wider), "C")]
    grown = hypotheses.value(modules, "least_ms", longer) / hypotheses.value(modules, "least_ms", brief)
    return [
        *(
            Hypothesis(
                f"exponent of the time in {letter}{at}", "FLOPs, 8BTC² + 4BT²C", exponent(axis, "forward_flops", ends),
                exponent(axis, "total_ms", ends),
            )
            for axis, ends, letter in rows
        ),
        Hypothesis(
            f"growth of the time{steps}", "the longer of FLOPs and bytes at the ceilings", grown,
            hypotheses.ratio(modules, "total_ms", longer, brief),
        ),
        Hypothesis(
            f"module, ms{at}", "the longer of FLOPs and bytes at the ceilings",
            hypotheses.value(modules, "least_ms", widest), hypotheses.median(modules, "total_ms", widest), LEAST,
        ),
        Hypothesis(
            f"alive after the backward pass, MiB{at}", "32C² bytes, the angles' tables, four arrays of BTC",
            (2 * weights + tables + arrays) / MIB,
            hypotheses.counted(hypotheses.value(modules, "backward_end_mib", widest)),
        ),
    ]  # fmt: skip


def of_compile(records: pd.DataFrame) -> list[Hypothesis]:
    """Compiled to eager attention by the bytes that each must move, and the optimizer, which is not compiled."""
    fp32 = {"precision": "fp32", "compiled": True}
    longest = tidy.largest(records, "seq_len", model="attention", **fp32)
    models = tidy.select(records, model=[name for name in tidy.ORDER if name != "attention"])
    largest = tidy.largest(models, "forward_flops", **fp32)
    moved = {"forward": [math.nan, math.nan], "backward": [math.nan, math.nan]}
    if longest["seq_len"]:
        shape = [int(longest[name]) for name in ("batch_size", "seq_len", "d_head")]
        sides = [cost.attention_moved_bytes(name, *shape, True, "fp32") for name in ("compiled", "naive")]
        moved = {phase: [side[phase] for side in sides] for phase in sides[0]}
    moved["total"] = [sum(both) for both in zip(moved["forward"], moved["backward"], strict=True)]
    words = {"forward": "the forward pass", "backward": "the backward pass", "total": "both passes"}
    at = f", {longest['seq_len']:,} tokens" if longest["seq_len"] else ""

    def measured(phase: str, case: dict) -> Interval | None:
        return hypotheses.ratio(records, f"{phase}_ms", case, {**case, "compiled": False})

    return [
        *(
            Hypothesis(
                f"{words[phase]} of attention, compiled to eager{at}", "least bytes of both", ours / theirs,
                measured(phase, longest),
            )
            for phase, (ours, theirs) in moved.items()
        ),
        Hypothesis(
            f"the optimizer beside a compiled model{', ' + largest['model'] if largest['model'] else ''}",
            "the same program on both sides", 1.0, measured("optimizer", largest),
        ),
    ]  # fmt: skip


def of_adam(adam: pd.DataFrame, ceilings: pd.DataFrame) -> list[Hypothesis]:
    """The optimizer step by its bytes: each variant's time, the running maximum, and the growth with the elements."""
    _, speed = limits(ceilings)
    alike = {"shapes": "equal", "amsgrad": True, "cold": False}
    most = tidy.largest(adam, "elements", **alike)
    at = f", {most['num_params']} × {most['param_size']:,}" if most["num_params"] else ""
    least = 1e3 * hypotheses.value(adam, "moved_bytes", most) / speed
    variants = [{**most, "variant": name} for name in ("single_tensor", "foreach", "fused")]
    plain = tidy.largest(tidy.select(adam, amsgrad=False), "elements", shapes="equal", variant="fused")
    both = {**plain, "amsgrad": True} if plain["variant"] else plain
    short, long = hypotheses.ends(adam, "param_size", {**most, "variant": "fused"})
    times = long["param_size"] / short["param_size"] if long["param_size"] else 0
    return [
        *(
            Hypothesis(
                f"{case['variant']}, ms{at}", "36 bytes an element at memory's ceiling", least,
                hypotheses.median(adam, "total_ms", case),
            )
            for case in variants
        ),
        Hypothesis(
            "fused, amsgrad to none", "36 bytes to 28", cost.adam_bytes(1, True) / cost.adam_bytes(1, False),
            hypotheses.ratio(adam, "total_ms", both, plain),
        ),
        Hypothesis(
            f"exponent of fused's time in the elements of each{at}", "bytes, one after the other", 1.0,
            power(hypotheses.ratio(adam, "total_ms", long, short), times),
        ),
    ]  # fmt: skip
