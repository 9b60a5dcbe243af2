"""Analyse profiled steps: time by kernel, predictions and published claims.

A value has one number per process, so its interval, from three or more processes, covers all of them.
"""

import math
import statistics
from collections.abc import Mapping
from dataclasses import replace

import pandas as pd

from lib.chapters import accounts
from lib.instruments import kernel_classes
from lib.instruments.kernel_classes import PRODUCT
from lib.report import claims, hypotheses, roofline, sentences, tidy
from lib.report.claims import LESS, Found, about
from lib.report.hypotheses import Hypothesis
from lib.report.published import published_table
from lib.report.sentences import NO_DATA, Statement, of_records
from lib.stats import comparisons, digits, intervals
from lib.stats.comparisons import SAME
from lib.stats.intervals import Interval

SCOPES = {  # the phases that make up the whole of a share
    "forward": ("forward",),
    "forward and backward": ("forward", "backward"),
    "whole step": ("forward", "backward", "optimizer"),
}
NO_PRODUCT = kernel_classes.CLASSES[1:]
COLUMNS = {kind: f"{kind.replace(' ', '_')}_percent" for kind in kernel_classes.CLASSES}  # by class, in a table
NON_TRIVIAL = 2  # percent of the forward pass; kernels that take less are not named
TOP_COLUMNS = "phase kernel class share_percent calls total_us mean_us median_us min_us max_us deviation_us"
TIMER_COLUMNS = "phase timed_ms profiled_ms profiled_ratio kernels_ms busy_percent"
PART_COLUMNS = "phase part part_ms product_ms time_percent flops_percent gflops gigabytes"


def head(records: pd.DataFrame) -> dict:
    """Choose the eager fp32 case with the most processes, and of these the most FLOPs.

    Return its fields, each None if there is no such case."""
    plain = tidy.select(records, status="ok", precision="fp32", compiled=False)
    if plain.empty:
        return dict.fromkeys(records.fields)
    rounds = plain.groupby(records.fields)["round"].transform("nunique")
    return tidy.largest(plain[rounds == rounds.max()], "forward_flops")


def _summary(name: str, values: list[float]) -> Interval | None:
    """Return one number per process as an interval; that of a percentage ends at 100."""
    found = intervals.of_processes(values)
    return replace(found, high=min(found.high, 100.0)) if found and found.known and "percent" in name else found


def _sum_us(table: Mapping, **where) -> float:
    """Add the microseconds of the rows with these values; a tuple admits any of its own."""
    admitted = {name: value if isinstance(value, tuple) else (value,) for name, value in where.items()}
    return sum(
        row["total_us"] for row in accounts.rows_of(table) if all(row[name] in of for name, of in admitted.items())
    )


def _class_percents(records: pd.DataFrame, scope: str, kind: str | tuple[str, ...]) -> list[float]:
    """Return the percentage of a scope that classes take, by process; empty if unrecorded."""
    found, phases = list(tidy.with_table(records, "classes").get("classes", [])), SCOPES[scope]
    if not found or not set(phases) <= set(found[0]["phase"]):
        return []
    return [100 * _sum_us(table, phase=phases, **{"class": kind}) / _sum_us(table, phase=phases) for table in found]


def share(records: pd.DataFrame, scope: str, kind: str | tuple[str, ...] = NO_PRODUCT) -> Interval | None:
    """Return the percentage of a scope that classes take in one case, or None."""
    return _summary("percent", _class_percents(records, scope, kind))


def kept_share(records: pd.DataFrame) -> Interval | None:
    """Divide matrix products' share of the whole step by that of the forward pass; None if that has none."""
    ends = [_class_percents(records, scope, PRODUCT) for scope in ("whole step", "forward")]
    if not all(ends[1]):
        return None
    return intervals.of_processes([step / forward for step, forward in zip(*ends, strict=False)])


def shares(records: pd.DataFrame) -> pd.DataFrame:
    """Return each class's percentage of the time, one row per case and scope.

    `else_percent` is that of everything but matrix products."""
    rows = []
    for row, group in tidy.by_case(records):
        for scope in SCOPES:
            found = {column: share(group, scope, kind) for kind, column in COLUMNS.items()}
            if all(found.values()):
                rows.append(row | {"scope": scope, "else_percent": share(group, scope)} | found)
    columns = [*records.fields, "scope", "hardware", "else_percent", *COLUMNS.values()]
    return pd.DataFrame(rows, columns=None if rows else columns)


