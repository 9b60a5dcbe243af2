"""Analyse memory: timelines, the peak's content, predictions and checkpointing.

Sentences rest on one iteration of each case. They state counts, which have no interval.
"""

import itertools
import math
import re
from collections.abc import Mapping

import matplotlib as mpl
import pandas as pd
from matplotlib.axes import Axes

from lib.cost import flops, memory
from lib.report import claims, hypotheses, plots, sentences, tables, tidy
from lib.report.claims import MORE, Found, about
from lib.report.headings import heading
from lib.report.hypotheses import LEAST, Hypothesis, counted, value
from lib.report.plots import BLUE, COLOURS, GREEN, INK, ORANGE, PURPLE, QUIET, SKY, STYLE, VERMILION, YELLOW
from lib.report.published import published_table
from lib.report.sentences import Statement, of_records
from lib.stats import digits
from lib.stats.intervals import Interval

KINDS = {  # kinds of bytes, in the order in which a bar is stacked
    "parameters": INK, "gradients": BLUE, "optimizer states": ORANGE, "attention": SKY, "feed-forward": GREEN,
    "norms and residuals": QUIET, "embedding, head, loss": PURPLE, "temporaries": VERMILION, "others": YELLOW,
}  # fmt: skip
MODULES = {  # kinds of activations, by the first pattern found in a module's name
    r"\.attn": "attention", r"\.ffn": "feed-forward", r"embed|lm_head|Global": "embedding, head, loss",
    "": "norms and residuals",
}  # fmt: skip
MIB, GIB = 2**20, 2**30
MISSING = Statement("This was not measured here.", sentences.NO_DATA, "memory")


def largest(record: pd.Series, most: int) -> tables.Table:
    """Return a table of a record's largest allocations and who made them."""
    rows = pd.DataFrame(record.get("largest", {}) if isinstance(record.get("largest"), dict) else {}).head(most)
    return tables.Table(rows.rename(columns=heading), "The largest allocations of one iteration", described(record))


def described(record: pd.Series) -> str:
    """Describe a record's case and hardware in a few words."""
    names = ("hardware", "size", "context_length", "precision", "mode")
    said = ", ".join(f"{heading(name)}: {record[name]}" for name in names if name in record)
    return f"{said}." if said else ""


def hardware(records: pd.DataFrame) -> str:
    """Return a figure's note on its hardware, empty without records."""
    names = ", ".join(dict.fromkeys(records["hardware"]))
    return f"{names}. One iteration of each." if names else ""


def timelines(records: pd.DataFrame) -> Axes:
    """Draw live memory over time, one panel per record, with phases and the peak."""
    records = tidy.with_table(records, "timeline")
    grid = plots.axes(max(1, len(records)), 3.4, sharey=True)
    with mpl.rc_context(STYLE):
        for ax, (_, record) in zip(grid, records.iterrows(), strict=False):
            live, phases = record["timeline"], record["phases"]
            ms = [us / 1e3 for us in live["instant_us"]]
            ax.fill_between(ms, live["live_mib"], step="post", color=INK, alpha=0.15, linewidth=0)
            ax.step(ms, live["live_mib"], where="post", color=INK, linewidth=1)
            for phase, begin, end in zip(phases["phase"], phases["begin_us"], phases["end_us"], strict=True):
                ax.axvspan(begin / 1e3, end / 1e3, color=COLOURS[phase], alpha=0.3, linewidth=0)
                ax.text(
                    (begin + end) / 2e3, 0.03, phase, transform=ax.get_xaxis_transform(), rotation=90, ha="center",
                    va="bottom", fontsize=9,
                )  # fmt: skip
            highest = max(range(len(ms)), key=live["live_mib"].__getitem__)
            ax.plot(ms[highest], live["live_mib"][highest], "v", color=INK, markersize=6)
            ax.set_title(f"{record['mode']}, {record['precision']}")
            ax.set(xlabel="time while followed, ms")
            ax.grid(axis="y")
        most = max((max(table["live_mib"]) for table in records.get("timeline", [])), default=1)
        grid[0].set(ylabel="live memory, MiB", ylim=(0, 1.08 * most))
    return grid[0]


def breakdown(record: pd.Series) -> dict[str, float]:
    """Add up the MiB alive at a record's peak by the kinds of `KINDS`."""
    table, found = record["breakdown"], dict.fromkeys(KINDS, 0.0)
    for kind, module, size in zip(table["kind"], table["module"], table["part_mib"], strict=True):
        if kind == "activations":
            kind = next(name for pattern, name in MODULES.items() if re.search(pattern, module))
        found[kind] += size
    return found


