"""Draw tidy tables: functions take a table of `tidy.medians` and return Axes."""

import hashlib
import html
import io
import math
import re
from collections.abc import Sequence
from pathlib import Path

import matplotlib as mpl
import matplotlib.pyplot as plt
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.axis import Axis
from matplotlib.lines import Line2D
from matplotlib.ticker import LogLocator, MaxNLocator, NullLocator, StrMethodFormatter

from lib.catalog import CATALOG, PRECISIONS
from lib.report import tables
from lib.report.headings import heading
from lib.stats.intervals import Interval

INK = "#010203"  # the report replaces it by the page's ink, for dark mode and for print
QUIET = "#040506"  # the report replaces it by the page's quieter ink
# the hues of Okabe and Ito (2008), as light as 3:1 on a white and on a black page allows
BLUE, ORANGE, GREEN, PURPLE, SKY = "#0072B2", "#C08500", "#009E73", "#C76FA1", "#1D98DD"
YELLOW, VERMILION = "#9C920C", "#D55E00"
_HUES = {
    "ink": INK,
    "orange": ORANGE,
    "green": GREEN,
    "purple": PURPLE,
    "blue": BLUE,
    "sky": SKY,
    "vermilion": VERMILION,
}
_LOOKS = {name: look.split() for each in CATALOG.values() for name, look in each.variants.items() if look}
COLOURS = {  # the reference of each family in ink
    **{name: _HUES[look[0]] for name, look in _LOOKS.items()},
    **{name: _HUES[hue] for name, hue in PRECISIONS.items()},
    "forward": SKY, "backward": BLUE, "optimizer": ORANGE, "whole": INK,
    "scores": BLUE, "softmax": ORANGE, "values": GREEN,
    "T=16": INK, "T=32": ORANGE, "T=64": GREEN, "T=128": BLUE, "T=256": PURPLE, "T=512": SKY, "T=1024": VERMILION,
    "parameters": SKY, "gradients": BLUE, "states": ORANGE, "all-reduce": GREEN, "synchronization": VERMILION,
    "n=2": INK, "n=4": ORANGE, "n=6": GREEN, "n=8": BLUE,
    "matrix_product": BLUE, "attention": YELLOW, "elementwise": GREEN, "reduction": SKY, "copy": PURPLE,
    "overhead": QUIET, "other": VERMILION,
    "products": BLUE, "functions": SKY, "bytes": ORANGE, "faults": PURPLE, "calls": GREEN, "unexplained": QUIET,
}  # fmt: skip
# tell variants apart without colours: a marker for each hue, dashes within one, hatches for bars
MARKERS = {INK: "o", ORANGE: "s", GREEN: "^", BLUE: "D", PURPLE: "v", SKY: "<", YELLOW: "p", VERMILION: ">"}
_DASHES = {"dashed": (0, (4, 1.5)), "dotted": (0, (1, 1.2)), "dashdot": (0, (4, 1.2, 1, 1.2))}
DASHES = {name: _DASHES[look[1]] for name, look in _LOOKS.items() if look[1:]}
HATCHES = {
    BLUE: "", ORANGE: "///", GREEN: "\\\\\\", SKY: "|", PURPLE: "xxx", YELLOW: "---", VERMILION: "+++",
    QUIET: "||||", INK: "x",
}  # fmt: skip
WIDTH = 5.2  # inches; the page scales it to the width of the text
FONT = 10  # points, of all text: 9.3 pixels where a phone shows a figure 349 pixels wide
LETTER = 0.62 * FONT  # points; the mean width of a letter in the widest typeface
LONG = 16  # letters; a longer name of a line stands in a legend
HATCH = (*mpl.colors.to_rgb(INK), 0.45)
STYLE = {
    "axes.edgecolor": QUIET, "axes.labelcolor": INK, "axes.spines.right": False, "axes.spines.top": False,
    "axes.titlelocation": "left", "axes.titlesize": FONT, "legend.fontsize": FONT,
    "figure.constrained_layout.use": True,
    "figure.facecolor": "none", "axes.facecolor": "none", "savefig.facecolor": "none", "font.size": FONT,
    "grid.color": QUIET, "grid.alpha": 0.25, "grid.linewidth": 0.6, "hatch.linewidth": 0.5, "lines.linewidth": 1.6,
    "svg.fonttype": "none", "text.color": INK, "xtick.color": INK, "ytick.color": INK,
    "xtick.labelcolor": INK, "ytick.labelcolor": INK,
}  # fmt: skip
MARGINS = (0.02, 0, 0.95, 1)  # left, bottom, width and height: browsers set small text wider than matplotlib


