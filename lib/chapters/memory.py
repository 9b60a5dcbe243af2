"""Analyse the memory that was measured: timelines, the content of a peak, and what lowers it.

Sentences rest on one iteration of each case. They state counts, which have no interval.
"""

import math
from collections.abc import Mapping
from dataclasses import replace

import matplotlib as mpl
import pandas as pd
from matplotlib.axes import Axes

from lib.chapters import capacity
from lib.cost import flops
from lib.report import claims, compare, plots, sentences, tables, tidy
from lib.report.claims import MORE, Found, about
from lib.report.headings import heading
from lib.report.hypotheses import LEAST, Hypothesis, counted, value
from lib.report.plots import BLUE, COLOURS, GREEN, INK, ORANGE, STYLE
from lib.report.quantities import Quantity
from lib.report.sentences import Statement, of_records
from lib.stats import digits
from lib.stats.comparisons import FASTER, SLOWER

PARTS = {  # of the peak: the kinds of bytes of each, its hue, and its word on the first screen
    "weights": (("parameters",), INK, "weights"),
    "gradients": (("gradients",), BLUE, "gradients"),
    "AdamW's two moments": (("optimizer states",), ORANGE, "Adam"),
    "all else": (("activations", "temporaries", "others"), GREEN, "other"),
}
MIB = 2**20
MISSING = sentences.missing("This was not measured here.")


def _rows(record: pd.Series, name: str) -> pd.DataFrame:
    """Return the table of that name that a record holds; empty without one."""
    return pd.DataFrame(record[name] if isinstance(record.get(name), dict) else {})


def largest(record: pd.Series, most: int) -> tables.Table:
    """Return a table of a record's largest allocations and who made them."""
    rows = _rows(record, "largest").head(most).rename(columns=heading)
    return tables.Table(rows, "The largest allocations of one iteration", described(record))


def described(record: pd.Series) -> str:
    """Describe a record's case and hardware in a few words."""
    names = ("hardware", "size", "context_length", "precision", "mode")
    said = "; ".join(f"{heading(name)}: {record[name]}" for name in names if name in record)
    return f"{said}." if said else ""


@mpl.rc_context(STYLE)
def timelines(records: pd.DataFrame) -> Axes:
    """Draw live memory over time, one panel per record, with phases and the peak."""
    records = tidy.with_table(records, "timeline")
    grid = plots.axes(max(1, len(records)), 3.4, sharey=True)
    for ax, (_, record) in zip(grid, records.iterrows(), strict=False):
        live, phases = record["timeline"], record["phases"]
        ms = [us / 1e3 for us in live["instant_us"]]
        ax.fill_between(ms, live["live_mib"], step="post", color=INK, alpha=0.15, linewidth=0)
        ax.step(ms, live["live_mib"], where="post", color=INK, linewidth=1)
        for phase, begin, end in zip(phases["phase"], phases["begin_us"], phases["end_us"], strict=True):
            ax.axvspan(begin / 1e3, end / 1e3, color=COLOURS[phase], alpha=0.3, linewidth=0)
            ax.text(
                (begin + end) / 2e3, 0.03, phase, transform=ax.get_xaxis_transform(), rotation=90, ha="center",
                va="bottom",
            )  # fmt: skip
        highest = max(range(len(ms)), key=live["live_mib"].__getitem__)
        ax.plot(ms[highest], live["live_mib"][highest], "v", color=INK, markersize=6)
        ax.set_title(f"{record['mode']}, {record['precision']}")
        ax.set(xlabel="time while followed, ms")
        ax.grid(axis="y")
    most = max((max(table["live_mib"]) for table in records.get("timeline", [])), default=1)
    grid[0].set(ylabel="live memory, MiB", ylim=(0, 1.08 * most))
    return grid[0]


def parts(record: pd.Series) -> dict[str, float]:
    """Add up the MiB alive at a record's peak by `PARTS`; empty without a breakdown."""
    rows = _rows(record, "breakdown")
    if rows.empty:
        return {}
    sizes = rows.groupby("kind")["part_mib"].sum()
    return {name: float(sizes.reindex(kinds).sum()) for name, (kinds, *_) in PARTS.items()}


@mpl.rc_context(STYLE)
def bars(ax: Axes, record: pd.Series) -> Axes:
    """Draw a bar for each part of a record's peak, with its MiB and its percentage at the end."""
    found = parts(record)
    whole = sum(found.values())
    for name, mib in found.items():
        colour = PARTS[name][1]
        ax.barh(name, mib, **plots.bar(colour) | {"color": (colour, 0.45 if colour == INK else 1)})
        plots.beside(ax, mib, name, f"{digits.count(mib)} MiB, {digits.count(100 * mib / whole)}%")
    ax.invert_yaxis()
    ax.set(xlabel="alive at the peak, MiB", xlim=(0, 1.6 * max(found.values(), default=1)))
    ax.grid(axis="x")
    return ax


