"""Analyse narrow types: sums, norms, dtypes under autocast, and steps in bf16."""

import math

import matplotlib as mpl
import pandas as pd
from matplotlib.axes import Axes

from lib.chapters.step import PLAIN
from lib.report import claims, compare, hypotheses, plots, published, sentences, tidy
from lib.report.claims import LESS, MORE, Found
from lib.report.hypotheses import MOST, Hypothesis, counted
from lib.report.sentences import NO_DATA, Statement, of_records
from lib.stats import digits
from lib.stats.comparisons import UNCLEAR

BITS = {"fp32": 24, "fp16": 11, "bf16": 8}  # of the significand, the hidden one included (IEEE 754; bf16: half of fp32)
PRECISIONS = tuple(BITS)  # in the assignment's order
NORMS = {"layer_norm": "layer norm", "rms_norm": "RMS norm"}
TERMS, TERM = 1000, 0.01  # the sum of the assignment


def rows(records: pd.DataFrame, metric: str, **where) -> pd.DataFrame:
    """Join a metric that is a table over all records, with fields of each case.

    Return the rows with these values. Of several rounds only the last counts, since nothing here varies."""
    held, names = tidy.with_table(records, metric), ["subject", "precision", "device", "hardware"]
    if held.empty:
        return pd.DataFrame(columns=names)
    last = held.sort_values("round").drop_duplicates(records.attrs["fields"], keep="last")
    found = [pd.DataFrame(record[metric]).assign(**record[names]) for _, record in last.iterrows()]
    every = pd.concat(found, ignore_index=True)
    every = every.sort_values("precision", key=lambda column: column.map(PRECISIONS.index), kind="stable")
    every = every.sort_values("subject", key=tidy.in_order, kind="stable", ignore_index=True)
    return tidy.select(every, **where)


def loops(records: pd.DataFrame) -> pd.DataFrame:
    """Return the loops of all dtypes, one row per loop, as in `rounding.accumulation`.

    The sum has all its digits, and the loop in fp32 appears once."""
    table = rows(records, "loops")
    if table.empty:
        return table.reindex(columns=["loop", "sum", "number"])
    table = table.drop_duplicates("loop", ignore_index=True).assign(number=lambda kept: kept["sum"])
    ended = table["stalls_after"] == table["stalls_after"].max()
    stalls = table["stalls_after"].map(digits.count).mask(ended, "never")
    short = {name: table[name].map(digits.number) for name in ("sum_error", "stored_error", "added_error", "spacing")}
    return table.assign(sum=table["sum"].map(digits.exact), stalls_after=stalls, **short)


def _pivot_by_precision(table: pd.DataFrame, index: str, values: str) -> pd.DataFrame:
    """Return one row per value of `index`, in order, with a column per precision."""
    if table.empty:
        return pd.DataFrame(columns=[index])
    wide = table.pivot_table(index=index, columns="precision", values=values, aggfunc="last", sort=False)
    wide = wide.reindex(dict.fromkeys(table[index])).reset_index()
    return wide.assign(device=table["device"].iloc[0], hardware=table["hardware"].iloc[0])


def dtypes(records: pd.DataFrame, subject: str) -> pd.DataFrame:
    """Return each tensor of a model, with its dtype in a column per precision."""
    return _pivot_by_precision(rows(records, "dtypes", subject=subject), "tensor", "dtype")


def step_errors(records: pd.DataFrame, subject: str) -> pd.DataFrame:
    """Return a norm's error if one step alone is rounded, with a column per precision."""
    table = rows(records, "step_errors", subject=subject)
    short = tidy.column(table, "relative_error").map("{:.2g}".format)
    return _pivot_by_precision(table.assign(relative_error=short), "step", "relative_error")


def limits(records: pd.DataFrame) -> pd.DataFrame:
    """Return where norms leave the range of their dtype, with the inputs' scales in words."""
    table = rows(records, "norm_limits")
    if table.empty:
        return table
    keys = ["subject", "precision", "offset", "step", "what"]
    scales = table.groupby(keys, sort=False)["scale"].agg(lambda found: ", ".join(f"{scale:g}" for scale in found))
    return scales.reset_index().assign(hardware=table["hardware"].iloc[0])


def speed(steps: pd.DataFrame, metric: str = "total_ms") -> pd.DataFrame:
    """Compare steps in bf16 with fp32; add the number of `parameters`."""
    table = tidy.select(compare.against_baselines(steps, metric), baseline="fp32", precision="bf16")
    counts = tidy.column(steps, "parameters").groupby(steps["size"]).max() if len(steps) else {}
    return table.assign(parameters=table["size"].map(counts))