@mpl.rc_context(STYLE)
def axes(count: int = 1, height: float = 3.6, **options) -> list[Axes]:
    """Return `count` empty Axes, two to a row of this height in inches, as wide as the text."""
    across, down = min(count, 2), math.ceil(count / 2)
    figure, grid = plt.subplots(down, across, figsize=(WIDTH, height * down), squeeze=False, **options)
    figure.get_layout_engine().set(rect=MARGINS, wspace=0.06 * (across > 1))  # the last tick of one clear of the next
    for unused in grid.flat[count:]:
        unused.remove()
    return list(grid.flat[:count])


def beside(ax: Axes, end: float, row: float | str, text: str) -> None:
    """Write a text to the right of a bar's end."""
    ax.annotate(
        text, (end, row), xytext=(6, 0), textcoords="offset points", va="center", annotation_clip=False, color=INK
    )


def colour_of(name: str) -> str:
    """Return the colour of a line, chosen by the first word of its name."""
    return COLOURS.get(name.split()[0], INK)


def dash_of(name: str) -> str | tuple:
    """Return the dash of a line, chosen like its colour."""
    return DASHES.get(name.split()[0], "-")


def errors(intervals: list[Interval]) -> list[list[float]]:
    """Return distances down and up to interval ends, zero without an interval."""
    return [
        [i.value - i.low if i.known else 0 for i in intervals],
        [i.high - i.value if i.known else 0 for i in intervals],
    ]


@mpl.rc_context(STYLE)
def lines(
    ax: Axes, table: pd.DataFrame, x: str, y: str, line: str, named: Sequence[str] | None = None
) -> Axes:  # fmt: skip
    """Draw medians `y` with intervals against `x` on log axes, one line per value of `line`.

    Ticks are the measured sizes. Lines, or only those `named`, are labelled at their ends, or in a legend if a name is
    long. A hollow marker means a noisy machine. A column `colour` overrides the colours of the names."""
    table = table[table[y].notna()]
    ends = []
    for name, group in table.groupby(line, sort=False):
        group = group.sort_values(x)
        colour = group["colour"].iloc[0] if "colour" in group else colour_of(name)
        values = [i.value for i in group[y]]
        ax.errorbar(
            group[x], values, yerr=errors(list(group[y])), color=colour, capsize=2.5, elinewidth=1,
            linestyle=dash_of(name),
        )  # fmt: skip
        for noisy, part in group.groupby(group["noisy"].astype(bool)):
            face = "none" if noisy else colour
            heights = [i.value for i in part[y]]
            ax.plot(part[x], heights, MARKERS[colour], color=colour, markerfacecolor=face, markersize=5)
        ends.append((group[x].iloc[-1], values[-1], name, colour))
    ax.set(xscale="log", yscale="log", xlabel=heading(x), ylabel=heading(y))
    sizes = sorted(size for size in table[x].unique() if size > 0)  # zero has no place on a log axis
    ax.set_xticks(sizes, _without_overlap(ax, sizes))
    ax.xaxis.set_minor_locator(NullLocator())
    round_ticks(ax.yaxis)
    ax.grid(axis="y")
    names = [end[2] for end in ends]
    if named is None and max(map(len, names), default=0) > LONG:
        legend(ax, names)
    else:
        label_ends(ax, [end for end in ends if named is None or end[2] in named])
    return ax


