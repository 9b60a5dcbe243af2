"""Analyse low precision: sums, norms, dtypes under autocast, and steps in bf16."""

import math

import matplotlib as mpl
import pandas as pd
from matplotlib.axes import Axes

from lib.chapters.step import PLAIN
from lib.report import claims, compare, hypotheses, plots, published, roofline, sentences, tables, tidy
from lib.report.claims import LESS, MORE, Found
from lib.report.hypotheses import MOST, Hypothesis, counted
from lib.report.sentences import Statement, of_records
from lib.stats import digits

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
    last = held.sort_values("round").drop_duplicates(records.fields, keep="last")
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


def dtypes(records: pd.DataFrame, subject: str) -> pd.DataFrame:
    """Return each tensor of a model, with its dtype in a column per precision."""
    table = rows(records, "dtypes", subject=subject)
    if table.empty:
        return pd.DataFrame(columns=["tensor"])
    wide = table.pivot_table(index="tensor", columns="precision", values="dtype", aggfunc="last", sort=False)
    wide = wide.reindex(table["tensor"].unique()).reset_index()
    return wide.assign(device=table["device"].iloc[0], hardware=table["hardware"].iloc[0])


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


def by_size(steps: pd.DataFrame) -> pd.DataFrame:
    """Compare steps in bf16 with fp32, with the ratio of each pass, one row per case."""
    table = speed(steps)
    for name in ("forward", "backward"):
        found = speed(steps, f"{name}_ms")
        table[f"{name}_ratio"] = table["quantity"].map(dict(zip(found["quantity"], found["ratio"], strict=True)))
    return table


def _line_style(precision: str) -> dict:
    colour = plots.COLOURS[precision]
    return {"color": colour, "marker": plots.MARKERS[colour], "markersize": 4}


@mpl.rc_context(plots.STYLE)
def draw_sums(records: pd.DataFrame) -> Axes:
    """Draw the sum, and the most that rounding it can lose, against the terms, one line per dtype.

    That is half the distance between neighbours, in percent of a term."""
    left, right = plots.axes(2, 2.6)
    table, ends = rows(records, "trace"), []
    for loop, line in table.drop_duplicates(["loop", "terms"]).groupby("loop", sort=False) if len(table) else ():
        total, term = loop.split(" += ")
        if total == term:
            for ax, what in ((left, "sum"), (right, "half_percent")):
                ax.plot(line["terms"], line[what], markevery=10, **_line_style(term))
            ends.append((*line[["terms", "half_percent"]].iloc[-1], term, plots.COLOURS[term]))
    right.axhline(100, color=plots.INK, linewidth=0.8)
    right.set_yscale("log")
    for ax, what in ((left, "sum"), (right, "lost by rounding, % of a term")):
        ax.set(xlabel="terms of 0.01", ylabel=what)
        ax.grid(axis="y")
    plots.label_ends(right, ends)
    return left


@mpl.rc_context(plots.STYLE)
def draw_norms(records: pd.DataFrame) -> Axes:
    """Draw each norm's error against the scale of its inputs, one line per precision.

    A gap marks errors that are not finite, a cross an overflow in an intermediate step."""
    grid = plots.axes(2, 2.6, sharey=True)
    for (norm, title), ax in zip(NORMS.items(), grid, strict=True):
        ends, table = [], rows(records, "norm_errors", subject=norm, offset=0)
        for precision, line in table.groupby("precision", sort=False):
            ax.plot(line["scale"], line["relative_error"], **_line_style(precision))
            for finite in line[line["relative_error"].notna()][["scale", "relative_error"]].to_numpy()[-1:]:
                ends.append((*finite, precision, plots.COLOURS[precision]))
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
    chosen = tidy.select(records, subject=subject, status="ok")
    return tables.hardware(chosen, "Computed once, since nothing in it varies.")