def parts(records: pd.DataFrame) -> pd.DataFrame:
    """Return the MiB of each kind at the peak, one row per record with a breakdown."""
    rows = [
        {"label": f"{r['size']} {r['context_length']} {r['precision']} {r['mode']}", "hardware": r["hardware"]}
        | breakdown(r)
        for _, r in tidy.with_table(records, "breakdown").iterrows()
    ]
    return pd.DataFrame(rows, columns=["label", "hardware", *KINDS])


def stacked(ax: Axes, table: pd.DataFrame) -> Axes:
    """Draw a bar per row of `parts`, stacked by kind."""
    with mpl.rc_context(STYLE):
        left = pd.Series(0.0, index=table.index)
        for kind, colour in KINDS.items():
            ax.barh(
                table["label"], table[kind], left=left, label=kind,
                **plots.bar(colour) | {"color": (colour, 0.45 if colour in (INK, QUIET) else 1)},
            )  # fmt: skip
            left = left + table[kind]
        ax.invert_yaxis()
        ax.set(xlabel="alive at the peak, MiB")
        ax.grid(axis="x")
        ax.figure.legend(loc="outside upper left", ncols=3, frameon=False, fontsize=9)
    return ax


def checkpointed(records: pd.DataFrame, ratios: pd.DataFrame) -> pd.DataFrame:
    """Return memory, and time relative to no groups, one row per case."""
    fields = records.attrs["fields"]
    table = tidy.medians(records, "forward_end_mib", "peak_mib", "formula_mib")
    if table.empty:
        return table.assign(ratio=None)
    table = table.merge(ratios[[*fields, "ratio", "verdict"]], on=fields, how="left")
    return table.assign(verdict=table["verdict"].fillna(digits.MISSING))


def groups(axes: list[Axes], table: pd.DataFrame) -> Axes:
    """Draw kept and peak memory, and the relative time, against layers in a group."""
    table = table[table["peak_mib"].notna()].sort_values("checkpoint")
    places = [str(n) if n else "none" for n in table["checkpoint"]]
    with mpl.rc_context(STYLE):
        for name, colour, word in (("peak_mib", INK, "peak"), ("forward_end_mib", BLUE, "after the forward pass")):
            heights = [i.value for i in table[name]]
            axes[0].plot(places, heights, plots.MARKERS[colour] + "-", color=colour, markersize=5)
            if heights:
                end = places[-1], heights[-1]
                axes[0].annotate(word, end, (4, 7), textcoords="offset points", ha="right", color=colour, fontsize=10)
        axes[0].set(xlabel="layers in a group", ylabel="live memory, MiB", ylim=(0, None))
        timed = table[table["ratio"].map(lambda ratio: isinstance(ratio, Interval)).astype(bool)]
        for n, i in zip(timed["checkpoint"], timed["ratio"], strict=True):
            axes[1].errorbar(
                str(n), i.value, yerr=plots.errors([i]), fmt=plots.MARKERS[ORANGE], color=ORANGE, capsize=2.5,
                markersize=5,
            )  # fmt: skip
        axes[1].axhline(1, color=INK, linewidth=0.8)
        axes[1].set(xlabel="layers in a group", ylabel="time relative to none")
        for ax in axes:
            ax.grid(axis="y")
    return axes[0]


def predictions(sizes: list[str], contexts: list[int]) -> pd.DataFrame:
    """Predict peaks in GiB on a GPU with naive attention, one column per mode."""
    rows = []
    for size, context_length, precision in itertools.product(sizes, contexts, ("fp32", "bf16")):
        of, ways = flops.model_shape(size, context_length), (precision, "naive", "single_tensor")
        row = {"size": size, "context_length": context_length, "precision": precision}
        for mode in ("no_grad", "forward", "train_step"):
            row[f"{mode}_gib"] = memory.peak_bytes(of, *ways, mode, "cuda") / GIB
        rows.append(row)
    return pd.DataFrame(rows)


def published() -> pd.DataFrame:
    """Return the published peaks in GiB, one row per case."""
    table = published_table("memory").rename(columns={"model": "size", "phase": "mode", "peak_gib": "published_gib"})
    return table.replace({"precision": {"float32": "fp32", "mixed": "bf16"}})


def beside_published() -> pd.DataFrame:
    """Return published peaks and the formula's, also in percent of the GPU's memory."""
    table = published()
    keys = ["size", "context_length", "precision"]
    known = predictions(["xl"], sorted(table["context_length"].unique().tolist())).set_index(keys)
    table["by_formula_gib"] = [known.loc[tuple(row[keys]), f"{row['mode']}_gib"] for _, row in table.iterrows()]
    whole = table["hardware"].str.extract(r"(\d+)GB")[0].astype(float)
    for name in ("published", "by_formula"):
        table[f"{name}_percent"] = 100 * table[f"{name}_gib"] / whole
    return table