def number(records: pd.DataFrame, metric: str, case: Mapping) -> Quantity | None:
    """Return a case's MiB, such as `peak_mib`, as a count; None where they were not measured."""
    return sentences.number(records, metric, case, lambda mib: digits.number(mib.value, 0))


@of_records("checkpoint", "precision", "mode")
def answer(records: pd.DataFrame, case: Mapping) -> Statement:
    """State the peak of a training step, and the percentage that 16 bytes a parameter are of it."""
    peak, parameters = number(records, "peak_mib", case), value(records, "parameters", case)
    if peak is None or math.isnan(parameters):
        return MISSING
    text = (
        f"A step of {case['size']} peaks at {peak} MiB ({digits.count(parameters / 1e6)} M parameters, "
        f"{case['batch_size']} × {case['context_length']} tokens, {case['precision']}); "
        f"16 bytes per parameter make up {digits.count(100 * 16 * parameters / MIB / peak.value.value)}% of that."
    )
    return Statement(text, "measured", f"peak_mib, {described(tidy.one(records, case))}", (), (peak,))


def _peak_change(records: pd.DataFrame, of: Mapping, to: Mapping) -> Quantity | None:
    """Return the ratio of two peaks, its text the percentage between them without a sign.

    None where one of them was not measured."""
    found = None if None in of.values() else compare.comparison(records, "peak_mib", of, to)
    if found is None:
        return None
    shown, metric = f"{digits.count(100 * abs(found.ratio.value - 1))}%", compare.baseline_text(records, of, to)
    return sentences.quantity(records, of, f"peak_mib/{metric}", found.ratio, shown)


def _is_raised(change: Quantity) -> bool:
    return change.value.value > 1


@of_records("mode", "precision")
def narrower(records: pd.DataFrame, case: Mapping) -> Statement:
    """State how bf16 changes the peak of a training step and of inference, and why."""
    said, numbers = [], []
    for mode, name in (("train_step", "a training step's peak"), ("no_grad", "inference's")):
        fp32 = {**case, "mode": mode, "precision": "fp32"}
        if change := _peak_change(records, {**fp32, "precision": "bf16"}, fp32):
            said.append(f"{'raises' if _is_raised(change) else 'lowers'} {name} by {change}")
            numbers.append(change)
    if not said:
        return MISSING
    raised = set(map(_is_raised, numbers))
    reasons = ["halves scores and the arrays of SwiGLU"] * (False in raised)
    reasons += ["adds half-precision copies of the weights"] * (True in raised)
    where, link = sentences.at("{size}, {context_length} tokens", case), " but " if len(raised) == 2 else " and "
    text = f"bf16 {link.join(said)} ({where}); by the formula it {sentences.listed(reasons)}."
    return Statement(text, "measured", "peak_mib in bf16 against fp32, counts without interval.", (), tuple(numbers))


def best_group(records: pd.DataFrame, case: Mapping) -> dict | None:
    """Return the checkpointed case with the least peak; None if there is none."""
    chosen = tidy.select(records, **{name: of for name, of in case.items() if name != "checkpoint"}, status="ok")
    sizes = sorted(set(tidy.column(chosen, "checkpoint").dropna()) - {0})
    cases = [{**case, "checkpoint": size} for size in sizes]
    return min(cases, key=lambda one: value(records, "peak_mib", one), default=None)


@of_records("checkpoint")
def saved(records: pd.DataFrame, case: Mapping) -> Statement:
    """State what the best group of checkpointed layers saves of the peak, and what it costs in time."""
    best, plain = best_group(records, case), {**case, "checkpoint": 0}
    change = _peak_change(records, best, plain) if best else None
    if change is None:
        return MISSING
    layers = f"in groups of {best['checkpoint']} layers" if best["checkpoint"] > 1 else "every layer"
    numbers = (change,)
    text = f"Checkpointing {layers} {'raises' if _is_raised(change) else 'lowers'} the peak by {change}"
    if timed := sentences.factor(records, "total_ms", best, plain):
        time = replace(timed[0], shown=sentences.times(timed[0].value))
        sure = time.verdict in (FASTER, SLOWER)
        text += f" and makes a step take {time} as long" if sure else f"; a step takes {time} as long ({time.verdict})"
        numbers += (time,)
    text += sentences.at(" ({size}, {context_length} tokens).", case)
    return Statement(text, "measured", "peak_mib and paired times against no checkpointing.", (), numbers)