def shorten(shares: pd.DataFrame) -> pd.DataFrame:
    """Shorten the names of scopes so that they fit into a label."""
    return shares.replace({"scope": dict(zip(SCOPES, ("forward", "+ backward", "+ optimizer"), strict=True))})


def present(shares: pd.DataFrame) -> list[str]:
    """List the classes that take any time, by the first part of their columns."""
    return [name.removesuffix("_percent") for name in COLUMNS.values() if any(i.value > 0 for i in shares[name])]


def top(records: pd.DataFrame, case: Mapping, source="kernels", by="phase", most: int = 5) -> pd.DataFrame:
    """Return the kernels that take the most time in each phase of one case.

    Only kernels that every process has among its largest are compared. `total_us` and `share_percent` have
    intervals. With `source` nsys, `by` is the name of its ranges."""
    chosen, rows = tidy.select(records, **{name: case[name] for name in records.fields}), []
    for row, group in tidy.by_case(tidy.with_table(chosen, source)):
        all_of_it = pd.concat([pd.DataFrame(table).assign(process=i) for i, table in enumerate(group[source])])
        if "class" in all_of_it:
            all_of_it = all_of_it[all_of_it["class"] != ""]  # drops the sum of all others
        for scope, part in all_of_it.groupby(by, sort=False):
            found = [(name, rest) for name, rest in part.groupby("kernel", sort=False) if len(rest) == len(group)]
            found.sort(key=lambda pair: -intervals.of_processes(list(pair[1]["total_us"])).value)
            for name, of in found[:most]:
                cells = {c: of[c].median() for c in TOP_COLUMNS.split()[3:] if c in of}
                cells |= {c: _summary(c, list(of[c])) for c in ("total_us", "share_percent") if c in of}
                cells["class"] = of["class"].iloc[0] if "class" in of else kernel_classes.classify(name, scope)
                cells["calls"] = f"{cells['calls']:,g}"
                rows.append(row | {by: scope, "kernel": kernel_classes.short(name)} | cells)
    return pd.DataFrame(rows)


def against_timer(records: pd.DataFrame) -> pd.DataFrame:
    """Compare the time with and without the profiler, one row per case and phase.

    `timed_ms` is without, `profiled_ms` under it, and `profiled_ratio` their ratio in each process. `kernels_ms` is
    the sum of the kernels, and `busy_percent` its share of the profiled time."""
    rows = []
    for row, group in tidy.by_case(tidy.with_table(records, "classes")):
        for phase in dict.fromkeys(group["classes"].iloc[0]["phase"]):
            timed, profiled = (
                [statistics.median(samples) for samples in group[f"{prefix}{phase}_ms"]] for prefix in ("", "profiled_")
            )
            ran = [_sum_us(table, phase=phase) / 1e3 for table in group["classes"]]  # means, to compare with means
            whole = [statistics.mean(samples) for samples in group[f"profiled_{phase}_ms"]]
            found = {
                "timed_ms": timed, "profiled_ms": profiled, "kernels_ms": ran,
                "profiled_ratio": [b / a for a, b in zip(timed, profiled, strict=True)],
                "busy_percent": [100 * a / b for a, b in zip(ran, whole, strict=True)],
            }  # fmt: skip
            rows.append(row | {"phase": phase} | {name: _summary(name, of) for name, of in found.items()})
    return pd.DataFrame(rows)


def parts(records: pd.DataFrame) -> pd.DataFrame:
    """Return times and rates of attention, one row per case, phase and part.

    `product_ms` is the time of matrix products in `part_ms`. `time_percent` and `flops_percent` are shares of all
    parts of the phase. `gflops` and `gigabytes` are rates in 1e9 per second, for the least bytes."""
    rows = []
    for row, group in tidy.by_case(tidy.with_table(records, "parts")):
        costs = pd.DataFrame(group["part_costs"].iloc[0])
        for _, cost in costs.iterrows():
            phase, part = cost["phase"], cost["part"]
            took = [_sum_us(table, phase=phase, part=part) for table in group["parts"]]
            whole = [_sum_us(table, phase=phase) for table in group["parts"]]
            product = [_sum_us(table, phase=phase, part=part, **{"class": PRODUCT}) for table in group["parts"]]
            if not all(took):
                continue  # nothing was seen in its range
            found = {
                "part_ms": [us / 1e3 for us in took], "product_ms": [us / 1e3 for us in product],
                "time_percent": [100 * a / b for a, b in zip(took, whole, strict=True)],
                "gflops": [cost["flops"] / us / 1e3 for us in took],
                "gigabytes": [cost["bytes"] / us / 1e3 for us in took],
            }  # fmt: skip
            percent = 100 * cost["flops"] / costs.loc[costs["phase"] == phase, "flops"].sum()
            row = row | {"phase": phase, "part": part, "flops_percent": percent}
            rows.append(row | {name: _summary(name, values) for name, values in found.items()})
    return pd.DataFrame(rows)