@of_records()
def phases_told(records: pd.DataFrame, case: Mapping) -> Statement:
    """State which phase peaks highest, and whether peaks tell the phases apart."""
    found, ends = (
        {phase: value(records, f"{phase}_{what}_mib", case) for phase in ("forward", "backward", "optimizer")}
        for what in ("peak", "end")
    )
    if math.isnan(sum((*found.values(), *ends.values()))):
        return MISSING
    peaks = ", ".join(f"{digits.number(mib, 0)} MiB in the {phase}" for phase, mib in found.items())
    fall = ends["forward"] - ends["backward"]
    differ = min(abs(a - b) / max(a, b) for a, b in itertools.combinations(found.values(), 2))
    told = "The phases can be told apart by their peaks" if differ > 0.01 else (
        "Two peaks differ by less than 1%, so the phases are told by the slope and not by the peaks"
    )  # fmt: skip
    text = (
        f"The highest point of the step is in its {max(found, key=found.get)}: the peaks are {peaks}. From the end of "
        f"the forward pass to that of the backward pass live memory {'falls' if fall > 0 else 'grows'} by "
        f"{digits.number(abs(fall), 0)} MiB, since activations are freed and gradients made. {told}."
    )
    return Statement(text, "measured", f"peaks and ends of the phases, {described(tidy.one(records, case))}")


@of_records()
def agreement(records: pd.DataFrame) -> Statement:
    """State how far the prediction and the formula are from the measured peaks."""
    said = []
    for name, word in (("predicted_peak_mib", "the prediction"), ("formula_mib", "the formula")):
        ratios = tidy.column(tidy.with_quotient(records, "ratio", name, "peak_mib"), "ratio").dropna()
        off = [100 * (ratio[0] - 1) for ratio in ratios]
        if off:
            most = max(off, key=abs)
            far = "exact" if most == 0 else f"at most {digits.number(abs(most))}% too {'high' if most > 0 else 'low'}"
            said.append(f"{word} is {far} over {digits.count(len(off))} cases")
    if not said:
        return MISSING
    return Statement(f"Against the measured peaks, {' and '.join(said)}.", "measured", "peak_mib, each case once.")


def amount(records: pd.DataFrame, metric: str, case: Mapping, wording: str) -> Statement:
    """Insert the MiB of a case into `wording`, in place of {}."""
    mib = value(records, metric, case)
    if math.isnan(mib):
        return MISSING
    evidence, names = f"{metric}, {described(tidy.one(records, case))}", sentences.names(records, case)
    return Statement(wording.format(digits.number(mib, 0)), "measured", evidence, names)


@of_records("context_length")
def growth(records: pd.DataFrame, case: Mapping, subject: str) -> Statement:
    """State how the peak grows between a case's two longest contexts, as an exponent."""
    ends = hypotheses.ends(records, "context_length", case)
    low, high = (end["context_length"] for end in ends)
    less, more = (value(records, "peak_mib", end) for end in ends)
    if math.isnan(less + more):
        return Statement(f"How {subject} grows was not measured here.", sentences.NO_DATA, "fewer than two contexts.")
    power = math.log(more / less) / math.log(high / low)
    values = f"from {digits.number(less, 0)} to {digits.number(more, 0)} MiB"
    text = f"From {low:,} to {high:,} tokens at size {case['size']}, {subject} grows {values}, an exponent of "
    return Statement(f"{text}{digits.number(power)}.", "measured", "peak_mib, counts without interval.")


@of_records("mode", "precision")
def narrower(records: pd.DataFrame, case: Mapping, modes: Mapping[str, str]) -> Statement:
    """State how bf16 changes the peaks of a case; `modes` are keyed to their names."""
    said = []
    for mode, name in modes.items():
        bf16, fp32 = (
            value(records, "peak_mib", {**case, "mode": mode, "precision": precision}) for precision in ("bf16", "fp32")
        )
        change = 100 * (bf16 / fp32 - 1)
        if not math.isnan(change):
            said.append(f"{name} by {'+' * (change > 0)}{digits.number(change)}%")
    if not said:
        text = f"What bf16 changes of the peaks at size {case['size']} was not measured here."
        return Statement(text, sentences.NO_DATA, "memory")
    where = sentences.at("At size {size}, context {context_length}", case)
    text = f"{where}, bf16 changes the peak of {', that of '.join(said)}."
    return Statement(text, "measured", "peak_mib in bf16 against fp32, counts without interval.")


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
    if math.isnan(theory) or not isinstance(record.get("largest"), dict):
        return MISSING
    rows = pd.DataFrame(record["largest"])
    alike = rows[(rows["each_mib"] / theory - 1).abs() < 1e-6]
    counts = " of the ".join(digits.count(found["count"].sum()) for found in (alike, rows))
    end = f"; {counts} largest allocations have just that, made by {', '.join(sorted(set(alike['function'])))}."
    text = (
        f"The largest allocation has {digits.number(rows['each_mib'][0], 0)} MiB and is made by {rows['function'][0]}. "
        f"A layer's scores take {digits.number(theory, 0)} MiB in theory"
    )
    text += end if len(alike) else "; none of the largest allocations has just that."
    return Statement(text, "measured", f"largest allocations, {described(record)}")