@of_records()
def sums(records: pd.DataFrame) -> Statement:
    """State a thousand times 0.01 in each type, and with narrow terms in an fp32 sum."""
    table = loops(records).set_index("loop")
    if not {*(f"{name} += {name}" for name in PRECISIONS), "fp32 += fp16", "fp32 += bf16"} <= set(table.index):
        return sentences.missing("The loops were not run here.")
    said = {loop: digits.exact(round(number, 4)) for loop, number in table["number"].items()}
    stop = table.loc["bf16 += bf16", "stalls_after"]
    ends = "ends at" if stop == "never" else "stops at"
    after = "" if stop == "never" else f", after {stop} of {TERMS:,} terms"
    text = (
        f"A bf16 sum of {digits.exact(TERM)} {ends} {said['bf16 += bf16']}{after}; fp16 reaches "
        f"{said['fp16 += fp16']} and fp32 {said['fp32 += fp32']}. Added to an fp32 sum, bf16 terms make "
        f"{said['fp32 += bf16']} and fp16 terms {said['fp32 += fp16']}."
    )
    return Statement(text, "measured", "; ".join(f"{name}: error {table['sum_error'][name]}" for name in table.index))


@of_records()
def reasons(records: pd.DataFrame, narrow: str) -> Statement:
    """State what storing the terms and adding them each cost in a narrow dtype."""
    table = loops(records).set_index("loop")
    loop = f"{narrow} += {narrow}"
    if loop not in table.index:
        return sentences.missing(f"The loops of {narrow} were not run here.")
    row = table.loc[loop]
    percent = row["half_percent"]
    lost = "every term is lost" if percent > 100 else f"up to {digits.count(percent)}% of a term is lost"
    text = (
        f"In {narrow}, rounding {digits.exact(TERM)} itself changes the sum of {TERMS:,} terms by "
        f"{row['stored_error']}, the additions by {row['added_error']}. At the end the sum's neighbours are "
        f"{row['spacing']} apart, so {lost}."
    )
    return Statement(text, "measured", f"Loop {loop}; spacing from the dtype's significand.")


@of_records()
def observed(records: pd.DataFrame, narrow: str) -> Statement:
    """State which of the toy model's tensors are narrow under autocast and which are not."""
    table = dtypes(records, "toy")
    if narrow not in table:
        return sentences.missing(f"The toy model under {narrow} autocast was not observed here.")
    found = table.set_index("tensor")[narrow]
    asked = {
        "parameters": "parameters", "output of the first layer": "the first layer's output",
        "output of layer norm": "layer norm's output", "logits": "logits", "loss": "loss",
        "gradients of the parameters": "the parameters' gradients",
    }  # fmt: skip
    of = {dtype: [words for name, words in asked.items() if found[name] == dtype] for dtype in dict.fromkeys(found)}
    parts = [f"{sentences.listed(words)} {'are' if len(words) > 1 else 'is'} in {dtype}" for dtype, words in of.items()]
    text = f"Under {narrow} autocast on {table['device'].iloc[0]}, {sentences.listed(parts)}."
    return Statement(text, "measured", "As hooks saw them: " + "; ".join(f"{n}: {d}" for n, d in found.items()) + ".")


@of_records()
def sensitive(records: pd.DataFrame, subject: str, precision: str) -> Statement:
    """State which step of a norm leaves a dtype's range, and at which scale."""
    name, where = NORMS[subject], {"subject": subject, "precision": precision, "offset": 0}
    table = rows(records, "norm_errors", **where)
    if table.empty:
        return sentences.missing(f"A {name} in {precision} was not computed here.")
    errors = table.drop_duplicates("scale").set_index("scale")["relative_error"]
    over = rows(records, "norm_limits", **where, what="overflows")
    text = f"In {precision}, {name} has a relative error of {digits.number(errors[1])} on standard normal inputs"
    if over.empty:
        ends = f"{digits.exact(errors.index.min())} to {digits.exact(errors.index.max())}"
        text += f", and nothing overflows for inputs scaled by {ends}."
        return Statement(text, "measured", f"{len(table)} scales.")
    first = over.loc[over["scale"].idxmin()]
    text += f"; for inputs {digits.exact(first['scale'])} times as large its {first['step']} overflows"
    if errors.get(first["scale"]) == 1:
        text += " and the norm is silently zero"
    return Statement(text + ".", "measured", f"{len(table)} of the scales give a finite norm.")


