"""Sentences that are computed from records of profiled steps; knows not how they are profiled.

Each takes the records of the experiment and the fields of one case.
"""

from collections.abc import Mapping

import pandas as pd

from lib.chapters import kernels
from lib.instruments import kernel_classes
from lib.report import sentences, tidy
from lib.report.sentences import NO_DATA, Statement, of_records
from lib.stats import comparisons, digits, intervals
from lib.stats.intervals import Interval

NON_TRIVIAL = 2  # percent of the forward pass from which on what takes it is worth naming


def _missing(what: str) -> Statement:
    return Statement(f"{what} was not measured here.", NO_DATA, "records of profiled steps in fp32")


def _measured(text: str, case: Mapping, of: Interval, verdict: str = "measured") -> Statement:
    fields = ", ".join(f"{name} {value}" for name, value in case.items())
    many = ("process" if of.n == 1 else "processes") + ("" if of.known else ", too few for an interval")
    return Statement(text, verdict, f"{fields}; one value in each of {of.n} {many}.")


def _shown(of: Interval) -> str:
    """The value with its interval, or alone where the evidence says that there is none."""
    return digits.interval(of) if of.known else digits.number(of.value)


@of_records()
def agreement(records: pd.DataFrame, case: Mapping) -> Statement:
    """How long the forward pass takes under the profiler, and whether the timer agrees."""
    found = kernels.against_timer(tidy.select(records, **case))
    found = found[found["phase"] == "forward"]
    if found.empty:
        return _missing("The forward pass under the profiler")
    row = found.iloc[0]
    ratio, limit = row["profiled_ratio"], 1 + comparisons.MARGIN
    profiled, timed = (_shown(row[name]) for name in ("profiled_ms", "timed_ms"))
    text = f"Under the profiler the forward pass takes {profiled} ms, and by the timer without it {timed} ms"
    if not ratio.known:
        said, verdict = (
            f"the first is {digits.number(ratio.value)} times the second, in one or two processes",
            "measured",
        )
    elif 1 / limit < ratio.low and ratio.high < limit:
        said, verdict = f"the two agree within {comparisons.MARGIN:.0%}, with a ratio of {_shown(ratio)}", "same"
    elif ratio.low > 1 or ratio.high < 1:
        verdict = "slower" if ratio.low > 1 else "faster"
        said = f"the two differ, since the first is {_shown(ratio)} times the second"
    else:
        said, verdict = (
            f"their ratio is {_shown(ratio)}, so no difference between them is shown",
            "inconclusive",
        )
    return _measured(f"{text}: {said}.", case, ratio, verdict)


@of_records()
def leader(records: pd.DataFrame, case: Mapping) -> Statement:
    """What takes the most of the forward pass, and whether it does of forward and backward together too."""
    chosen = tidy.select(records, **case)
    first, both = (kernels.leaders(chosen, scope) for scope in ("forward", "forward and backward"))
    if not first:
        return _missing("Which kernel takes the most of the forward pass")
    names = [list(dict.fromkeys(one["kernel"] for one in found)) for found in (first, both)]
    share = [intervals.of_processes([one["share_percent"] for one in found]) for found in (first, both)]
    calls = [f"{digits.count(found[0]['calls'])} calls" for found in (first, both)]
    if max(map(len, names)) > 1:
        text = f"In the forward pass {_listed(names[0])} takes the most time, depending on the process"
        return _measured(f"{text}, and of forward and backward together {_listed(names[1])}.", case, share[0])
    text = f"In the forward pass {names[0][0]} takes the most time, {_shown(share[0])}% of it in {calls[0]}"
    if names[0] == names[1]:
        second = f"and it is the same that takes the most of forward and backward together, {_shown(share[1])}%"
    else:
        second = f"but of forward and backward together it is {names[1][0]}, with {_shown(share[1])}%"
    return _measured(f"{text}, {second} in {calls[1]}.", case, share[0])


@of_records()
def besides(records: pd.DataFrame, case: Mapping) -> Statement:
    """What takes a share of the forward pass that is worth naming and is no matrix product."""
    found = kernels.top(records, case, most=100)
    if found.empty:
        return _missing("What else takes time in the forward pass")
    found = found[(found["phase"] == "forward") & (found["class"] != kernel_classes.PRODUCT)]
    named = [(name, of) for name, of in zip(found["kernel"], found["share_percent"], strict=True)]
    named = [(name, of) for name, of in named if of.value >= NON_TRIVIAL]
    whole = kernels.share(tidy.select(records, **case), "forward")
    lead = f"What is no matrix product takes {_shown(whole)}% of the forward pass"
    if not named:
        return _measured(f"{lead}, and none of it as much as {NON_TRIVIAL}%.", case, whole)
    shown = _listed([f"{name} with {_shown(of)}%" for name, of in named], "and")
    return _measured(f"{lead}; of it {NON_TRIVIAL}% and more go to {shown}.", case, whole)


@of_records()
def fall(records: pd.DataFrame, case: Mapping) -> Statement:
    """How the share of matrix products changes from the forward pass to the whole step."""
    chosen = tidy.select(records, **case)
    found = [kernels.share(chosen, scope, kernel_classes.PRODUCT) for scope in kernels.SCOPES]
    if None in found:
        return _missing("The share of matrix products in a whole step")
    forward, both, step = map(_shown, found)
    change = kernels.fall(chosen)
    falls = change.high < 1 if change.known else change.value < 1
    rises = change.low > 1 if change.known else change.value > 1
    how = "falls" if falls else "rises" if rises else "is not shown to change"
    place = sentences.at("At size {size}, context {context_length}, ", case)
    text = (
        f"{place}matrix products take {forward}% of the forward pass, {both}% of forward and backward and {step}% of a "
        f"whole step with AdamW: from the first to the last their share {how}, being {_shown(change)} of the first"
    )
    return _measured(f"{text}.", case, change)


@of_records()
def softmax(records: pd.DataFrame, case: Mapping) -> Statement:
    """Softmax against the matrix products of self-attention, in time and in FLOPs, forward and backward."""
    chosen = tidy.select(records, **case)
    found = {phase: kernels.softmax_to_products(chosen, phase) for phase in ("forward", "backward")}
    said = [_softmax_in(phase, ratios) for phase, ratios in found.items() if ratios]
    if not said:
        return _missing("Softmax inside attention")
    text = f"Inside self-attention, softmax takes {', and '.join(said)}"
    return _measured(f"{text}.", case, found["forward"]["time"])


def _softmax_in(phase: str, ratios: Mapping) -> str:
    text = f"in the {phase} pass {_shown(ratios['time'])} times as long as the two products"
    flops, moved = (digits.number(100 * ratios[unit]) for unit in ("flops", "bytes"))
    return f"{text}, with {flops}% of their FLOPs and {moved}% of the bytes that they must move"


@of_records()
def nsys(records: pd.DataFrame) -> Statement:
    """Whether Nsight Systems watched these cases, or why it did not."""
    if any(isinstance(table, dict) for table in tidy.column(records, "nsys")):
        return Statement("The same cases ran under Nsight Systems.", "measured", "nsys stats, report nvtx_kern_sum")
    reasons = list(dict.fromkeys(tidy.column(records, "nsys_missing").dropna()))
    if not reasons:
        return _missing("The same under Nsight Systems")
    return Statement(f"Nsight Systems was not used here: {_listed(reasons, 'and')}.", NO_DATA, "nsys_missing")


def _listed(words: list[str], by: str = "or") -> str:
    return f" {by} ".join([", ".join(words[:-1]), words[-1]]) if len(words) > 1 else words[0]
