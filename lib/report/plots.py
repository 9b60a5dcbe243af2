"""Draw figures in the style of the report, as SVG in the ink of the page."""

import html
import io
import itertools
import re

import matplotlib as mpl
import pandas as pd
from matplotlib.figure import Figure

# the hues of Okabe and Ito (2008), as light as 3:1 on a white and on a black page allows
HUES = {
    "blue": "#0072b2", "orange": "#c08500", "green": "#009e73", "purple": "#c76fa1", "sky": "#1d98dd",
    "vermilion": "#d55e00", "yellow": "#9c920c", "grey": "#767676", "ink": "#000000",
}  # fmt: skip
QUIET, PAGE = HUES["grey"], "#fefefe"
# what `svg` writes in their place, so that a figure has the inks of the page; the grey is that of seaborn's legends
PAGE_INKS = {
    HUES["ink"]: "currentColor", "#333333": "currentColor", QUIET: f"var(--quiet, {QUIET})",
    PAGE: f"var(--page, {PAGE})",
}  # fmt: skip
LARGE_RATIO = 8  # beyond it a linear axis has no room for what is slower
MESSAGES = ("all-reduce", "all-gather", "reduce-scatter")
STACK = ("sky", "blue", "orange", "green", "purple", "vermilion", "yellow", "grey")  # of the parts of a bar

WIDTH = 6.5  # inches; the page scales a figure to the width of its column
FONT = 10  # points, of all text: 8 pixels where a phone shows a figure 390 pixels wide
STYLE = {
    "axes.edgecolor": QUIET, "axes.facecolor": "none", "axes.labelsize": FONT, "axes.linewidth": 0.7,
    "axes.spines.right": False, "axes.spines.top": False, "axes.titlelocation": "left", "axes.titlesize": FONT,
    "axes.axisbelow": True, "figure.facecolor": "none", "font.size": FONT, "grid.alpha": 0.3,
    "grid.color": QUIET, "grid.linewidth": 0.6, "hatch.linewidth": 0.5, "legend.fontsize": FONT,
    "legend.frameon": False, "lines.linewidth": 1.6, "lines.markersize": 5, "savefig.facecolor": "none",
    "svg.fonttype": "none", "svg.hashsalt": "lib", "xtick.color": QUIET, "xtick.labelcolor": "black",
    "ytick.color": QUIET, "ytick.labelcolor": "black",
}  # fmt: skip


def use_style() -> None:
    """Give what a notebook draws from here on the style of the report."""
    mpl.rcdefaults()
    mpl.rcParams.update(STYLE)


def palette(names: pd.Series) -> dict[object, str]:
    """Return a colour for each name, in the order in which they appear."""
    # ink is for references
    hues = [hue for name, hue in HUES.items() if name != "ink"]
    return dict(zip(names.unique(), itertools.cycle(hues), strict=False))


@mpl.rc_context(STYLE)
def blank(height: float, columns: int = 1) -> Figure:
    """Return a figure of empty axes, of this height in inches, as wide as the text.

    For what pandas or seaborn draw by themselves: `seaborn.heatmap(values, ax=figure.axes[0])`."""
    figure = Figure(figsize=(WIDTH, height), layout="constrained")
    # browsers set small text a little wider than matplotlib expects
    figure.get_layout_engine().set(rect=(0.01, 0, 0.96, 1))
    figure.subplots(ncols=columns)
    return figure


@mpl.rc_context(STYLE)
def speedups(rows: pd.DataFrame, x: str, hue: str, xlabel: str, ylabel: str, limit: str = "") -> Figure:
    """Return a figure of `speedup` against `x` with its intervals, a line for each value of `hue`.

    `x` is a column of words, or of numbers, whose axis is logarithmic. `limit` is a column of what is possible, which
    is dashed."""
    figure = blank(2.3)
    axes = figure.axes[0]
    axes.axhline(1, color=QUIET, linewidth=1)
    is_numeric = pd.api.types.is_numeric_dtype(rows[x])
    for name, points in rows.groupby(hue, sort=False):
        points = points.sort_values(x) if is_numeric else points
        reach = points[["speedup_low", "speedup_high"]].sub(points["speedup"], axis="index").abs().T
        axes.errorbar(x, "speedup", reach, data=points, marker="o", color=palette(rows[hue])[name], label=name)
        if limit:
            # one point has no line
            axes.plot(x, limit, "_--", data=points, color=QUIET, label="")
    axes.set(xlabel=xlabel, ylabel=ylabel)
    if rows["speedup"].max() > LARGE_RATIO:
        axes.set_yscale("log", base=2)
        axes.yaxis.set_major_formatter("{x:g}")
    else:
        axes.set_ylim(0, None)
    if is_numeric:
        axes.set_xscale("log")
        axes.set_xticks(rows[x].unique(), [f"{place:,}" for place in rows[x].unique()])
        axes.minorticks_off()
    figure.legend(loc="outside upper left", ncols=5)
    return figure


def timelines(events: pd.DataFrame) -> Figure:
    """Draw the course of a step, one lane a `way`: its parts, and below them its messages.

    `events` have `way`, `part`, `start_ms` and `end_ms`. With a `size` in place of a `way` each kind of message has a
    lane of its own."""
    if "way" not in events:
        events = events.assign(way=events["part"].where(events["part"].isin(MESSAGES), "step of " + events["size"]))
    ways = list(events["way"].unique())
    figure = blank(0.9 + 0.32 * len(ways))
    (lanes,) = figure.axes
    lanes.set(xlabel="one step, ms", yticks=range(len(ways)), yticklabels=ways)
    for hue, (part, spans) in zip(STACK, events.groupby("part", sort=False), strict=False):
        is_below = (part in MESSAGES) & (spans["way"] != part)
        height = spans["way"].map(ways.index) + 0.4 * is_below
        lanes.barh(height, spans["end_ms"] - spans["start_ms"], 0.4, spans["start_ms"], color=HUES[hue], label=part)
    lanes.invert_yaxis()
    figure.legend(loc="outside upper left", ncols=5, handlelength=1, columnspacing=1)
    return figure


def svg(figure: Figure, alt: str) -> str:
    """Return a figure as SVG in the ink of the page, without a size of its own.

    Text stays text. Ids are digests of what they name, so that figures may share some."""
    file = io.StringIO()
    # entries that are None are left out: a date would make the same figure differ each time
    metadata = dict.fromkeys(("Date", "Creator", "Format", "Type"))
    with mpl.rc_context(STYLE):
        figure.savefig(file, format="svg", metadata=metadata)
    text = file.getvalue()
    text = re.sub(r' (width|height)="[^"]*"', "", text[text.index("<svg") :], count=2)
    # indentation, and names of parts such as `line2d_1`, would be a tenth of the page
    text = re.sub(r"\n\s*", "\n", text)
    text = re.sub(r' id="[a-zA-Z.0-9]+_\d+"', "", text)
    for colour, ink in PAGE_INKS.items():
        text = text.replace(colour, ink)
    # text needs more contrast than lines and areas do: the page has another shade of each hue for it
    for name, hue in HUES.items():
        text = re.sub(rf"(<text[^>]*fill: ){hue}", rf"\1var(--{name}, {hue})", text)
    # what has no colour of its own is black in SVG
    return text.replace("<svg ", f'<svg role="img" aria-label="{html.escape(alt)}" fill="currentColor" ', 1).strip()
