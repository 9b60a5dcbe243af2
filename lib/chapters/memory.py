"""Sets the records of memory as tables and figures: timelines, what is alive at the peak, predictions for
models that do not fit, and activation checkpointing; measures nothing.
"""

import re
from collections.abc import Mapping
from dataclasses import replace

import matplotlib as mpl
import pandas as pd
from matplotlib.axes import Axes

from lib.config import SIZES
from lib.cost import flops, memory
from lib.report import plots, sentences, tables, tidy
from lib.report.headings import heading
from lib.report.plots import BLUE, COLOURS, GREEN, INK, ORANGE, PURPLE, QUIET, SKY, STYLE, VERMILION, YELLOW
from lib.report.published import published_table
from lib.stats import digits
from lib.stats.intervals import Interval

KINDS = {  # of bytes, in the order in which a bar is stacked
    "parameters": INK, "gradients": BLUE, "optimizer states": ORANGE, "attention": SKY, "feed-forward": GREEN,
    "norms and residuals": QUIET, "embedding, head, loss": PURPLE, "temporaries": VERMILION, "others": YELLOW,
}  # fmt: skip
MODULES = {  # the kind of the activations of a module, by the first pattern that is found in its name
    r"\.attn": "attention", r"\.ffn": "feed-forward", r"embed|lm_head|Global": "embedding, head, loss",
    "": "norms and residuals",
}  # fmt: skip
GIB = 2**30


def largest(record: pd.Series, most: int) -> tables.Table:
    """The largest allocations of one record, alike ones in one row, and who made them."""
    rows = pd.DataFrame(record.get("largest", {}) if isinstance(record.get("largest"), dict) else {}).head(most)
    return tables.Table(rows.rename(columns=heading), "The largest allocations of one iteration", described(record))


def described(record: pd.Series) -> str:
    """Which case a record is of, and on which hardware, in a few words."""
    names = ("hardware", "size", "context_length", "precision", "mode")
    said = ", ".join(f"{heading(name)}: {record[name]}" for name in names if name in record)
    return f"{said}." if said else ""


def with_tables(records: pd.DataFrame, name: str) -> pd.DataFrame:
    """The records that hold the table of that name."""
    chosen = records[tidy.column(records, name).map(lambda value: isinstance(value, dict)).astype(bool)]
    chosen.attrs = records.attrs
    return chosen