def points(records: pd.DataFrame, case: Mapping) -> pd.DataFrame:
    """Return a roofline point for each part of attention and phase of one step."""
    return pd.DataFrame([
        {name: row.get(name, "") for name in ("precision", "hardware", "noisy", "gflops")}
        | {"name": row["part"], "label": f"{row['part']}, {row['phase']}"}
        | {"intensity": row["gflops"].value / row["gigabytes"].value}
        for _, row in parts(tidy.select(records, **case)).iterrows()
    ], columns=roofline.COLUMNS)  # fmt: skip


def softmax_to_products(records: pd.DataFrame, phase: str) -> dict | None:
    """Divide softmax by attention's matrix products, in one case; None without parts or products."""
    group = tidy.with_table(records, "parts")
    if group.empty or phase not in group["parts"].iloc[0]["phase"]:
        return None
    costs = pd.DataFrame(group["part_costs"].iloc[0]).query("phase == @phase").set_index("part")
    product = {"part": ("scores", "values"), "class": PRODUCT}
    products = [_sum_us(table, phase=phase, **product) for table in group["parts"]]
    if not all(products):
        return None
    both = zip(group["parts"], products, strict=True)
    times = [_sum_us(table, phase=phase, part="softmax") / us for table, us in both]
    counted = {
        unit: costs.loc["softmax", unit] / costs.loc[["scores", "values"], unit].sum() for unit in ("flops", "bytes")
    }
    return {"time": intervals.of_processes(times)} | counted


def leaders(records: pd.DataFrame, scope: str) -> list[dict]:
    """Find the kernel that takes the most of a scope, in each process of one case."""
    found = []
    for _, record in tidy.with_table(records, "kernels").iterrows():
        ran = pd.DataFrame(record["kernels"])
        ran = ran[ran["phase"].isin(SCOPES[scope]) & (ran["class"] != "")]
        sums = ran.groupby("kernel", sort=False)[["calls", "total_us"]].sum()
        name = sums["total_us"].idxmax()
        part = 100 * sums.loc[name, "total_us"] / _sum_us(record["classes"], phase=SCOPES[scope])
        found.append({"kernel": kernel_classes.short(name), "calls": sums.loc[name, "calls"], "share_percent": part})
    return found


def published_shares() -> pd.DataFrame:
    """Return published shares of matrix products and of all else, one row per scope.

    Both are lower limits, since only the largest kernels are printed. The table of a whole step does not show which
    kernels the optimizer launched."""
    table = published_table("kernels")
    scopes = {"forward": "forward", "forward_backward": "forward and backward", "train_step": "whole step"}
    product = table["kernel"].map(kernel_classes.classify) == PRODUCT
    table = table.assign(scope=table["phase"].map(scopes), product=product)
    rows = []
    for scope in SCOPES:
        part = table[table["scope"] == scope]
        first, sums = part.iloc[0], part.groupby("product")["share_percent"].sum()
        row = {"case": f"{first['model']}, context {first['context_length']}", "scope": scope}
        row |= {"hardware": first["hardware"], "source": first["source"]}
        rows.append(row | {"matrix_product_percent": sums[True], "else_percent": sums[False]})
    return pd.DataFrame(rows)


def _not_measured(what: str, records: pd.DataFrame) -> Statement:
    """Say that something was not measured, and why the profiler saw nothing if these records tell."""
    text = ": ".join(filter(None, (f"{what} was not measured here", _unseen_reasons(records))))
    return Statement(f"{text}.", NO_DATA, "records of profiled steps in fp32")


def _unseen_reasons(records: pd.DataFrame) -> str:
    """Return why the profiler saw no kernels in some of these records, or nothing."""
    return "; ".join(dict.fromkeys(tidy.column(records, "profiler_missing").dropna()))


@of_records()
def unseen(records: pd.DataFrame) -> Statement:
    """Say in how many records the profiler saw no kernels, and why."""
    if records.empty:
        return Statement("No step was profiled here.", NO_DATA, "records of profiled steps")
    lacking, every = digits.count(tidy.column(records, "profiler_missing").notna().sum()), digits.count(len(records))
    reasons = _unseen_reasons(records)
    text = f"The profiler saw no kernels in {lacking} of {every} records: {reasons}"
    return Statement(
        f"{text}." if reasons else "The profiler saw what ran in every record.", "measured",
        "profiler_missing in these records.",
    )  # fmt: skip