def first_line(records: pd.DataFrame) -> Statement:
    """State the peak's parts, what bf16 and checkpointing save of one, and what fits, in a line."""
    plain = tidy.select(records, checkpoint=0)
    head = tidy.largest(plain, "parameters", precision="fp32", mode="train_step")
    found, peak = parts(tidy.one(plain, head)), number(plain, "peak_mib", head)
    if not found or peak is None:
        return sentences.missing(MISSING.text, records)
    words, numbers, savings = [], [peak], {}
    for name, mib in found.items():
        word, shown = PARTS[name][2], digits.count(mib)
        words.append(f"{word} {shown}")
        numbers.append(sentences.quantity(plain, head, f"peak_mib/{word}", counted(mib), shown))
    text = sentences.at(f"{peak} MiB ({{size}}, {{context_length}} tokens) = {' + '.join(words)}", head)
    long = tidy.largest(plain, "context_length", precision="bf16", mode="train_step")
    group = tidy.largest(records, "checkpoint", mode="train_step")
    pairs = [
        ("bf16", long, {**long, "precision": "fp32"}),
        ("checkpointing", best_group(records, group), {**group, "checkpoint": 0}),
    ]
    for name, of, to in pairs:
        if of and (change := _peak_change(records, of, to)):
            where = sentences.at("on {size} at {context_length} tokens", of)
            savings.setdefault(where, []).append(f"{name} {'+' if _is_raised(change) else '−'}{change}")
            numbers.append(change)
    text += "".join(f"; {where} {', '.join(changes)}" for where, changes in savings.items()) + "."
    largest = capacity.largest(records)
    text += f" The largest step that fits here, by formula: {largest[0]} at {largest[1]:,} tokens." if largest else ""
    evidence = (
        f"Parts of the peak, {described(tidy.one(plain, head))} Savings of the peak: bf16 at the longest context "
        "measured, checkpointing where it was."
    )
    return Statement(text, "measured", evidence, sentences.names(plain, head), tuple(numbers))


def labelled(peaks: pd.DataFrame) -> pd.DataFrame:
    """Add the column `step` to rows of `tidy.medians`: size, d_model, tokens and precision in words.

    What disturbs times does not disturb counts of bytes, so that its marks go."""
    words = ["{size} ({d_model}), {context_length}, {precision}".format(**row) for row in peaks.to_dict("records")]
    return peaks.drop(columns=list(tidy.MARKS), errors="ignore").assign(step=words)


@of_records()
def agreement(records: pd.DataFrame) -> Statement:
    """State how far the prediction and the formula are from the measured peaks."""
    said = []
    for name, word in (("predicted_peak_mib", "a run on fake tensors"), ("formula_mib", "the formula")):
        once = records.drop_duplicates(records.fields)
        ratios = tidy.column(tidy.with_quotient(once, "ratio", name, "peak_mib"), "ratio").dropna()
        off = [100 * (ratio[0] - 1) for ratio in ratios]
        if off:
            said.append(f"{word} predicts the peaks of {digits.count(len(off))} cases {sentences.off(*off)}")
    if not said:
        return MISSING
    text = f"Before a step runs, {' and '.join(said)}."
    return Statement(text, "measured", "predicted_peak_mib and formula_mib against peak_mib, each case once.")


def amount(records: pd.DataFrame, metric: str, case: Mapping, wording: str) -> Statement:
    """Insert the MiB of a case into `wording`, in place of {}."""
    mib = number(records, metric, case)
    if mib is None:
        return MISSING
    evidence, names = f"{metric}, {described(tidy.one(records, case))}", sentences.names(records, case)
    return Statement(wording.format(mib), "measured", evidence, names, (mib,))


def residual(size: str, context_length: int) -> Statement:
    """State the fp32 size of a residual-stream tensor of a model, at batch 4."""
    shape = flops.model_shape(size, context_length)
    product = " × ".join(map(digits.count, (shape.batch_size, context_length, shape.d_model, 4)))
    text = f"For {size} it is {product} bytes = {digits.exact(_residual_mib(shape))} MiB."
    return Statement(text, "derived", "arithmetic on the shape of the model.")


def _residual_mib(shape: flops.Shape) -> float:
    return 4 * shape.tokens * shape.d_model / MIB


