"""Draw tidy frames in the style of the report: lines, bars and ratios.

Each function takes a frame and names of its columns, and returns a matplotlib Figure; `show` displays it as SVG whose
ink is that of the page. Cells to be drawn are Intervals or numbers, those of `ratios` Comparisons; a row without a
value is left out.
"""

import html
import io
import itertools
import math
import re
from collections.abc import Sequence

import matplotlib as mpl
import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.axis import Axis
from matplotlib.collections import LineCollection
from matplotlib.figure import Figure
from matplotlib.ticker import LogLocator, MaxNLocator, NullLocator, StrMethodFormatter

from lib.catalog import CATALOG
from lib.report import answers, tidy
from lib.stats import digits
from lib.stats.intervals import Interval

# the hues of Okabe and Ito (2008), as light as 3:1 on a white and on a black page allows
HUES = {
    "blue": "#0072b2", "orange": "#c08500", "green": "#009e73", "purple": "#c76fa1", "sky": "#1d98dd",
    "vermilion": "#d55e00", "yellow": "#9c920c", "grey": "#767676", "ink": "#000000",
}  # fmt: skip
QUIET, PAGE = HUES["grey"], "#fefefe"
# what `svg` writes in their place, so that a figure has the inks of the page
PAGE_INKS = {HUES["ink"]: "currentColor", QUIET: f"var(--quiet, {QUIET})", PAGE: f"var(--page, {PAGE})"}
# lines are told apart without colour as well
MARKERS = dict(zip(HUES, "Ds^v<>pho", strict=True))
DASHES = {"": "-", "dashed": (0, (4, 1.5)), "dotted": (0, (1, 1.2)), "dashdot": (0, (4, 1.2, 1, 1.2))}
STACK = ("sky", "blue", "orange", "green", "purple", "vermilion", "yellow", "grey")  # of the parts of a bar

WIDTH = 6.5  # inches; the page scales a figure to the width of its column
FONT = 10  # points, of all text: 8 pixels where a phone shows a figure 390 pixels wide
ROW = 0.28  # inches of height that one bar takes
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
    """Return each name's colour, for seaborn's `palette`: its own, or a free one."""
    return {name: HUES[hue] for name, hue, _ in _looks(names)}


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
def lines(
    frame: pd.DataFrame, x: str, y: str, by: str, xlabel: str = "", ylabel: str = "", log: str = "xy",
    height: float = 2.7,
) -> Figure:  # fmt: skip
    """Draw `y` with its intervals against `x`, one line for each value of `by`.

    Each line is named at its end. The axes in `log` are logarithmic; the ticks of `x` are the values measured,
    of more than six every other one."""
    figure = blank(height)
    axes = figure.axes[0]
    frame = frame[tidy.values(frame[y]).notna()].sort_values(x, kind="stable")
    ends = []
    for name, hue, dash in _looks(frame[by]):
        rows = frame[frame[by] == name]
        values = tidy.values(rows[y])
        axes.errorbar(
            rows[x], values, yerr=_errors(rows[y]), color=HUES[hue], marker=MARKERS[hue], linestyle=DASHES[dash],
            capsize=2.5, elinewidth=1,
        )  # fmt: skip
        ends.append((rows[x].iloc[-1], values.iloc[-1], str(name), hue))
    if "x" in log:
        axes.set_xscale("log")
    if "y" in log:
        axes.set_yscale("log")
        _round_ticks(axes.yaxis)
    sizes = sorted(frame[x].unique())
    # every other one of many, the largest among them
    if len(sizes) > 6:
        sizes = sizes[::-2][::-1]
    axes.set_xticks(sizes, [f"{size:,}" for size in sizes])
    axes.xaxis.set_minor_locator(NullLocator())
    axes.set(xlabel=xlabel or x, ylabel=ylabel or y)
    axes.grid(axis="y")
    _name_ends(axes, ends)
    return figure