def _without_overlap(ax: Axes, sizes: list[float]) -> list[str]:
    """Return the labels of these ticks of a log axis, empty where one would touch the next larger one."""
    labels, next_left = [], math.inf
    width = 0.85 * (_panel_width(ax) - 9 * FONT)  # without what stands left of the axis, and room at its ends
    scale = width / math.log(max(sizes[-1] / sizes[0], 2)) if sizes else 0
    for size in reversed(sizes):
        text, middle = _size_label(size), scale * math.log(size)
        half = LETTER * len(text) / 2
        labels.append(text if middle + half < next_left else "")
        next_left = middle - half - LETTER if labels[-1] else next_left
    return labels[::-1]


def _panel_width(ax: Axes) -> float:
    """Return about how wide one panel of a figure is, in points."""
    return 72 * ax.figure.get_figwidth() / ax.get_subplotspec().get_gridspec().ncols


def _panel_height(ax: Axes) -> float:
    """Return about how high the axes of one panel of a figure are, in points."""
    return 72 * ax.figure.get_figheight() / ax.get_subplotspec().get_gridspec().nrows - 5 * FONT


def _size_label(value: float) -> str:
    """Format a tick in Ki (1,024) or Mi where that is short and exact."""
    value = int(value) if float(value).is_integer() else value
    for unit, factor in (("Mi", 2**20), ("Ki", 2**10)):
        if value >= 10_000 and value % factor == 0:
            return f"{value // factor:,} {unit}"
    return f"{value:,}"


def models(ax: Axes, table: pd.DataFrame, x: str, y: str, line: str) -> Axes:
    """Draw a model's values as thin dashed lines without names, coloured as in `lines`.

    Draw them before `lines`, so that the axes have room for both."""
    for name, group in table[table[y].notna()].groupby(line, sort=False):
        group = group.sort_values(x)
        colour = colour_of(name)
        ax.plot(group[x], [i.value for i in group[y]], color=colour, linewidth=0.8, linestyle=(0, (4, 2)))
    return ax


def round_ticks(axis: Axis) -> None:
    """Set round numbers as the only ticks of a log axis, even if it spans under a decade."""
    low, high = axis.get_view_interval()
    decades = math.log10(high / low)
    subs = (1, 2, 5) if decades < 2.5 else (1, 3) if decades < 4 else (1,)
    axis.set_major_locator(LogLocator(subs=subs) if decades > 1 else MaxNLocator(5, steps=[1, 2, 5, 10]))
    axis.set_minor_locator(NullLocator())
    axis.set_major_formatter(StrMethodFormatter("{x:,.9g}"))


@mpl.rc_context(STYLE)
def panels(table: pd.DataFrame, panel: str, x: str, y: str, line: str) -> Axes:
    """Draw `lines` in one panel per value of `panel`, on a common scale, with a legend above."""
    table = table[table[y].notna()]
    values = sorted(table[panel].unique())
    grid = axes(max(1, len(values)), 2.6, sharey=True)
    for number, (value, ax) in enumerate(zip(values, grid, strict=False)):
        lines(ax, table[table[panel] == value], x, y, line, [])
        ax.set_title(f"{heading(panel)}: {value:,}", loc="left")
        if number % 2:
            ax.set_ylabel("")
    legend(grid[0], list(dict.fromkeys(table[line])))
    return grid[-1]


@mpl.rc_context(STYLE)
def legend(ax: Axes, names: Sequence[str]) -> None:
    """Draw the names of lines above all panels, with their markers and dashes."""
    keys = [
        Line2D([], [], color=colour_of(name), marker=MARKERS[colour_of(name)], markersize=5, linestyle=dash_of(name))
        for name in names
    ]
    above(ax, keys, names)