@of_records()
def scores(records: pd.DataFrame, case: Mapping) -> Statement:
    """State whether the largest allocations of a case are attention scores."""
    record, theory = tidy.one(records, case), value(records, "scores_mib", case)
    rows = _rows(record, "largest")
    if math.isnan(theory) or rows.empty:
        return MISSING
    alike = rows[(rows["each_mib"] / theory - 1).abs() < 1e-6]
    counts = " of the ".join(digits.count(found["count"].sum()) for found in (alike, rows))
    end = f"; {counts} largest allocations have just that, made by {', '.join(sorted(set(alike['function'])))}."
    text = (
        f"The largest allocation has {digits.number(rows['each_mib'][0], 0)} MiB and is made by {rows['function'][0]}. "
        f"A layer's scores take {digits.number(theory, 0)} MiB in theory"
    )
    text += end if len(alike) else "; none of the largest allocations has just that."
    return Statement(text, "measured", f"largest allocations, {described(record)}")


def theory(records: pd.DataFrame) -> list[Hypothesis]:
    """Predict peaks by formula, memory held throughout a step, and single tensors."""
    plain = tidy.select(records, checkpoint=0)
    head = tidy.largest(plain, "parameters", precision="fp32", mode="train_step")
    long = tidy.largest(plain, "context_length", precision="fp32", mode="train_step")
    free, kept = ({**head, "mode": mode} for mode in ("no_grad", "forward"))
    narrow = tidy.largest(plain, "context_length", precision="bf16", mode="train_step")
    wide = {**narrow, "precision": "fp32"}

    def of(name: str, case: Mapping = head, to: Mapping | None = None) -> float:
        return value(plain, name, case) / (value(plain, name, to) if to else 1)

    rows, logits, formula = _rows(tidy.one(plain, long), "largest"), math.nan, "closed formula"
    if long["size"]:
        vocabulary = flops.model_shape(long["size"], 1).vocab_size
        logits = 4 * long["batch_size"] * long["context_length"] * vocabulary / MIB
    tensor = max(logits, of("scores_mib", long)), rows["each_mib"][0] if len(rows) else None
    at, at_long, at_narrow = (sentences.at(", {size} at {context_length}", case) for case in (head, long, narrow))
    rows = [
        (f"peak of a step, MiB{at}", formula, of("formula_mib"), of("peak_mib")),
        (f"alive after the step, MiB{at}", "16 bytes a parameter", 16 * of("parameters") / MIB,
         of("optimizer_end_mib"), LEAST),
        (f"a tensor of the residual stream, MiB{at}", "B T d × 4 bytes", of("residual_mib"),
         of("residual_observed_mib")),
        (f"peak of no_grad to that of forward{at}", formula, of("formula_mib", free, kept), of("peak_mib", free, kept)),
        (f"peak of a step, bf16 to fp32{at_narrow}", formula, of("formula_mib", narrow, wide),
         of("peak_mib", narrow, wide)),
        (f"the largest allocation, MiB{at_long}", "logits, BTV × 4 bytes, or scores, BhT² × 4", *tensor),
    ]  # fmt: skip
    return [Hypothesis(name, how, predicted, counted(found), *limit) for name, how, predicted, found, *limit in rows]


def mixed_memory(data: claims.Data) -> list[Found]:
    """Find the largest ratio of the peak in bf16 to that in fp32."""
    label = f"times as much {claims.SIZED}, {{mode}}, the most of {{{{}}}} cases"
    bf16, fp32 = {"precision": "bf16"}, {"precision": "fp32"}
    found = claims.ratios(claims.rows(data, "memory", checkpoint=0), "peak_mib", bf16, fp32, MORE, label)
    most = max(found, key=lambda one: one.value.value, default=None)
    return [claims.exact(most.of.format(len(found)), most.value.value, MORE, most.records)] if most else []


def residual_by_shape(_: claims.Data) -> list[Found]:
    """Find the size of a residual-stream activation of xl at context 256, by shape."""
    mib = _residual_mib(flops.model_shape("xl", 256))
    return [claims.exact("MiB by its shape, 4 bytes a number", mib, about(12.5, 0.01))]


def largest_allocation(data: claims.Data) -> list[Found]:
    """Find a forward pass's largest allocation, relative to a layer's scores."""
    records = claims.rows(data, "memory", mode="forward", precision="fp32", attention="naive")
    case = tidy.largest(records, "context_length") if len(records) else {}
    record = tidy.one(records, case)
    rows = _rows(record, "largest")
    if rows.empty:
        return []
    size, maker = rows["each_mib"][0] / record["scores_mib"][0], rows["function"][0]
    names, where = sentences.names(records, case), claims.SIZED.format(**case)
    return [
        claims.exact(f"times the scores of a layer, {where}", size, about(1, 1e-6), names),
        claims.exact("is the function that made it", float("attention" in maker), MORE, names, maker),
    ]