@mpl.rc_context(STYLE)
def bars(frame: pd.DataFrame, rows: str, parts: Sequence[str], xlabel: str, mark: str = "", total: str = "") -> Figure:
    """Draw one bar for each row, whose `parts` are columns.

    The number at its end is the sum of the parts, or the column `total`. The column `rows` names the bars, and the
    column `mark`, such as a bound, is drawn as a line across each. There are at most eight parts, each with its
    interval. Rows without the first part are left out; other missing parts count as 0."""
    frame = frame[tidy.values(frame[parts[0]]).notna()]
    figure = blank(1.0 + ROW * max(2, len(frame)))
    axes = figure.axes[0]
    places = np.arange(len(frame))
    left = np.zeros(len(frame))
    squared_reach = np.zeros(len(frame))  # the squared half-width of the interval of the sum
    ends = np.zeros(len(frame))  # of all that is drawn of a bar
    hues = STACK if len(parts) > 1 else ("blue",)
    for part, hue in zip(parts, hues[: len(parts)], strict=True):
        values = tidy.values(frame[part]).fillna(0).to_numpy()
        errors = _errors(frame[part])
        axes.barh(
            places, values, 0.66, left, label=part, color=HUES[hue], edgecolor=PAGE, linewidth=0.8, xerr=errors,
            error_kw={"ecolor": HUES["ink"], "elinewidth": 1, "capsize": 2.5},
        )  # fmt: skip
        left = left + values
        squared_reach = squared_reach + errors.mean(axis=0) ** 2
        ends = np.maximum(ends, left + errors[1])
    # the parts' errors are taken to be independent
    numbers = left
    reaches = np.sqrt(squared_reach)
    if total:
        # the median of a whole is not the sum of the medians of its parts
        numbers = tidy.values(frame[total]).to_numpy()
        reaches = _errors(frame[total]).mean(axis=0)
    for place, number, reach, end in zip(places, numbers, reaches, ends, strict=True):
        # one without an error gets the digits of one known to 2%
        text = digits.number(number, reach or 0.02 * number)
        axes.annotate(
            text, (end, place), xytext=(5, 0), textcoords="offset points", va="center",
            annotation_clip=False,
        )  # fmt: skip
    if mark:
        bounds = tidy.values(frame[mark]).to_numpy()
        axes.vlines(bounds, places - 0.45, places + 0.45, color=HUES["ink"], linewidth=2.2, label=mark)
    _finish_rows(axes, list(frame[rows]), xlabel, legend=len(parts) > 1 or bool(mark))
    return figure


@mpl.rc_context(STYLE)
def ratios(frame: pd.DataFrame, rows: str, xlabel: str = "times as fast as its baseline") -> Figure:
    """Draw one point with its interval for each `comparison`, beside a line at one.

    The column `rows` names the points. Green is faster, red slower, hollow the same or unclear, as said at
    the right."""
    frame = frame.dropna(subset="comparison")
    figure = blank(0.9 + ROW * max(2, len(frame)))
    axes = figure.axes[0]
    looks = {"faster": ("green", HUES["green"]), "slower": ("vermilion", HUES["vermilion"])}
    for place, cell in enumerate(frame["comparison"]):
        hue, face = looks.get(cell.verdict, ("ink", "none"))
        axes.errorbar(
            [cell.ratio.value], [place], xerr=_errors([cell.ratio]), color=HUES[hue], marker=MARKERS[hue],
            markerfacecolor=face, capsize=3,
        )  # fmt: skip
        axes.annotate(
            cell.verdict, (1.02, place), xycoords=("axes fraction", "data"), va="center", color=HUES[hue],
            annotation_clip=False,
        )  # fmt: skip
    axes.axvline(1, color=HUES["ink"], linewidth=0.8)
    axes.set_xscale("log")
    # one is always in sight, with some room on both sides
    low, high = axes.get_xlim()
    axes.set_xlim(min(low, 0.9), max(high, 1.12))
    _round_ticks(axes.xaxis)
    _finish_rows(axes, list(frame[rows]), xlabel, legend=False)
    return figure