def above(ax: Axes, keys: list, names: Sequence[str]) -> None:
    """Draw a legend above all panels, in as many columns as its names leave room for."""
    column = LETTER * max(map(len, names), default=0) + 5.5 * FONT
    columns = max(1, min(len(names), int(72 * ax.figure.get_figwidth() // column)))
    ax.figure.legend(
        keys, names, loc="outside upper left", ncols=columns, frameon=False, columnspacing=1.2, handlelength=2.8,
        borderpad=0,
    )  # fmt: skip


def label_ends(ax: Axes, ends: list[tuple]) -> None:
    """Label lines at their ends on a log axis, moved apart so that none overlap."""
    low, high = ax.get_ylim()
    least = (high / low) ** (1.35 * FONT / _panel_height(ax))
    placed = 0.0
    for x, y, name, colour in sorted(ends, key=lambda end: end[1]):
        placed = max(y, placed * least)
        ax.annotate(
            name, (x, placed), xytext=(8, 0), textcoords="offset points", color=colour, va="center",
            annotation_clip=False,
        )  # fmt: skip


def bar(colour: str) -> dict:
    """Return the style of one part of a bar in this colour."""
    return {"color": colour, "height": 0.62, "hatch": HATCHES[colour], "edgecolor": HATCH, "linewidth": 0}


@mpl.rc_context(STYLE)
def phases(
    ax: Axes, table: pd.DataFrame, unit: str, xlabel: str, names: Sequence[str] = ("forward", "backward", "optimizer"),
    least: str = "",
) -> Axes:  # fmt: skip
    """Draw a stacked bar per row, at its `label`, from columns such as `forward_<unit>`.

    `names` are the parts, by default the phases. Each has its own interval at its end; a legend stands above the
    bars. The column `least` is marked on each bar as the least possible."""
    table = table[table[f"{names[0]}_{unit}"].notna()] if names else table
    left = [0.0] * len(table)
    for name in names:
        parts = [part or Interval(0, 0, 0, 0, 0) for part in table[f"{name}_{unit}"]]
        ax.barh(
            table["label"],
            [i.value for i in parts],
            left=left,
            label=name.replace("_", " "),
            **bar(COLOURS[name]),
        )
        left = [start + i.value for start, i in zip(left, parts, strict=True)]
        ax.errorbar(left, table["label"], xerr=errors(parts), fmt="none", ecolor=INK, elinewidth=1, capsize=2.5)
    marks = [(i.value, row) for row, i in enumerate(table[least]) if isinstance(i, Interval)] if least else []
    for number, (value, row) in enumerate(mark for mark in marks if math.isfinite(mark[0])):
        label = "_" * bool(number) + "least possible"
        ax.plot([value] * 2, [row - 0.42, row + 0.42], color=INK, linewidth=2.4, label=label)
    ax.invert_yaxis()
    ax.set(xlabel=xlabel)
    ax.grid(axis="x")
    if names:
        above(ax, *ax.get_legend_handles_labels())
    return ax


@mpl.rc_context(STYLE)
def ratios(ax: Axes, table: pd.DataFrame, xlabel: str) -> Axes:
    """Draw the rows of `compare.ratios` as points with intervals, at their `label`.

    A line marks one; points to its left take less time."""
    table = table[table["ratio"].notna()]
    for row, (_, line) in enumerate(table.iterrows()):
        i, colour = line["ratio"], COLOURS.get(line["name"], INK)
        face = "none" if line["noisy"] else colour
        ax.errorbar(
            i.value, row, xerr=errors([i]), color=colour, marker=MARKERS[colour], markerfacecolor=face,
            capsize=3, markersize=5,
        )  # fmt: skip
    ax.axvline(1, color=INK, linewidth=0.8)
    ax.set_yticks(range(len(table)), table["label"])
    ax.set(xscale="log", xlabel=xlabel, ylim=(max(1, len(table)) - 0.5, -0.5))
    round_ticks(ax.xaxis)
    ax.grid(axis="x")
    return ax


@mpl.rc_context(STYLE)
def heatmap(ax: Axes, cells: pd.DataFrame, y: str, x: str, value: str, **options) -> Axes:
    """Draw the column `value` as a map of `x` by `y` whose fields show the texts of the column `label`.

    `options` are those of seaborn: the colours and what their ends stand for."""
    import seaborn as sns  # takes a second, which a measuring process need not wait for

    values, labels = (
        cells.pivot_table(index=y, columns=x, values=name, aggfunc="first", dropna=False) for name in (value, "label")
    )
    rows, columns = ([f"{size:,}" for size in sizes] for sizes in values.axes)
    sns.heatmap(
        values.astype(float), annot=labels.astype(object).fillna(""), fmt="", cbar=False, ax=ax, xticklabels=columns,
        yticklabels=rows, **options,
    )  # fmt: skip
    ax.set(xlabel=heading(x), ylabel=heading(y))
    ax.tick_params(length=0, labelrotation=0)
    return ax


class Figure:
    """A figure as SVG, with its caption and alternative text; the report numbers it."""

    def __init__(self, svg: str, caption: str, alt: str, note: str):
        self.svg, self.caption, self.alt, self.note = svg, caption, alt, note

    def _repr_html_(self) -> str:
        if not self.svg:
            return ""
        svg = self.svg.replace("<svg ", f'<svg role="img" aria-label="{html.escape(self.alt, quote=True)}" ', 1)
        note = f'<p class="note">{html.escape(self.note)}</p>' if self.note else ""
        caption = f'<figcaption><b class="label">Figure</b> {html.escape(self.caption)}</figcaption>'
        return f'<figure class="plot"><div class="scroll" tabindex="0">{svg}</div>{caption}{note}</figure>'


def show(ax: Axes, caption: str, alt: str, table: pd.DataFrame | str) -> Figure:
    """Return the figure of `ax` with caption, alternative text and a note; close it.

    The note states the table's hardware, samples and rounds, or is `table` itself if that is a text. Without a note
    nothing was measured, and nothing is shown."""
    svg = _svg(ax, STYLE | {"svg.hashsalt": caption + alt})
    note = table if isinstance(table, str) else tables.provenance(table)
    return Figure(_page_svg(svg, salt=caption + alt) if note else "", caption, alt, note)


def save(ax: Axes, file: Path) -> None:
    """Write the figure of `ax` as a standalone SVG, dark on white; close it."""
    svg = _svg(ax, STYLE | {"svg.fonttype": "path", "svg.hashsalt": file.name, "savefig.facecolor": "white"})
    file.write_text(re.sub(f"{INK}|{QUIET}", "#222222", svg, flags=re.IGNORECASE))


def _svg(ax: Axes, style: dict) -> str:
    """Return the figure as SVG, with ids from the style's `svg.hashsalt`; close it."""
    file = io.StringIO()
    with mpl.rc_context(style):
        ax.figure.savefig(file, format="svg", metadata=dict.fromkeys(("Date", "Creator", "Format", "Type")))
    plt.close(ax.figure)
    return file.getvalue()


def _page_svg(svg: str, salt: str) -> str:
    """Return an SVG for the page: no preamble, no size, no indentation, page inks and unique ids."""
    svg = re.sub(r' (width|height)="[^"]*"', "", svg[svg.index("<svg") :], count=2)
    svg = re.sub(r"\n +", "\n", svg)  # indentation, 50 kB of a page
    svg = re.sub(re.escape(INK), "currentColor", svg, flags=re.IGNORECASE)
    svg = re.sub(re.escape(QUIET), "var(--quiet, currentColor)", svg, flags=re.IGNORECASE)
    # text needs more contrast than lines: the page has a readable shade of each colour
    svg = re.sub(r"(<text[^>]*fill: )#([0-9a-f]{6})", r"\1var(--text-\2, #\2)", svg)
    used = set(re.findall(r'(?:url\(#|href="#)([^)"]+)', svg))
    prefix = "f" + hashlib.sha256(salt.encode()).hexdigest()[:8]
    svg = re.sub(r' id="([^"]+)"', lambda m: f' id="{prefix}{m[1]}"' if m[1] in used else "", svg)
    return re.sub(r'(url\(#|href="#)', rf"\g<1>{prefix}", svg)
