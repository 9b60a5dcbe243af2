"""The hypotheses of the chapters on models: what FLOPs, bytes and the roofline predict, from the counts in the records
and the measured ceilings; measures nothing.

A least time is that of the roofline (Williams, Waterman and Patterson 2009): operations at the ceiling of matrix
products, or bytes at the ceiling of memory.
"""

import math
from collections.abc import Mapping

import pandas as pd

from lib.chapters import kernels as profiles
from lib.chapters import memory as occupancy
from lib.chapters import precision, warmup
from lib.chapters.precision import TERM, TERMS
from lib.instruments import kernel_classes
from lib.report import hypotheses, tidy
from lib.report.hypotheses import LEAST, MOST, Hypothesis, counted

MIB = 2**20
# of the significand, the hidden one included (IEEE 754; bf16 is the upper half of fp32)
BITS = {"fp32": 24, "fp16": 11, "bf16": 8}


def limits(ceilings: pd.DataFrame) -> tuple[dict[str, float], float]:
    """FLOP/s of matrix products by precision, and bytes/s of memory, NaN where it was not measured."""
    copies = tidy.ceiling(ceilings, ["copy", "triad", "add"], "moved_bytes")
    return tidy.ceiling(ceilings, "matmul", "flops"), max(copies.values(), default=math.nan)


def _at(case: Mapping) -> str:
    """Where a model was measured, in a few words behind a comma; nothing where it was not."""
    return f", {case['size']} at {case['context_length']}" if case.get("size") else ""


def of_step(every: pd.DataFrame, ceilings: pd.DataFrame) -> list[Hypothesis]:
    """The training step: its phases, its least time and its growth with the context."""
    peaks, speed = limits(ceilings)
    steps = tidy.select(every, mode="train_step")
    steps = tidy.with_quotient(steps, "backward_to_forward", "backward_ms", "forward_ms")
    steps = tidy.with_percent_of(steps, "mfu_percent", "forward_flops", peaks, times=3)
    steps = tidy.with_least_time(steps, peaks, {"memory": speed} if speed > 0 else {})
    plain = {"precision": "fp32", "compiled": False}
    head = tidy.largest(steps, "parameters", **plain)
    short, long = hypotheses.ends(steps, "context_length", tidy.largest(steps, "context_length", **plain))
    flops, back, optimizer, least = (
        hypotheses.value(steps, name, head)
        for name in ("forward_flops", "backward_flops", "optimizer_bytes", "least_ms")
    )
    products = 1e3 * 3 * flops / peaks.get("fp32", math.nan)
    grown = hypotheses.value(steps, "forward_flops", long) / hypotheses.value(steps, "forward_flops", short)
    longer = hypotheses.value(steps, "least_ms", long) / hypotheses.value(steps, "least_ms", short)
    tokens = f", {long['size']}, {short['context_length']} to {long['context_length']}" if long.get("size") else ""
    return [
        Hypothesis(
            f"backward to forward{_at(head)}", "FLOPs of products, 2F to F", back / flops,
            hypotheses.median(steps, "backward_to_forward", head),
        ),
        Hypothesis(
            f"optimizer, ms{_at(head)}", "28 bytes a parameter at memory's ceiling", 1e3 * optimizer / speed,
            hypotheses.median(steps, "optimizer_ms", head),
        ),
        Hypothesis(
            f"whole step, ms{_at(head)}", "products, then bytes, at the ceilings", least,
            hypotheses.median(steps, "total_ms", head), LEAST,
        ),
        Hypothesis(
            f"MFU, %{_at(head)}", "the products' part of that time", 100 * products / least,
            hypotheses.median(steps, "mfu_percent", head), MOST,
        ),
        Hypothesis(
            f"growth of the forward pass{tokens}", "FLOPs, 2NBT + 4LBT²d", grown,
            hypotheses.ratio(steps, "forward_ms", long, short),
        ),
        Hypothesis(
            f"growth of the whole step{tokens}", "the least times of both", longer,
            hypotheses.ratio(steps, "total_ms", long, short),
        ),
    ]  # fmt: skip