def speed_of_phases(steps: pd.DataFrame) -> pd.DataFrame:
    """Compare bf16 with fp32 for each `phase` of a step."""
    found = [speed(steps, f"{phase}_ms").assign(phase=phase) for phase in ("forward", "backward", "optimizer")]
    return pd.concat([table for table in found if len(table)] or found[:1], ignore_index=True)


def published_speed() -> pd.DataFrame:
    """Return published bf16 to fp32 ratios by case; such fp32 may have run in TF32."""
    table = published.published_step()
    keys = ["source", "hardware", "compiled", "size", "context_length"]
    wide = table.pivot_table(index=keys, columns="precision", values=["forward_ms", "forward_backward_ms"])
    ratios = {name: wide[f"{name}_ms"]["bf16"] / wide[f"{name}_ms"]["fp32"] for name in ("forward", "forward_backward")}
    found = pd.DataFrame(ratios).add_suffix("_ratio").dropna(how="all").reset_index()
    return tidy.ordered(found, "source hardware compiled size")


def _line_style(precision: str) -> dict:
    colour = plots.COLOURS[precision]
    return {"color": colour, "marker": plots.MARKERS[colour], "linestyle": plots.DASHES[colour], "markersize": 4}


def draw_sums(records: pd.DataFrame) -> Axes:
    """Draw the sum and half its spacing, in percent of a term, against the terms.

    Half a spacing is the most that a rounding can lose. There is one line per loop that adds in a single dtype."""
    table = rows(records, "trace")
    (left, right), ends = plots.axes(2, 3.2), []
    with mpl.rc_context(plots.STYLE):
        for loop, line in table.drop_duplicates(["loop", "terms"]).groupby("loop", sort=False) if len(table) else ():
            total, term = loop.split(" += ")
            if total == term:
                how = _line_style(term) | {"markevery": 10}
                left.plot(line["terms"], line["sum"], **how)
                right.plot(line["terms"], line["half_percent"], **how)
                ends.append((line["terms"].iloc[-1], line["half_percent"].iloc[-1], term, plots.COLOURS[term]))
        right.axhline(100, color=plots.INK, linewidth=0.8)
        right.set_yscale("log")
        left.set(xlabel="terms of 0.01", ylabel="sum")
        right.set(xlabel="terms of 0.01", ylabel="half a spacing, % of a term")
        for ax in (left, right):
            ax.grid(axis="y")
        plots.label_ends(right, ends)
    return left


def draw_norms(records: pd.DataFrame) -> Axes:
    """Draw each norm's error against the scale of its inputs, one line per precision.

    A gap marks errors that are not finite, a cross an overflow in an intermediate step."""
    grid = plots.axes(2, 3.2, sharey=True)
    with mpl.rc_context(plots.STYLE):
        for (norm, title), ax in zip(NORMS.items(), grid, strict=True):
            ends, table = [], rows(records, "norm_errors", subject=norm, offset=0)
            for precision, line in table.groupby("precision", sort=False):
                ax.plot(line["scale"], line["relative_error"], **_line_style(precision))
                finite = line[line["relative_error"].notna()]
                if len(finite):
                    scale, error = finite[["scale", "relative_error"]].iloc[-1]
                    ends.append((scale, error, precision, plots.COLOURS[precision]))
                lost = line[line["scale"].isin(overflows(records, norm, precision))]
                ax.plot(lost["scale"], lost["relative_error"], "x", color=plots.COLOURS[precision], markersize=10)
            ax.set(xscale="log", yscale="log", xlabel="scale of the inputs", title=title)
            ax.grid(axis="y")
        grid[0].set_ylabel("relative error")
        plots.label_ends(grid[-1], ends)
    return grid[-1]


def overflows(records: pd.DataFrame, norm: str, precision: str) -> list[float]:
    """List the input scales at which a step of a norm overflows."""
    table = rows(records, "norm_limits", subject=norm, precision=precision, offset=0, what="overflows")
    return list(tidy.column(table, "scale"))


def note(records: pd.DataFrame, subject: str) -> str:
    """Return the hardware behind a figure, or nothing without results."""
    names = ", ".join(dict.fromkeys(tidy.select(records, subject=subject, status="ok")["hardware"]))
    return f"{names}. Computed once, since nothing in it varies." if names else ""


