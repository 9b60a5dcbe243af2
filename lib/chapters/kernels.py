"""Tell where the time of a step goes: its kernels, predictions and published claims."""

import math
from collections.abc import Mapping

import pandas as pd

from lib.chapters import accounts, profiles
from lib.instruments import kernel_classes
from lib.instruments.kernel_classes import PRODUCT
from lib.report import claims, hypotheses, roofline, sentences, tidy
from lib.report.claims import LESS, Found, about
from lib.report.hypotheses import Hypothesis
from lib.report.published import published_table
from lib.report.sentences import NO_DATA, Statement, of_records
from lib.stats import comparisons, digits
from lib.stats.comparisons import SAME
from lib.stats.intervals import Interval

NON_TRIVIAL = 2  # percent of the forward pass; kernels that take less are not named


def published_shares() -> pd.DataFrame:
    """Return published shares of matrix products and of all else, one row per scope.

    Both are lower limits, since only the largest kernels are printed. The table of a whole step does not show which
    kernels the optimizer launched."""
    table = published_table("kernels")
    scopes = {"forward": "forward", "forward_backward": "forward and backward", "train_step": "whole step"}
    product = table["kernel"].map(kernel_classes.classify) == PRODUCT
    column = product.map({True: "matrix_product_percent", False: "else_percent"})
    table = table.assign(scope=table["phase"].map(scopes), column=column)
    keys = ["source", "scope"]
    return table.pivot_table(index=keys, columns="column", values="share_percent", aggfunc="sum").reset_index()


def _not_measured(what: str, records: pd.DataFrame) -> Statement:
    """Say that something was not measured, and why the profiler saw nothing if these records tell."""
    text = ": ".join(filter(None, (f"{what} was not measured here", _unseen_reasons(records))))
    return sentences.missing(f"{text}.")


def _unseen_reasons(records: pd.DataFrame) -> str:
    """Return why the profiler saw no kernels in some of these records, or nothing."""
    return "; ".join(dict.fromkeys(tidy.column(records, "profiler_missing").dropna()))


@of_records()
def unseen(records: pd.DataFrame) -> Statement:
    """Say in how many records the profiler saw no kernels, and why."""
    if records.empty:
        return sentences.missing("No step was profiled here.")
    lacking, every = digits.count(tidy.column(records, "profiler_missing").notna().sum()), digits.count(len(records))
    reasons = _unseen_reasons(records)
    text = f"The profiler saw no kernels in {lacking} of {every} records: {reasons}"
    return Statement(
        f"{text}." if reasons else "The profiler recorded kernels or operators in every record.", "measured",
        "profiler_missing in these records.",
    )  # fmt: skip


def _state(text: str, case: Mapping, of: Interval, verdict: str = "measured") -> Statement:
    many = ("process" if of.n == 1 else "processes") + ("" if of.known else ", too few for an interval")
    return Statement(text, verdict, f"{sentences.fields(case)}; one value in each of {of.n} {many}.")


@of_records()
def agreement(records: pd.DataFrame, case: Mapping) -> Statement:
    """State how long the forward pass takes under the profiler and by the timer."""
    row = tidy.one(profiles.against_timer(tidy.select(records, **case)), {"phase": "forward"})
    if row.empty:
        return _not_measured("The forward pass under the profiler", tidy.select(records, **case))
    ratio = row["profiled_ratio"]
    profiled, timed = (digits.brief(row[name]) for name in ("profiled_ms", "timed_ms"))
    verdict = comparisons.verdicts([comparisons.estimated(ratio)])[0] if ratio.known else "measured"
    said = f"{sentences.times(ratio)} as long" if ratio.known else f"{digits.number(ratio.value)}× as long"
    said = f"the same within {comparisons.MARGIN:.0%}" if verdict == SAME else said
    text = f"The forward pass takes {timed} ms by the timer and {profiled} ms under the profiler: {said}."
    return _state(text, case, ratio, verdict)