def of_warmup(starts: pd.DataFrame) -> list[Hypothesis]:
    """Ten steps after none and after one warm-up, if a single step is long and the others are equal."""
    found, first = [], warmup.steady(starts)
    after = warmup.after_warmups(starts)
    after = after[after["phase"] == warmup.WHOLE] if len(after) else after
    n = warmup.FOLLOWING
    for _, row in first.iterrows():
        case = {name: row[name] for name in starts.attrs["fields"]}
        rows = tidy.select(after, **case).set_index("warmups") if len(after) else after
        measured = {w: rows.loc[w] if w in rows.index else {"deviation_percent": None, "ratio": None} for w in (0, 1)}
        r, at = row["first_ratio"].value if row["first_ratio"] else math.nan, _at(row)
        found += [
            Hypothesis(
                f"deviation without warm-up, %{at}", "√n (r - 1) / (n - 1 + r), r measured",
                100 * math.sqrt(n) * (r - 1) / (n - 1 + r), measured[0]["deviation_percent"],
            ),
            Hypothesis(
                f"mean without warm-up to that after five{at}", "(n - 1 + r) / n, r measured", (n - 1 + r) / n,
                measured[0]["ratio"],
            ),
            Hypothesis(
                f"mean after one warm-up to that after five{at}", "all is done once, in the first step", 1.0,
                measured[1]["ratio"],
            ),
        ]  # fmt: skip
    return found or [Hypothesis("the first step", "all is done once, in it", None, None)]


def of_kernels(kernels: pd.DataFrame, ceilings: pd.DataFrame) -> list[Hypothesis]:
    """The share of matrix products by the roofline, and softmax beside the products of attention."""
    peaks, speed = limits(ceilings)
    head = profiles.head(kernels)
    chosen, peak = tidy.select(kernels, **head), peaks.get(head["precision"], math.nan)
    shares = []
    for phases in (profiles.SCOPES["forward"], profiles.SCOPES["whole step"]):
        products = (
            sum(hypotheses.value(kernels, f"{phase}_flops", head) for phase in phases if phase != "optimizer") / peak
        )
        moved = sum(hypotheses.value(kernels, f"{phase}_bytes", head) for phase in phases) / speed
        shares.append(100 * products / (products + moved))
    softmax = profiles.softmax_to_products(chosen, "forward") or {"time": None, "flops": math.nan, "bytes": math.nan}
    how = "FLOPs and least bytes at the ceilings"
    return [
        Hypothesis(
            f"products of the forward pass, %{_at(head)}", how, shares[0],
            profiles.share(chosen, "forward", kernel_classes.PRODUCT),
        ),
        Hypothesis(
            f"products of the whole step, %{_at(head)}", how, shares[1],
            profiles.share(chosen, "whole step", kernel_classes.PRODUCT),
        ),
        Hypothesis("the latter share to the former", how, shares[1] / shares[0], profiles.fall(chosen)),
        Hypothesis("softmax to products, time forward", "FLOPs, 5 / 4d", softmax["flops"], softmax["time"]),
        Hypothesis("softmax to products, time forward", "least bytes", softmax["bytes"], softmax["time"]),
    ]  # fmt: skip


def stalls_at(term: float, bits: int) -> float:
    """The power of two at which a growing sum takes in nothing more of such a term: the first whose spacing is more
    than twice the term (Higham 2002, chapter 4)."""
    return 2.0 ** (math.floor(math.log2(term)) + 1 + bits)