@of_records()
def sums(records: pd.DataFrame, narrow: str) -> Statement:
    """State the results of the four loops of a narrow dtype."""
    table = loops(records).set_index("loop")
    names = ["fp32 += fp32", f"{narrow} += {narrow}", f"fp32 += {narrow}", f"fp32 += {narrow} as fp32"]
    if not set(names) <= set(table.index):
        return Statement(f"The four loops of {narrow} were not run here.", NO_DATA, "accumulation")
    wide, own, mixed, cast = table.loc[names, "sum"]
    text = (
        f"A thousand terms of {digits.exact(TERM)} add up to {wide} in fp32, to {own} in {narrow}, to {mixed} where "
        f"{narrow} terms go into an fp32 sum, and to {cast} where they are converted to fp32 before."
    )
    errors = table["sum_error"]
    return Statement(text, "measured", "; ".join(f"{name}: error {errors[name]}" for name in names) + ".")


@of_records()
def reasons(records: pd.DataFrame, narrow: str) -> Statement:
    """State why the loops of a narrow dtype are wrong: storing and adding."""
    table = loops(records).set_index("loop")
    own, wide, cast = f"{narrow} += {narrow}", f"fp32 += {narrow}", f"fp32 += {narrow} as fp32"
    if own not in table.index:
        return Statement(f"The loops of {narrow} were not run here.", NO_DATA, "accumulation")
    row, other = table.loc[own], table.loc[wide]
    alone = "which is all of the error" if other["sum_error"] == other["stored_error"] else "beside the error"
    text = (
        f"In {narrow}, {digits.exact(TERM)} is stored with an error that makes {row['stored_error']} over the thousand "
        f"terms, {alone} of the sum in fp32, {other['sum_error']}. The additions in {narrow} bring "
        f"{row['added_error']}: at its end the sum can change by steps of {row['spacing']} only, and rounding to such "
        f"a step may lose {digits.number(row['half_percent'])}% of a term."
    )
    if row["stalls_after"] != "never":
        text += (
            f" Half a step is more than a term from there on: after {row['stalls_after']} terms the sum stays at "
            f"{row['sum']}, whatever is added."
        )
    if table.loc[cast, "number"] == other["number"]:
        text += " To convert the term to fp32 first changes nothing, since the addition converts it anyway."
    return Statement(text, "measured", f"Loops {own}, {wide} and {cast}; spacing from the dtype's significand.")


@of_records()
def observed(records: pd.DataFrame, narrow: str) -> Statement:
    """State the toy model's dtypes, in the order of the assignment's question."""
    table = dtypes(records, "toy")
    if narrow not in table:
        return Statement(f"The toy model under {narrow} autocast was not observed here.", NO_DATA, "toy")
    found = table.set_index("tensor")[narrow]
    asked = {
        "parameters": "the parameters are in",
        "output of the first layer": "the output of the first layer in",
        "output of layer norm": "that of layer norm in",
        "logits": "the logits in",
        "loss": "the loss in",
        "gradients of the parameters": "the gradients in",
    }
    parts = [f"{words} {found[name]}" for name, words in asked.items()]
    text = f"Under {narrow} autocast on {table['device'].iloc[0]}, {', '.join(parts[:-1])} and {parts[-1]}."
    return Statement(text, "measured", "As hooks saw them: " + "; ".join(f"{n}: {d}" for n, d in found.items()) + ".")


@of_records()
def sensitive(records: pd.DataFrame, subject: str, precision: str) -> Statement:
    """State which step of a norm leaves a dtype's range, and at which scale."""
    name, where = NORMS[subject], {"subject": subject, "precision": precision, "offset": 0}
    table = rows(records, "norm_errors", **where)
    if table.empty:
        return Statement(f"A {name} in {precision} was not computed here.", NO_DATA, subject)
    errors = table.drop_duplicates("scale").set_index("scale")["relative_error"]
    over = rows(records, "norm_limits", **where, what="overflows")
    text = (
        f"Computed in {precision} throughout, {name} has an error of {digits.number(errors[1])} on standard normal "
        "inputs"
    )
    if over.empty:
        ends = f"{digits.exact(errors.index.min())} to {digits.exact(errors.index.max())}"
        text += f", and nothing overflows on inputs from {ends} times as large."
        return Statement(text, "measured", f"{len(table)} scales.")
    first = over.loc[over["scale"].idxmin()]
    text += f"; on inputs {digits.exact(first['scale'])} times as large its {first['step']} overflows"
    if errors.get(first["scale"]) == 1:
        text += ", and the norm is silently zero, since it divides by infinity"
    under = rows(records, "norm_limits", **where, what="underflows")
    under = under[under["scale"] < 1] if len(under) else under
    if len(under):
        last = under.loc[under["scale"].idxmax()]
        text += f". On inputs {digits.exact(last['scale'])} times as large half or more of its {last['step']} is zero"
        if last["scale"] in errors:
            text += f", which eps hides: the error is {digits.number(errors[last['scale']])}"
    return Statement(text + ".", "measured", f"{len(table)} of the scales give a finite norm.")