@of_records()
def leader(records: pd.DataFrame, case: Mapping) -> Statement:
    """State which kernel takes the most of the forward pass, and of both passes."""
    chosen = tidy.select(records, **case)
    found = [profiles.leaders(chosen, scope) for scope in ("forward", "forward and backward")]
    if found[0].empty:
        return _not_measured("Which kernel takes the most of the forward pass", chosen)
    forward, both = (list(of["kernel"].unique()) for of in found)
    share, of_both = (profiles.summary("percent", list(of["share_percent"])) for of in found)
    calls = [f"{digits.count(of['calls'].iloc[0])} calls" for of in found]
    most = f"In the forward pass {sentences.listed(forward, 'or')} takes the most time,"
    if len(forward) > 1 or len(both) > 1:
        rest = f"depending on the process, and of forward and backward together {sentences.listed(both, 'or')}."
        return _state(f"{most} {rest}", case, share)
    second = f"but of forward and backward together it is {both[0]}, with"
    if forward == both:
        second = "and also of forward and backward together,"
    text = f"{most} {digits.brief(share)}% of it in {calls[0]}, {second} {digits.brief(of_both)}% in {calls[1]}."
    return _state(text, case, share)


@of_records()
def besides(records: pd.DataFrame, case: Mapping) -> Statement:
    """State which kernels besides matrix products take much of the forward pass."""
    found = tidy.select(profiles.top(records, case, most=100), phase="forward")
    if found.empty:
        return _not_measured("What else takes time in the forward pass", tidy.select(records, **case))
    found = found[found["class"] != PRODUCT]
    named = zip(found["kernel"], found["share_percent"], strict=True)
    shown = [f"{name} with {digits.brief(of)}%" for name, of in named if of.value >= NON_TRIVIAL]
    whole = profiles.share(tidy.select(records, **case), "forward")
    end = f"at least {NON_TRIVIAL}% each: {sentences.listed(shown)}" if shown else f"none of it takes {NON_TRIVIAL}%"
    return _state(f"{digits.brief(whole)}% of the forward pass is not matrix products; {end}.", case, whole)


@of_records()
def fall(records: pd.DataFrame, case: Mapping) -> Statement:
    """State how matrix products' share changes from forward pass to whole step."""
    chosen = tidy.select(records, **case)
    found = [profiles.share(chosen, scope, PRODUCT) for scope in profiles.SCOPES]
    change = profiles.kept_share(chosen)
    if None in found or change is None:
        return _not_measured("The share of matrix products in a whole step", chosen)
    forward, both, step = map(digits.brief, found)
    why = ": AdamW has no products" if change.known and change.high < 1 else ""
    text = sentences.at("At size {size}, context {context_length}, ", case) + (
        f"matrix products take, under the profiler, {forward}% of the operators' time in the forward pass, {both}% in "
        f"forward and backward and {step}% in the whole step{why}."
    )
    return _state(text, case, change)


@of_records()
def softmax(records: pd.DataFrame, case: Mapping) -> Statement:
    """Compare softmax with attention's matrix products in time, FLOPs and bytes."""
    chosen = tidy.select(records, **case)
    found = {phase: profiles.softmax_to_products(chosen, phase) for phase in ("forward", "backward")}
    if not found["forward"]:
        return _not_measured("Softmax inside attention", chosen)
    said = [
        f"{digits.brief(of['time'].scaled(100))}% as long as attention's two products in the {phase} pass, with "
        f"{digits.number(100 * of['flops'])}% of their FLOPs and {digits.number(100 * of['bytes'])}% of their bytes"
        for phase, of in found.items() if of
    ]  # fmt: skip
    text = f"Softmax takes {', and '.join(said)}."
    return _state(text, case, found["forward"]["time"])


def answer(records: pd.DataFrame, case: Mapping, ceilings: pd.DataFrame) -> Statement:
    """Account for the step, or else say what share of it matrix products take."""
    accounted = accounts.answer(records, case, ceilings)
    return fall(records, case) if accounted.verdict == NO_DATA else accounted


