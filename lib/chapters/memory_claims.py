"""Sentences about memory, computed from the records of one iteration each: counts, which have no interval; measures
nothing.
"""

import itertools
import math
import statistics
from collections.abc import Mapping

import pandas as pd

from lib.chapters import memory
from lib.report import sentences, tidy
from lib.report.sentences import Statement, of_records
from lib.stats import digits


def _number(record: pd.Series, name: str) -> float | None:
    value = record.get(name)
    return statistics.median(value) if isinstance(value, list) and value else None


def _compared(of: pd.Series, to: pd.Series, name: str) -> tuple[float, float] | None:
    values = _number(of, name), _number(to, name)
    return None if None in values else values


MISSING = Statement("This was not measured here.", sentences.NO_DATA, "memory")


@of_records()
def phases_told(records: pd.DataFrame, case: Mapping) -> Statement:
    """Whether the phases of a step can be told from its peaks: which is highest, and where its memory falls."""
    record = memory.one(records, case)
    found = {phase: _number(record, f"{phase}_peak_mib") for phase in ("forward", "backward", "optimizer")}
    ends = {phase: _number(record, f"{phase}_end_mib") for phase in found}
    if None in (*found.values(), *ends.values()):
        return MISSING
    highest = max(found, key=found.get)
    peaks = ", ".join(f"{digits.number(value, 0)} MiB in the {phase}" for phase, value in found.items())
    fall = digits.number(ends["forward"] - ends["backward"], 0)
    direction = "falls" if ends["forward"] > ends["backward"] else "grows"
    text = f"The highest point of the step is in its {highest}: the peaks are {peaks}."
    turn = (
        f"From the end of the forward pass to that of the backward pass live memory {direction} by "
        f"{fall.lstrip('-')} MiB, since activations are freed and gradients made."
    )
    differ = min(abs(a - b) / max(a, b) for a, b in itertools.combinations(found.values(), 2))
    told = "The phases can be told apart by their peaks" if differ > 0.01 else (
        "Two peaks differ by less than 1%, so the phases are told by the slope and not by the peaks"
    )  # fmt: skip
    return Statement(f"{text} {turn} {told}.", "measured", f"peaks and ends of the phases, {memory.described(record)}")


@of_records()
def agreement(records: pd.DataFrame) -> Statement:
    """How far the prediction and the formula lie from the measured peaks."""
    said = []
    for name, word in (("predicted_peak_mib", "the prediction"), ("formula_mib", "the formula")):
        pairs = [(_number(r, name), _number(r, "peak_mib")) for _, r in records.iterrows()]
        off = [100 * (a / b - 1) for a, b in pairs if a is not None and b is not None]
        if off:
            most = max(off, key=abs)
            far = "exact" if most == 0 else f"at most {digits.number(abs(most))}% too {'high' if most > 0 else 'low'}"
            said.append(f"{word} is {far} over {digits.count(len(off))} cases")
    if not said:
        return MISSING
    return Statement(f"Against the measured peaks, {' and '.join(said)}.", "measured", "peak_mib, each case once.")


def amount(records: pd.DataFrame, metric: str, case: Mapping, wording: str) -> Statement:
    """`wording` with the MiB of a case in the place of {}: a count, which has no interval."""
    value = _number(memory.one(records, case), metric)
    if value is None:
        return MISSING
    return Statement(
        wording.format(digits.number(value, 0)),
        "measured",
        f"{metric}, {memory.described(memory.one(records, case))}",
        sentences.names(records, case),
    )


@of_records("context_length")
def growth(records: pd.DataFrame, case: Mapping, subject: str) -> Statement:
    """How the peak grows between the two longest contexts of a case, as the exponent of a power law."""
    found = {length: _number(memory.one(records, {**case, "context_length": length}), "peak_mib")
             for length in memory.contexts(records, case)}  # fmt: skip
    found = {length: value for length, value in found.items() if value is not None}
    if len(found) < 2:
        return Statement(f"How {subject} grows was not measured here.", sentences.NO_DATA, "fewer than two contexts.")
    low, high = sorted(found)[-2:]
    power = math.log(found[high] / found[low]) / math.log(high / low)
    values = f"from {digits.number(found[low], 0)} to {digits.number(found[high], 0)} MiB"
    text = f"From {low:,} to {high:,} tokens at size {case['size']}, {subject} grows {values}, an exponent of "
    return Statement(f"{text}{digits.number(power)}.", "measured", "peak_mib, counts without interval.")