@of_records("checkpoint")
def saved(records: pd.DataFrame, case: Mapping) -> list[Statement]:
    """State how much of the peak and of what is kept each group size saves."""
    chosen = tidy.select(records, **{name: of for name, of in case.items() if name != "checkpoint"})
    said, metrics = [], ("forward_end_mib", "peak_mib")
    none = [value(chosen, name, {"checkpoint": 0}) for name in metrics]
    for size in sorted(set(chosen["checkpoint"]) - {0}):
        found = [value(chosen, name, {"checkpoint": size}) for name in metrics]
        kept, peak = (100 * (1 - some / all_) for some, all_ in zip(found, none, strict=True))
        if not math.isnan(kept + peak):
            parts = (
                f"{digits.number(kept)}% of what is alive after the forward pass and {digits.number(peak)}% of the peak"
            )
            evidence = f"peak {found[1]:.1f} MiB against {none[1]:.1f}."
            said.append(Statement(f"Groups of {size} save {parts}.", "measured", evidence))
    return said or [MISSING]


@of_records("checkpoint")
def best_group(records: pd.DataFrame, case: Mapping) -> Statement:
    """State which group size has the least peak."""
    sizes = sorted(set(records["checkpoint"]))
    found = {size: value(records, "peak_mib", {**case, "checkpoint": size}) for size in sizes}
    found = {size: mib for size, mib in found.items() if not math.isnan(mib)}
    if len(found) < 2:
        return MISSING
    best = min(found, key=found.get)
    spread = 100 * (max(mib for size, mib in found.items() if size) / found[best] - 1)
    text = (
        f"The least peak is that of groups of {best}; that of no other is more than {digits.number(spread)}% above it."
    )
    return Statement(text, "measured", "peak_mib, one iteration of each.")


def theory(records: pd.DataFrame) -> list[Hypothesis]:
    """Predict peaks by formula, memory held throughout a step, and single tensors."""
    plain = tidy.select(records, checkpoint=0)
    head = tidy.largest(plain, "parameters", precision="fp32", mode="train_step")
    long = tidy.largest(plain, "context_length", precision="fp32", mode="train_step")
    free, kept = ({**head, "mode": mode} for mode in ("no_grad", "forward"))
    narrow = {**long, "precision": "bf16"} if long["precision"] else long

    def of(name: str, case: Mapping = head, to: Mapping | None = None) -> float:
        return value(plain, name, case) / (value(plain, name, to) if to else 1)

    table, logits, formula = tidy.one(plain, long).get("largest"), math.nan, "closed formula"
    if long["size"]:
        vocabulary = flops.model_shape(long["size"], 1).vocab_size
        logits = 4 * long["batch_size"] * long["context_length"] * vocabulary / MIB
    tensor = max(logits, of("scores_mib", long)), table["each_mib"][0] if isinstance(table, dict) else None
    at, at_long = (sentences.at(", {size} at {context_length}", case) for case in (head, long))
    rows = [
        (f"peak of a step, MiB{at}", formula, of("formula_mib"), of("peak_mib")),
        (f"alive after the step, MiB{at}", "16 bytes a parameter", 16 * of("parameters") / MIB,
         of("optimizer_end_mib"), LEAST),
        (f"a tensor of the residual stream, MiB{at}", "B T d × 4 bytes", of("residual_mib"),
         of("residual_observed_mib")),
        (f"peak of no_grad to that of forward{at}", formula, of("formula_mib", free, kept), of("peak_mib", free, kept)),
        (f"peak of a step, bf16 to fp32{at_long}", formula, of("formula_mib", narrow, long),
         of("peak_mib", narrow, long)),
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
    if not isinstance(record.get("largest"), dict):
        return []
    size, maker = record["largest"]["each_mib"][0], record["largest"]["function"][0]
    names, where = sentences.names(records, case), claims.SIZED.format(**case)
    return [
        claims.exact(f"times the scores of a layer, {where}", size / record["scores_mib"][0], about(1, 1e-6), names),
        claims.exact("is the function that made it", float("attention" in maker), MORE, names, maker),
    ]