def theory(records: pd.DataFrame, ceilings: pd.DataFrame) -> list[Hypothesis]:
    """Predict matrix products' share by the roofline, and softmax to products."""
    peaks, speed = roofline.limits(ceilings)
    case = profiles.headline_case(records)
    chosen, peak = tidy.select(records, **case), peaks.get(case["precision"], math.nan)
    expected = []
    for products, scope in (("forward",), "forward"), (("forward", "backward"), "whole step"):
        flops = sum(hypotheses.value(chosen, f"{phase}_flops", {}) for phase in products)
        moved = sum(hypotheses.value(chosen, f"{phase}_bytes", {}) for phase in profiles.SCOPES[scope])
        expected.append(100 * flops / peak / (flops / peak + moved / speed))
    forward, step = (profiles.share(chosen, scope, PRODUCT) for scope in ("forward", "whole step"))
    ratio = profiles.softmax_to_products(chosen, "forward") or {"time": None, "flops": math.nan, "bytes": math.nan}
    how, at = "FLOPs and least bytes at the ceilings", sentences.at(", {size} at {context_length}", case)
    return [
        Hypothesis(f"products of the forward pass, %{at}", how, expected[0], forward),
        Hypothesis(f"products of the whole step, %{at}", how, expected[1], step),
        Hypothesis("the latter share to the former", how, expected[1] / expected[0], profiles.kept_share(chosen)),
        Hypothesis("softmax to products, time forward", "FLOPs, 5 / 4d", ratio["flops"], ratio["time"]),
        Hypothesis("softmax to products, time forward", "least bytes", ratio["bytes"], ratio["time"]),
    ]


def _head_records(data: claims.Data) -> pd.DataFrame:
    """Return the records of the chapter's case; none if printed."""
    records = claims.rows(data, "kernels")
    none = records.empty or claims.printed(records)
    return records.iloc[:0] if none else tidy.select(records, **profiles.headline_case(records))


def _estimated(of: str, value: Interval | None, within: claims.Limits, records: pd.DataFrame) -> list[Found]:
    """Return a number of the chapter's case; nothing if it was not measured."""
    return [claims.estimated(of, value, within, claims.names(records))] if value else []


def _find_product_share(data: claims.Data, scope: str, within: claims.Limits) -> list[Found]:
    label, printed = f"% of the {scope if scope == 'whole step' else scope + ' pass'}", claims.rows(data, "kernels")
    if claims.printed(printed):
        row = tidy.one(printed, {"scope": scope})
        return [claims.between(label, row["matrix_product_percent"], 100 - row["else_percent"], within)]
    records = _head_records(data)
    return _estimated(label, profiles.share(records, scope, PRODUCT), within, records)


def products_of_forward(data: claims.Data) -> list[Found]:
    """Find the share of matrix products in the forward pass."""
    return _find_product_share(data, "forward", (85, 100))


def products_of_step(data: claims.Data) -> list[Found]:
    """Find matrix products' share of a whole step, and relative to the forward pass."""
    found, records = _find_product_share(data, "whole step", about(68, 0.1)), _head_records(data)
    return found + _estimated("of the share in the forward pass", profiles.kept_share(records), LESS, records)


def top_kernel(data: claims.Data) -> list[Found]:
    """Find whether one kernel takes the most of the forward pass and of both passes."""
    every = (1.0, 1.0)
    if claims.printed(claims.rows(data, "kernels")):
        table = published_table("kernels")
        tops = [table[table["phase"] == phase].nlargest(2, "total_us") for phase in ("forward", "forward_backward")]
        same = set(tops[0]["kernel"]) == set(tops[1]["kernel"])
        said = "the same" if same else "not the same"
        return [claims.exact("two kernels at the top of both", float(same), every, shown=said)]
    records = _head_records(data)
    first, both = (profiles.leaders(records, scope)["kernel"] for scope in ("forward", "forward and backward"))
    same, shown = first == both, f"{(first == both).sum()} of {len(first)}"
    label = "processes have the same kernel at the top of both"
    return [claims.exact(label, same.mean(), every, claims.names(records), shown)] if len(same) else []


def softmax_share(data: claims.Data) -> list[Found]:
    """Find softmax's share of attention's time and FLOPs in the forward pass."""
    records = _head_records(data)
    row = tidy.one(profiles.parts(records), {"phase": "forward", "part": "softmax"})
    if row.empty:
        return []
    flops = claims.exact("% of its FLOPs", row["flops_percent"], (0, 5), claims.names(records))
    return [*_estimated("% of the time of attention", row["time_percent"], about(6.1), records), flops]