@of_records("mode", "precision")
def narrower(records: pd.DataFrame, case: Mapping, modes: Mapping[str, str]) -> Statement:
    """What bf16 does to the peaks of a case in fp32, by mode and what it is called."""
    said = []
    for mode, name in modes.items():
        of, to = (memory.one(records, {**case, "mode": mode, "precision": precision}) for precision in ("bf16", "fp32"))
        if found := _compared(of, to, "peak_mib"):
            change = 100 * (found[0] / found[1] - 1)
            said.append(f"{name} by {'+' * (change > 0)}{digits.number(change)}%")
    if not said:
        text = f"What bf16 changes of the peaks at size {case['size']} was not measured here."
        return Statement(text, sentences.NO_DATA, "memory")
    text = (
        f"At size {case['size']}, context {case['context_length']}, bf16 changes the peak of {', that of '.join(said)}."
    )
    return Statement(text, "measured", "peak_mib in bf16 against fp32, counts without interval.")


def residual(size: str, context_length: int) -> Statement:
    """The derived size of a tensor of the residual stream in single precision, of a published model at batch 4."""
    shape = memory.shape(size, context_length)
    mib = shape.batch_size * shape.context_length * shape.d_model * 4 / 2**20
    product = " × ".join(map(digits.count, (shape.batch_size, context_length, shape.d_model, 4)))
    text = f"For {size} it is {product} bytes = {digits.exact(mib)} MiB."
    return Statement(text, "derived", "arithmetic on the shape of the model.")


@of_records()
def scores(records: pd.DataFrame, case: Mapping) -> Statement:
    """Whether the largest allocations of a case are scores of attention, whose size is known in theory."""
    record = memory.one(records, case)
    theory, rows = _number(record, "scores_mib"), record.get("largest")
    if theory is None or not isinstance(rows, dict):
        return MISSING
    makers = [
        (size, maker, count)
        for size, maker, count in zip(rows["each_mib"], rows["function"], rows["count"], strict=True)
    ]
    first = makers[0]
    of_scores = sum(count for size, _, count in makers if abs(size / theory - 1) < 1e-6)
    names = sorted({maker for size, maker, _ in makers if abs(size / theory - 1) < 1e-6})
    text = f"The largest allocation has {digits.number(first[0], 0)} MiB and is made by {first[1]}."
    size = f"A layer's scores take {digits.number(theory, 0)} MiB in theory"
    counts = " of the ".join(map(digits.count, (of_scores, sum(count for *_, count in makers))))
    found = f"; {counts} largest allocations have just that, made by "
    end = f"{found}{', '.join(names)}." if names else "; none of the largest allocations has just that."
    return Statement(f"{text} {size}{end}", "measured", f"largest allocations, {memory.described(record)}")


@of_records("checkpoint")
def saved(records: pd.DataFrame, case: Mapping) -> list[Statement]:
    """What groups save of the peak and of what is kept, each against none."""
    plain = memory.one(records, {**case, "checkpoint": 0})
    chosen = tidy.select(records, **{name: value for name, value in case.items() if name != "checkpoint"})
    said = []
    for size in sorted(set(chosen["checkpoint"]) - {0}):
        record = memory.one(chosen, {"checkpoint": size})
        kept, peak = (_compared(record, plain, name) for name in ("forward_end_mib", "peak_mib"))
        if kept and peak:
            shares = [digits.number(100 * (1 - a / b)) for a, b in (kept, peak)]
            parts = f"{shares[0]}% of what is alive after the forward pass and {shares[1]}% of the peak"
            text = f"Groups of {size} save {parts}."
            said.append(Statement(text, "measured", f"peak {peak[0]:.1f} MiB against {peak[1]:.1f}."))
    return said or [MISSING]


def best_group(table: pd.DataFrame) -> Statement:
    """Which size of group has the least peak."""
    found = {row["checkpoint"]: row["peak_mib"].value for _, row in table.iterrows() if row["peak_mib"] is not None}
    if len(found) < 2:
        return MISSING
    best = min(found, key=found.get)
    spread = 100 * (max(value for size, value in found.items() if size) / found[best] - 1)
    text = (
        f"The least peak is that of groups of {best}; that of no other is more than {digits.number(spread)}% above it."
    )
    return Statement(text, "measured", "peak_mib, one iteration of each.", table.attrs["records"])