@of_records()
def kernel(records: pd.DataFrame, precision: str) -> Statement:
    """State how exact PyTorch's layer norm is where the stepwise one overflows."""
    table = rows(records, "kernel_errors", subject="layer_norm", precision=precision)
    lost = sorted(set(overflows(records, "layer_norm", precision)) & set(tidy.column(table, "scale")))
    if not lost:
        text = f"PyTorch's own layer norm was not tried in {precision} where steps overflow."
        return Statement(text, NO_DATA, "kernel")
    worst = tidy.select(table, scale=lost)["relative_error"].max()
    scales = " to ".join(map(digits.exact, dict.fromkeys((lost[0], lost[-1]))))
    text = (
        f"PyTorch's own layer norm, one kernel, takes the same {precision} inputs at scales {scales}, where the one "
        f"computed step by step overflows, with an error of {digits.number(worst)} at most."
    )
    return Statement(text, "measured", f"Scales {', '.join(f'{scale:g}' for scale in lost)}.")


@of_records()
def offset_error(records: pd.DataFrame, precision: str) -> Statement:
    """State how a large mean changes the errors of layer norm and of RMS norm."""
    table = rows(records, "norm_errors", precision=precision, scale=1)
    of = {norm: tidy.select(table, subject=norm) for norm in NORMS if len(table)}  # an empty table has no columns
    found = {norm: errors.set_index("offset")["relative_error"] for norm, errors in of.items()}
    common = sorted(set.intersection(*(set(errors.index) for errors in found.values()))) if found else []
    if len(common) < 2:
        return Statement(f"Inputs with a large mean were not tried in {precision} here.", NO_DATA, "offset")
    ends = [" to ".join(digits.number(found[norm][offset]) for offset in (common[0], common[-1])) for norm in NORMS]
    text = (
        f"In {precision}, a mean of {digits.exact(common[-1])} standard deviations takes the error of layer norm from "
        f"{ends[0]}, and that of RMS norm from {ends[1]}."
    )
    return Statement(text, "measured", f"Offsets {', '.join(f'{offset:g}' for offset in common)} at scale one.")


def published_trend() -> Statement:
    """State at which sizes a write-up's eager passes were faster in bf16."""
    table = tidy.select(published_speed(), compiled=False)
    faster = table["forward_backward_ratio"] < 1
    more, less = (", ".join(table[which]["size"]) for which in (~faster, faster))
    of = f"{table['source'].iloc[0]}, on {table['hardware'].iloc[0]} and without compiling"
    text = f"In {of}, forward and backward together take more time in bf16 than in fp32 at {more}, and less at {less}."
    return Statement(text, "published", "Published means, each size in both precisions on the same hardware.")


def trend(steps: pd.DataFrame) -> Statement:
    """Compare steps in bf16 and fp32 at each size, and state the trend with the size."""
    table = speed(steps)
    if table.empty:
        return Statement("Steps in bf16 and in fp32 were not both measured here.", NO_DATA, "step")
    fields = steps.attrs["fields"]
    label = tidy.labelled(table, fields)["label"] if len(table) > 1 else table["size"]
    every = [
        sentences.compare(
            steps, "total_ms", row[fields].to_dict(), {**row[fields], "precision": "fp32"}, "a step in bf16",
            "one in fp32", f"at {name}, context {row['context_length']:,}",
        )
        for (_, row), name in zip(table.iterrows(), label, strict=True)
    ]  # fmt: skip
    return sentences.together(*every, _size_trend(table))


def _size_trend(table: pd.DataFrame) -> Statement:
    alike = tidy.select(table, context_length=table["context_length"].max(), compiled=False).sort_values("parameters")
    if len(alike) < 2 or alike["size"].duplicated().any():
        return Statement("How the ratio changes with the size takes more than one size.", NO_DATA, "one size")
    first, last = alike.iloc[0], alike.iloc[-1]
    a, b = first["ratio"], last["ratio"]
    known = a.known and b.known
    way = "falls" if known and b.high < a.low else "rises" if known and b.low > a.high else "is not shown to change"
    text = (
        f"From size {first['size']} to {last['size']} the ratio {way}: {digits.interval(a)} at the one and "
        f"{digits.interval(b)} at the other."
    )
    verdict = UNCLEAR if "shown" in way else "measured"
    return Statement(text, verdict, "Whether the two intervals overlap.")