def show(figure: Figure, alt: str, key: str = "") -> None:
    """Display a figure as SVG; `alt` says in words what it shows.

    With a `key`, the notebook `summary` can show it too."""
    answers.figure(svg(figure, alt), key)
    # else Jupyter would show it a second time, at the end of the cell
    plt.close(figure)


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
    # text needs more contrast than lines and areas do: the page has a shade for it of each hue that is left
    for name, hue in HUES.items():
        text = re.sub(rf"(<text[^>]*fill: ){hue}", rf"\1var(--{name}, {hue})", text)
    # what has no colour of its own is black in SVG
    return text.replace("<svg ", f'<svg role="img" aria-label="{html.escape(alt)}" fill="currentColor" ', 1).strip()


def _looks(names: pd.Series) -> list[tuple[object, str, str]]:
    """Return each name with its hue and dash: the catalogue's, or a free hue."""
    names = list(names.drop_duplicates())
    # some are variants in two experiments: the one that knows most of them is meant
    variants = max(CATALOG.values(), key=lambda entry: len(set(names) & set(entry.variants))).variants
    hues = {name: variants[name].hue for name in names if name in variants}
    # ink is for references
    free_hues = [hue for hue in HUES if hue != "ink" and hue not in hues.values()]
    if not free_hues:
        free_hues = list(HUES)
    free_hues = itertools.cycle(free_hues)
    looks = []
    for name in names:
        if hues.get(name):
            looks.append((name, hues[name], variants[name].dash))
        else:
            looks.append((name, next(free_hues), ""))
    return looks


def _errors(cells: Sequence) -> np.ndarray:
    """Return how far intervals reach below and above their values, 0 if unknown."""
    reaches = np.zeros((2, len(cells)))
    for i, cell in enumerate(cells):
        if isinstance(cell, Interval) and cell.known:
            reaches[:, i] = cell.value - cell.low, cell.high - cell.value
    return reaches


def _finish_rows(axes: Axes, names: Sequence[str], xlabel: str, legend: bool) -> None:
    """Name the rows from the top, and draw the grid and the legend."""
    axes.set_yticks(range(len(names)), [str(name) for name in names])
    axes.set_ylim(len(names) - 0.4, -0.6)
    axes.tick_params(axis="y", length=0)
    axes.spines["left"].set_visible(False)
    # beside long names the axis is short, and a label in its middle would leave the figure
    axes.set_xlabel(xlabel, loc="right")
    axes.grid(axis="x")
    if legend:
        # bars before marks; a letter is about 0.55 of the font's size wide, and a key as wide as seven letters
        handles = sorted(axes.get_legend_handles_labels()[0], key=lambda handle: isinstance(handle, LineCollection))
        longest = max(len(handle.get_label()) for handle in handles)
        columns = max(1, int(72 * WIDTH // (0.55 * FONT * (longest + 7))))
        axes.figure.legend(
            handles=handles, loc="outside upper left", ncols=min(columns, len(handles)), columnspacing=1.2, borderpad=0
        )


def _round_ticks(axis: Axis) -> None:
    """Put ticks at round numbers alone on a log axis, however little it spans."""
    low, high = axis.get_view_interval()
    decades = math.log10(high / low)
    if decades <= 1:
        axis.set_major_locator(MaxNLocator(5, steps=[1, 2, 5, 10]))
    elif decades < 2.5:
        axis.set_major_locator(LogLocator(subs=(1, 2, 5)))
    else:
        axis.set_major_locator(LogLocator())
    axis.set_minor_locator(NullLocator())
    axis.set_major_formatter(StrMethodFormatter("{x:,.9g}"))


def _name_ends(axes: Axes, ends: Sequence[tuple[float, float, str, str]]) -> None:
    """Name each line at its end in its colour; names that would overlap move."""
    # axes get their final size when they are drawn
    axes.figure.draw_without_rendering()
    heights = []
    for x, y, name, hue in ends:
        height = axes.transAxes.inverted().transform(axes.transData.transform((x, y)))[1]
        heights.append((height, x, name, hue))
    least = 1.3 * FONT / (72 * axes.get_position().height * axes.figure.get_figheight())
    lowest = -math.inf
    for height, x, name, hue in sorted(heights):
        lowest = max(height, lowest + least)
        axes.annotate(
            name, (x, lowest), xycoords=("data", "axes fraction"), xytext=(8, 0), textcoords="offset points",
            va="center", color=HUES[hue], annotation_clip=False,
        )  # fmt: skip