def timelines(records: pd.DataFrame) -> Axes:
    """One panel a record: the live memory against the time while it was followed, each phase shaded and named, and the
    highest point marked."""
    records = with_tables(records, "timeline")
    grid = plots.axes(max(1, len(records)), 3.4, sharey=True)
    with mpl.rc_context(STYLE):
        for ax, (_, record) in zip(grid, records.iterrows(), strict=False):
            live, phases = record["timeline"], record["phases"]
            ms = [us / 1e3 for us in live["instant_us"]]
            ax.fill_between(ms, live["live_mib"], step="post", color=INK, alpha=0.15, linewidth=0)
            ax.step(ms, live["live_mib"], where="post", color=INK, linewidth=1)
            for phase, begin, end in zip(phases["phase"], phases["begin_us"], phases["end_us"], strict=True):
                ax.axvspan(begin / 1e3, end / 1e3, color=COLOURS[phase], alpha=0.3, linewidth=0)
                place = (begin + end) / 2e3, 0.03
                ax.text(
                    *place, phase, transform=ax.get_xaxis_transform(), rotation=90, ha="center", va="bottom",
                    fontsize=9,
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
    """MiB alive at the peak by the kinds of `KINDS`, from the table `breakdown` of a record."""
    table, found = record["breakdown"], dict.fromkeys(KINDS, 0.0)
    for kind, module, size in zip(table["kind"], table["module"], table["part_mib"], strict=True):
        if kind == "activations":
            kind = next(name for pattern, name in MODULES.items() if re.search(pattern, module))
        found[kind] += size
    return found


def parts(records: pd.DataFrame) -> pd.DataFrame:
    """One row a record that tells where its peak goes: `label`, `hardware`, and MiB of each of the `KINDS`."""
    records = with_tables(records, "breakdown")
    rows = [{"hardware": record["hardware"], **breakdown(record)} for _, record in records.iterrows()]
    labels = [f"{r['size']} {r['context_length']} {r['precision']} {r['mode']}" for _, r in records.iterrows()]
    return pd.DataFrame(rows, columns=["hardware", *KINDS]).assign(label=labels)


def stacked(ax: Axes, table: pd.DataFrame) -> Axes:
    """A bar a row of `parts`, made of the kinds of bytes."""
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
    """One row a size of group: `checkpoint`, `forward_end_mib` (alive after the forward pass), `peak_mib`,
    `formula_mib`, and `ratio` and `verdict` of the time relative to none, from `verdicts.against_baselines`."""
    fields = records.attrs["fields"]
    table = tidy.medians(records, "forward_end_mib", "peak_mib", "formula_mib")
    if table.empty:
        return table.assign(ratio=None)
    table = table.merge(ratios[[*fields, "ratio", "verdict"]], on=fields, how="left")
    table = table.assign(verdict=table["verdict"].fillna(digits.MISSING))
    table.attrs["records"] = sentences.names(records, {})
    return table


def groups(axes: list[Axes], table: pd.DataFrame) -> Axes:
    """Beside one another, against the layers in a group: what is kept and the peak; and the time relative to none."""
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
            errors = [[max(0, i.value - i.low)], [max(0, i.high - i.value)]] if i.known else None
            axes[1].errorbar(
                str(n), i.value, yerr=errors, fmt=plots.MARKERS[ORANGE], color=ORANGE, capsize=2.5, markersize=5
            )
        axes[1].axhline(1, color=INK, linewidth=0.8)
        axes[1].set(xlabel="layers in a group", ylabel="time relative to none")
        for ax in axes:
            ax.grid(axis="y")
    return axes[0]


def shape(size: str, context_length: int = 1) -> flops.Shape:
    """The model of a size with the vocabulary and the batch of the assignment."""
    return flops.shape_of(replace(SIZES[size], context_length=int(context_length)), batch_size=4)


def predictions(sizes: list[str], contexts: list[int]) -> pd.DataFrame:
    """Peaks by the closed formula in GiB, which asks for no machine, for a GPU with naive attention and the plain
    optimizer: `size, context_length, precision`, and one column a mode."""
    modes, rows = ("no_grad", "forward", "train_step"), []
    for size in sizes:
        for context_length in contexts:
            of = shape(size, context_length)
            for precision in ("fp32", "bf16"):
                ways = precision, "naive", "single_tensor"
                peaks = {f"{mode}_gib": memory.peak_bytes(of, *ways, mode, "cuda") / GIB for mode in modes}
                rows.append({"size": size, "context_length": context_length, "precision": precision, **peaks})
    return pd.DataFrame(rows)


def beside_published() -> pd.DataFrame:
    """The published peaks beside the formula's for the same model, both also in percent of that GPU's memory."""
    table = published_table("memory").rename(columns={"model": "size", "phase": "mode", "peak_gib": "published_gib"})
    table["precision"] = table["precision"].map({"float32": "fp32", "mixed": "bf16"})
    rows = predictions(["xl"], sorted(table["context_length"].unique().tolist()))
    known = rows.set_index(["size", "context_length", "precision"])
    keys = zip(table["size"], table["context_length"], table["precision"], table["mode"], strict=True)
    table["by_formula_gib"] = [known.loc[key[:3], f"{key[3]}_gib"] for key in keys]
    whole = table["hardware"].str.extract(r"(\d+)GB")[0].astype(float)
    for name in ("published", "by_formula"):
        table[f"{name}_percent"] = 100 * table[f"{name}_gib"] / whole
    return table


def hardware(records: pd.DataFrame) -> str:
    """A note for a figure of records: their hardware, or nothing where there are none."""
    names = ", ".join(dict.fromkeys(records["hardware"])) if len(records) else ""
    return f"{names}. One iteration of each." if names else ""


def one(records: pd.DataFrame, case: Mapping) -> pd.Series:
    """The first record of a case, or one that holds nothing."""
    chosen = tidy.select(records, **case)
    return chosen.iloc[0] if len(chosen) else pd.Series(dtype=object)


def contexts(records: pd.DataFrame, case: Mapping) -> list[int]:
    """The context lengths at which the records have a case's size and precision."""
    chosen = tidy.select(records, size=case["size"], precision=case["precision"])
    return sorted(set(chosen["context_length"]))