def stalls_at(term: float, bits: int) -> float:
    """Return the power of two at which a growing sum absorbs no further term.

    There the spacing is first more than twice the term (Higham 2002, chapter 4)."""
    return 2.0 ** (math.floor(math.log2(term)) + 1 + bits)


def theory(records: pd.DataFrame, steps: pd.DataFrame, ceilings: pd.DataFrame) -> list[Hypothesis]:
    """Predict the sums by the spacing of numbers, and a step in bf16 by the ceilings."""
    ended, found = loops(records).set_index("loop")["number"], []
    for name, bits in BITS.items():
        total, end = ended.get(f"{name} += {name}", math.nan), stalls_at(TERM, bits)
        if end < TERMS * TERM:
            how = "the sum whose spacing is more than twice a term"
            found.append(Hypothesis(f"a thousand times 0.01 in {name}", how, end, counted(total)))
        else:
            bound = TERMS * 2.0**-bits * TERMS * TERM  # n roundings: n - 1 additions and the stored term
            off = counted(abs(total - TERMS * TERM))
            found.append(Hypothesis(f"error of a thousand times 0.01 in {name}", "n u Σ|x|, u = 2⁻ᵖ", bound, off, MOST))
    peaks, speed = tidy.limits(ceilings)
    steps = tidy.with_least_time(steps, peaks, speed)
    half = tidy.largest(steps, "parameters", precision="bf16", compiled=False, **PLAIN)
    single = {**half, "precision": "fp32"} if half["precision"] else half
    faster = peaks.get("fp32", math.nan) / peaks.get("bf16", math.nan)
    least = hypotheses.value(steps, "least_ms", half) / hypotheses.value(steps, "least_ms", single)
    at = sentences.at(", {size} at {context_length}", half)
    forward, whole = (hypotheses.ratio(steps, name, half, single) for name in ("forward_ms", "total_ms"))
    return [
        *found,
        Hypothesis(f"forward pass, bf16 to fp32{at}", "the ceilings of products", faster, forward),
        Hypothesis(f"whole step, bf16 to fp32{at}", "least times, products and bytes", least, whole),
    ]


def three_sums(data: claims.Data) -> list[Found]:
    """Find a thousand times 0.01, added in three ways."""
    records = claims.rows(data, "precision", subject="accumulation")
    said = {"fp32 += fp32": 10.0001, "fp16 += fp16": 9.9531, "fp32 += fp16": 10.0021}
    found = loops(records).set_index("loop")["number"]
    names = claims.names(records) if len(found) else ()
    return [
        claims.exact(f"by {name}", found[name], (value - 5e-5, value + 5e-5), names, f"{found[name]:.9g}")
        for name, value in said.items()
        if name in found
    ]


def four_dtypes(data: claims.Data) -> list[Found]:
    """Find the bits of four of the toy model's tensors under fp16 autocast."""
    records = claims.rows(data, "precision", subject="toy", precision="fp16")
    said = {"logits": "fp16", "output of layer norm": "fp32", "loss": "fp16", "gradients of the parameters": "fp32"}
    bits, table = {"fp16": 16.0, "bf16": 16.0, "fp32": 32.0}, dtypes(records, "toy")
    if table.empty:
        return []
    found, names = table.set_index("tensor")["fp16"].map(bits), claims.names(records)
    return [
        claims.exact(f"in the {name}", found[name], (bits[dtype], bits[dtype]), names, f"fp{found[name]:.0f}")
        for name, dtype in said.items() if name in found
    ]  # fmt: skip


def mixed_speed(data: claims.Data) -> list[Found]:
    """Find bf16 to fp32 for the smallest and the largest model measured in both."""
    steps, to = claims.rows(data, "step", mode="train_step", **PLAIN), {"precision": "fp32"}
    cases = claims.cases(steps, compiled=False, precision="bf16")
    cases = [case for case in cases if claims.cases(steps, **{**case, **to})]
    if not cases or cases[0]["size"] == cases[-1]["size"]:
        return []
    return [
        one
        for case, side in ((cases[0], MORE), (cases[-1], LESS))
        for one in claims.ratio(steps, "total_ms", case, {**case, **to}, side, claims.SIZED)
    ]