def _state(text: str, case: Mapping, of: Interval, verdict: str = "measured") -> Statement:
    many = ("process" if of.n == 1 else "processes") + ("" if of.known else ", too few for an interval")
    return Statement(text, verdict, f"{sentences.fields(case)}; one value in each of {of.n} {many}.")


@of_records()
def agreement(records: pd.DataFrame, case: Mapping) -> Statement:
    """State how long the forward pass takes under the profiler and by the timer."""
    row = tidy.one(against_timer(tidy.select(records, **case)), {"phase": "forward"})
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
    first, both = (leaders(chosen, scope) for scope in ("forward", "forward and backward"))
    if not first:
        return _not_measured("Which kernel takes the most of the forward pass", chosen)
    names = [list(dict.fromkeys(one["kernel"] for one in found)) for found in (first, both)]
    share = [_summary("percent", [one["share_percent"] for one in found]) for found in (first, both)]
    calls = [f"{digits.count(found[0]['calls'])} calls" for found in (first, both)]
    if max(map(len, names)) > 1:
        text = f"In the forward pass {sentences.listed(names[0], 'or')} takes the most time, depending on the process"
        return _state(
            f"{text}, and of forward and backward together {sentences.listed(names[1], 'or')}.", case, share[0]
        )
    text = f"In the forward pass {names[0][0]} takes the most time, {digits.brief(share[0])}% of it in {calls[0]}"
    second = f"but of forward and backward together it is {names[1][0]}, with"
    if names[0] == names[1]:
        second = "and it is the same that takes the most of forward and backward together,"
    return _state(f"{text}, {second} {digits.brief(share[1])}% in {calls[1]}.", case, share[0])


@of_records()
def besides(records: pd.DataFrame, case: Mapping) -> Statement:
    """State which kernels besides matrix products take much of the forward pass."""
    found = tidy.select(top(records, case, most=100), phase="forward")
    if found.empty:
        return _not_measured("What else takes time in the forward pass", tidy.select(records, **case))
    found = found[found["class"] != PRODUCT]
    named = [(name, of) for name, of in zip(found["kernel"], found["share_percent"], strict=True)]
    shown = [f"{name} with {digits.brief(of)}%" for name, of in named if of.value >= NON_TRIVIAL]
    whole = share(tidy.select(records, **case), "forward")
    end = f"at least {NON_TRIVIAL}% each: {sentences.listed(shown)}" if shown else f"none of it takes {NON_TRIVIAL}%"
    return _state(f"{digits.brief(whole)}% of the forward pass is no matrix product; {end}.", case, whole)


@of_records()
def fall(records: pd.DataFrame, case: Mapping) -> Statement:
    """State how matrix products' share changes from forward pass to whole step."""
    chosen = tidy.select(records, **case)
    found = [share(chosen, scope, PRODUCT) for scope in SCOPES]
    change = kept_share(chosen)
    if None in found or change is None:
        return _not_measured("The share of matrix products in a whole step", chosen)
    forward, both, step = map(digits.brief, found)
    why = ": AdamW has no products" if change.value < 1 else ""
    text = sentences.at("At size {size}, context {context_length}, ", case) + (
        f"matrix products take {forward}% of the operators' time in the forward pass, {both}% in forward and backward "
        f"and {step}% in the whole step{why}."
    )
    return _state(text, case, change)


@of_records()
def softmax(records: pd.DataFrame, case: Mapping) -> Statement:
    """Compare softmax with attention's matrix products in time, FLOPs and bytes."""
    found = {phase: softmax_to_products(tidy.select(records, **case), phase) for phase in ("forward", "backward")}
    if not found["forward"]:
        return _not_measured("Softmax inside attention", tidy.select(records, **case))
    said = [
        f"in the {phase} pass {digits.brief(of['time'])} times as long as the two products, with "
        f"{digits.number(100 * of['flops'])}% of their FLOPs and {digits.number(100 * of['bytes'])}% of their bytes"
        for phase, of in found.items() if of
    ]  # fmt: skip
    text = f"Inside attention, softmax takes {', and '.join(said)}: it moves data."
    return _state(text, case, found["forward"]["time"])


def answer(records: pd.DataFrame, case: Mapping, ceilings: pd.DataFrame) -> Statement:
    """Account for the step, or else say what share of it matrix products take."""
    accounted = accounts.answer(records, case, ceilings)
    return fall(records, case) if accounted.verdict == NO_DATA else accounted