@of_records()
def kernel(records: pd.DataFrame, precision: str) -> Statement:
    """State how exact PyTorch's layer norm is where the stepwise one overflows."""
    table = rows(records, "kernel_errors", subject="layer_norm", precision=precision)
    lost = sorted(set(overflows(records, "layer_norm", precision)) & set(tidy.column(table, "scale")))
    if not lost:
        text = f"PyTorch's own layer norm was not tried in {precision} where steps overflow."
        return sentences.missing(text)
    worst = tidy.select(table, scale=lost)["relative_error"].max()
    scales = " to ".join(map(digits.exact, dict.fromkeys((lost[0], lost[-1]))))
    text = (
        f"PyTorch's own layer norm takes the same {precision} inputs at scales {scales} with an error of at most "
        f"{digits.number(worst)}: its kernel computes in fp32 inside."
    )
    return Statement(text, "measured", f"Scales {', '.join(f'{scale:g}' for scale in lost)}.")


def published_trend() -> Statement:
    """State at which sizes a write-up's eager passes were faster in bf16; its fp32 may have run in TF32."""
    eager, keys = tidy.select(published.published_step(), compiled=False), "source hardware size context_length"
    table = eager.pivot_table(index=keys.split(), columns="precision", values="forward_backward_ms")
    table = tidy.ordered(table.dropna(subset=["fp32", "bf16"]).reset_index(), keys)
    faster = table["bf16"] < table["fp32"]
    more, less = (", ".join(table[which]["size"]) for which in (~faster, faster))
    of = f"{table['source'].iloc[0]}, on {table['hardware'].iloc[0]} and without compiling"
    text = f"In {of}, forward and backward in bf16 took longer than in fp32 at {more}, and less time at {less}."
    return Statement(text, "published", "Published means, each size in both precisions on the same hardware.")


def trend(steps: pd.DataFrame) -> Statement:
    """Compare a step in bf16 and fp32 in the largest case, and at the smallest size if it differs."""
    table = speed(steps)
    if table.empty:
        return sentences.missing("Steps in bf16 and in fp32 were not both measured here.")
    table = table.sort_values(["parameters", "context_length"]).drop_duplicates("size", keep="last")
    ends = table.iloc[[-1, 0]].drop_duplicates("size")[steps.fields].to_dict("records")
    said = [
        sentences.compare(
            steps, case, {"precision": "fp32"}, "a training step in bf16", "one in fp32",
            "at {size}, context {context_length:,}",
        )
        for case in ends
    ]  # fmt: skip
    return sentences.together(*said)


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
    steps = roofline.with_least_time(steps, *roofline.limits(ceilings), roofline.own_products(ceilings))
    half = tidy.largest(steps, "parameters", precision="bf16", compiled=False, **PLAIN)
    single = {**half, "precision": "fp32"} if half["precision"] else half
    faster = hypotheses.value(steps, "limit", single) / hypotheses.value(steps, "limit", half)
    least = hypotheses.value(steps, "least_ms", half) / hypotheses.value(steps, "least_ms", single)
    at = sentences.at(", {size} at {context_length}", half)
    forward, whole = (hypotheses.ratio(steps, name, half, single) for name in ("forward_ms", "total_ms"))
    return [
        *found,
        Hypothesis(f"forward pass, bf16 to fp32{at}", "the rates of products", faster, forward),
        Hypothesis(f"whole step, bf16 to fp32{at}", "least times, products and bytes", least, whole),
    ]


def three_sums(data: claims.Data) -> list[Found]:
    """Find a thousand times 0.01, added in three ways."""
    records = claims.rows(data, "precision", subject="accumulation")
    said = {"fp32 += fp32": 10.0001, "fp16 += fp16": 9.9531, "fp32 += fp16": 10.0021}
    found, names = loops(records).set_index("loop")["number"], claims.names(records)
    return [
        claims.exact(f"by {name}", found[name], (value - 5e-5, value + 5e-5), names, f"{found[name]:.9g}")
        for name, value in said.items()
        if name in found
    ]


def four_dtypes(data: claims.Data) -> list[Found]:
    """Find the bits of four of the toy model's tensors under fp16 autocast."""
    records = claims.rows(data, "precision", subject="toy", precision="fp16")
    said = {"logits": "fp16", "output of layer norm": "fp32", "loss": "fp16", "gradients of the parameters": "fp32"}
    bits, table = {"fp16": 16.0, "bf16": 16.0, "fp32": 32.0}, dtypes(records, "toy").set_index("tensor")
    found, names = tidy.column(table, "fp16").map(bits), claims.names(records)
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