def of_precision(records: pd.DataFrame, steps: pd.DataFrame, ceilings: pd.DataFrame) -> list[Hypothesis]:
    """The sums by the spacing of numbers, and a step in bf16 by the ceilings."""
    loops, found = precision.rows(records, "loops"), []
    for name, bits in BITS.items():
        loop = loops[loops["loop"] == f"{name} += {name}"] if len(loops) else loops
        sum_, end = (float(loop["sum"].iloc[0]) if len(loop) else math.nan), stalls_at(TERM, bits)
        if end < TERMS * TERM:
            how = "the sum whose spacing is more than twice a term"
            found.append(Hypothesis(f"a thousand times 0.01 in {name}", how, end, counted(sum_)))
        else:
            bound = TERMS * 2.0**-bits * TERMS * TERM  # a rounding for each term, n - 1 additions and its own storing
            off = counted(abs(sum_ - TERMS * TERM))
            found.append(Hypothesis(f"error of a thousand times 0.01 in {name}", "n u Σ|x|, u = 2⁻ᵖ", bound, off, MOST))
    peaks, speed = limits(ceilings)
    steps = tidy.with_least_time(steps, peaks, {"memory": speed} if speed > 0 else {})
    half = tidy.largest(steps, "parameters", precision="bf16", compiled=False)
    single = {**half, "precision": "fp32"} if half["precision"] else half
    faster = peaks.get("fp32", math.nan) / peaks.get("bf16", math.nan)
    least = hypotheses.value(steps, "least_ms", half) / hypotheses.value(steps, "least_ms", single)
    return [
        *found,
        Hypothesis(
            f"forward pass, bf16 to fp32{_at(half)}", "the ceilings of products", faster,
            hypotheses.ratio(steps, "forward_ms", half, single),
        ),
        Hypothesis(
            f"whole step, bf16 to fp32{_at(half)}", "least times, products and bytes", least,
            hypotheses.ratio(steps, "total_ms", half, single),
        ),
    ]  # fmt: skip


def _logits_mib(case: Mapping) -> float:
    """The logits of a case with the assignment's vocabulary, in single precision."""
    if not case["size"]:
        return math.nan
    shape = occupancy.shape(case["size"], int(case["context_length"]))
    return 4 * case["batch_size"] * shape.context_length * shape.vocab_size / MIB


def of_memory(memory: pd.DataFrame) -> list[Hypothesis]:
    """Peaks by the formula, what a step holds throughout, and single tensors by their shapes."""
    plain = tidy.select(memory, checkpoint=0)
    head = tidy.largest(plain, "parameters", precision="fp32", mode="train_step")
    long = tidy.largest(plain, "context_length", precision="fp32", mode="train_step")
    free, kept = ({**head, "mode": mode} for mode in ("no_grad", "forward"))
    narrow = {**long, "precision": "bf16"} if long["precision"] else long

    def of(case: Mapping, name: str) -> float:
        return hypotheses.value(plain, name, case)

    record = tidy.select(plain, **long)
    rows = record.iloc[0].get("largest") if len(record) else None
    biggest = rows["each_mib"][0] if isinstance(rows, dict) else None
    return [
        Hypothesis(
            f"peak of a step, MiB{_at(head)}", "closed formula", of(head, "formula_mib"), counted(of(head, "peak_mib"))
        ),
        Hypothesis(
            f"alive after the step, MiB{_at(head)}", "16 bytes a parameter", 16 * of(head, "parameters") / MIB,
            counted(of(head, "optimizer_end_mib")), LEAST,
        ),
        Hypothesis(
            f"a tensor of the residual stream, MiB{_at(head)}", "B T d × 4 bytes", of(head, "residual_mib"),
            counted(of(head, "residual_observed_mib")),
        ),
        Hypothesis(
            f"peak of no_grad to that of forward{_at(head)}", "closed formula",
            of(free, "formula_mib") / of(kept, "formula_mib"), counted(of(free, "peak_mib") / of(kept, "peak_mib")),
        ),
        Hypothesis(
            f"peak of a step, bf16 to fp32{_at(long)}", "closed formula",
            of(narrow, "formula_mib") / of(long, "formula_mib"),
            counted(of(narrow, "peak_mib") / of(long, "peak_mib")),
        ),
        Hypothesis(
            f"the largest allocation, MiB{_at(long)}", "logits, BTV × 4 bytes, or scores, BhT² × 4",
            max(_logits_mib(long), of(long, "scores_mib")), counted(biggest),
        ),
    ]  # fmt: skip