def theory(records: pd.DataFrame, ceilings: pd.DataFrame) -> list[Hypothesis]:
    """Predict matrix products' share by the roofline, and softmax to products."""
    peaks, speed = tidy.limits(ceilings)
    case = head(records)
    chosen, peak = tidy.select(records, **case), peaks.get(case["precision"], math.nan)
    expected = []
    for products, others in (("forward",), SCOPES["forward"]), (("forward", "backward"), SCOPES["whole step"]):
        flops = sum(hypotheses.value(chosen, f"{phase}_flops", {}) for phase in products)
        moved = sum(hypotheses.value(chosen, f"{phase}_bytes", {}) for phase in others)
        expected.append(100 * flops / peak / (flops / peak + moved / speed))
    ratio = softmax_to_products(chosen, "forward") or {"time": None, "flops": math.nan, "bytes": math.nan}
    how, at = "FLOPs and least bytes at the ceilings", sentences.at(", {size} at {context_length}", case)
    return [
        Hypothesis(f"products of the forward pass, %{at}", how, expected[0], share(chosen, "forward", PRODUCT)),
        Hypothesis(f"products of the whole step, %{at}", how, expected[1], share(chosen, "whole step", PRODUCT)),
        Hypothesis("the latter share to the former", how, expected[1] / expected[0], kept_share(chosen)),
        Hypothesis("softmax to products, time forward", "FLOPs, 5 / 4d", ratio["flops"], ratio["time"]),
        Hypothesis("softmax to products, time forward", "least bytes", ratio["bytes"], ratio["time"]),
    ]


def _head_records(data: claims.Data) -> tuple[pd.DataFrame, tuple[str, ...]]:
    """Return the records of the chapter's case and their names; none if printed."""
    records = claims.rows(data, "kernels")
    if records.empty or claims.printed(records):
        return records.iloc[:0], ()
    case = head(records)
    return tidy.select(records, **case), sentences.names(records, case)


def _find_product_share(data: claims.Data, scope: str, within: tuple[float, float]) -> list[Found]:
    label, printed = f"% of the {scope if scope == 'whole step' else scope + ' pass'}", claims.rows(data, "kernels")
    if claims.printed(printed):
        row = tidy.one(printed, {"scope": scope})
        return [claims.between(label, row["matrix_product_percent"], 100 - row["else_percent"], within)]
    records, names = _head_records(data)
    found = share(records, scope, PRODUCT)
    return [claims.estimated(label, found, within, names)] if found else []


def products_of_forward(data: claims.Data) -> list[Found]:
    """Find the share of matrix products in the forward pass."""
    return _find_product_share(data, "forward", (85, 100))


def products_of_step(data: claims.Data) -> list[Found]:
    """Find matrix products' share of a whole step, and relative to the forward pass."""
    found = _find_product_share(data, "whole step", about(68, 0.1))
    records, names = _head_records(data)
    kept = kept_share(records)
    return found + ([claims.estimated("of the share in the forward pass", kept, LESS, names)] if kept else [])


def top_kernel(data: claims.Data) -> list[Found]:
    """Find whether one kernel takes the most of the forward pass and of both passes."""
    every, label = (1.0, 1.0), "processes have the same kernel at the top of both"
    if claims.printed(claims.rows(data, "kernels")):
        table = published_table("kernels")
        tops = [table[table["phase"] == phase].nlargest(2, "total_us") for phase in ("forward", "forward_backward")]
        same = set(tops[0]["kernel"]) == set(tops[1]["kernel"])
        said = "the same" if same else "not the same"
        return [claims.exact("two kernels at the top of both", float(same), every, shown=said)]
    records, names = _head_records(data)
    both = (leaders(records, scope) for scope in ("forward", "forward and backward"))
    same = [one["kernel"] == other["kernel"] for one, other in zip(*both, strict=True)]
    return [claims.exact(label, sum(same) / len(same), every, names, f"{sum(same)} of {len(same)}")] if same else []


def softmax_share(data: claims.Data) -> list[Found]:
    """Find softmax's share of attention's time and FLOPs in the forward pass."""
    records, names = _head_records(data)
    row = tidy.one(parts(records), {"phase": "forward", "part": "softmax"})
    if row.empty:
        return []
    return [
        claims.estimated("% of the time of attention", row["time_percent"], about(6.1), names),
        claims.exact("% of its FLOPs", row["flops_percent"], (0, 5), names),
    ]
