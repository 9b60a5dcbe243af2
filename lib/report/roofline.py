"""Sets rates against arithmetic intensity, below the measured ceilings of the machine; measures nothing.

The roofline of Williams, Waterman and Patterson (2009): what takes so many FLOPs for each byte that it must move is at
most as fast as the ceiling of memory times that intensity, and as the ceiling of matrix products. The bytes are the
least, so that what finds them in a cache may lie above the slope.
"""

import itertools
import math
from collections.abc import Mapping

import matplotlib as mpl
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.container import ErrorbarContainer
from matplotlib.lines import Line2D
from matplotlib.transforms import Bbox

from lib.report import plots, tidy
from lib.stats import digits

COLUMNS = ["label", "name", "precision", "intensity", "gflops", "hardware", "restless"]
PLACES = sorted(  # of a label beside its point: across and up in points, the nearest first
    ((side * across, up) for side in (1, -1) for across in (9, 30, 60) for up in range(-99, 56, 11)),
    key=lambda place: math.hypot(*place),
)


def _points(rows: list[dict]) -> pd.DataFrame:
    """Rows of `COLUMNS`: a label, the name that has the colour, FLOPs a byte, and 1e9 FLOPs a second."""
    return pd.DataFrame(rows, columns=COLUMNS)


def of_attention(attention: pd.DataFrame) -> pd.DataFrame:
    """A point a case of attention, forward and backward together; the one with the most tokens is labelled."""
    attention = tidy.derive(attention, "gflops", lambda flops, ms: 3e-6 * flops / ms, "forward_flops", "total_ms")
    table = tidy.medians(attention, "gflops", "forward_flops", "moved_bytes")
    table = table[table["gflops"].notna()].sort_values("seq_len")
    last = table.groupby("variant")["seq_len"].transform("max") == table["seq_len"]
    return _points([
        row[["precision", "hardware", "restless", "gflops"]].to_dict()
        | {"name": row["variant"], "label": f"{row['variant']}, {row['seq_len']:,}" if is_last else ""}
        | {"intensity": 3 * row["forward_flops"] / row["moved_bytes"]}
        for (_, row), is_last in zip(table.iterrows(), last, strict=True)
    ])  # fmt: skip


def draw(points: pd.DataFrame, products: Mapping[str, float], bandwidth: float, joined: bool = False) -> Axes:
    """The points with their intervals on log axes, those of one name in its colour and `joined` by a line or not,
    below the roof of each of their precisions: FLOP/s of products by precision, and bytes/s of memory."""
    (ax,) = plots.axes(height=4.2)
    if points.empty or not bandwidth > 0:
        return ax
    with mpl.rc_context(plots.STYLE):
        for name, group in points.groupby("name", sort=False):
            colour = plots.COLOURS.get(name, plots.INK)
            for _, point in group.iterrows():
                i = point["gflops"]
                face = "none" if point["restless"] else colour
                ax.errorbar(
                    point["intensity"], i.value, yerr=plots.errors([i]), color=colour, marker=plots.MARKERS[colour],
                    markerfacecolor=face, markersize=5, capsize=2.5, elinewidth=1, zorder=3,
                )  # fmt: skip
            if joined:
                heights = [i.value for i in group["gflops"]]
                ax.plot(group["intensity"], heights, color=colour, linewidth=0.9, linestyle=plots.DASHES[colour])
        ax.set(xscale="log", yscale="log", xlabel="arithmetic intensity, FLOP a byte", ylabel="rate, GFLOP/s")
        shown = [name for name in tidy.ORDER if name in products and name in set(points["precision"])]
        _roofs(ax, {name: products[name] for name in shown}, bandwidth)
        ax.grid(axis="y")
        names = list(dict.fromkeys(points["name"]))
        if set(points["label"]) & {""} and not joined:
            plots.legend(ax, names)
        _label(ax, points[points["label"] != ""])
    return ax


def _roofs(ax: Axes, products: Mapping[str, float], bandwidth: float) -> None:
    """The slope of memory, the level of each precision's products, and where they meet."""
    low, high = (limit * by for limit, by in zip(ax.get_xlim(), (0.7, 2), strict=True))
    bottom, top = ax.get_ylim()
    ridges = {name: peak / bandwidth for name, peak in products.items()}
    high = max([high, *(4 * ridge for ridge in ridges.values())])
    low = min([low, *(ridge / 16 for ridge in ridges.values())])
    furthest = max(ridges.values(), default=high)
    slope = {"color": plots.INK, "linewidth": 1.3}
    ax.plot([low, furthest], [low * bandwidth / 1e9, furthest * bandwidth / 1e9], **slope)
    seen = max(low, bottom / 2 / (bandwidth / 1e9))  # from where on the slope is in the figure
    middle = seen**0.3 * furthest**0.7
    ax.annotate(
        f"memory, {digits.number(bandwidth / 1e9)} GB/s", (middle, middle * bandwidth / 1e9), xytext=(-5, 3),
        textcoords="offset points", fontsize=9, ha="right", va="bottom",
    )  # fmt: skip
    for name, ridge in ridges.items():
        level = products[name] / 1e9
        ax.plot([ridge, high], [level, level], **slope)
        said = f"products in {name}, {digits.number(level)} GFLOP/s; ridge at {digits.number(ridge)}"
        ax.annotate(said, (high, level), xytext=(0, 3), textcoords="offset points", fontsize=9, ha="right", va="bottom")
        ax.plot([ridge, ridge], [bottom / 2, level], color=plots.QUIET, linewidth=0.8, linestyle=":")
    ax.set(xlim=(low, high), ylim=(bottom / 2, 1.5 * max([top, *(peak / 1e9 for peak in products.values())])))
    ax.minorticks_off()
    for axis in (ax.xaxis, ax.yaxis):
        plots.round_ticks(axis)


def _label(ax: Axes, points: pd.DataFrame) -> None:
    """The points' labels, each beside its point where it covers neither another nor a point; a hairline leads to one
    that stands further off."""
    ax.figure.draw_without_rendering()  # which lays the figure out, so that places can be told
    renderer = ax.figure.canvas.get_renderer()
    taken = [text.get_window_extent(renderer) for text in ax.texts] + list(map(_extent, ax.containers))
    taken += [box for line in ax.get_lines() if line.get_linestyle() not in ("None", ":") for box in _along(line)]
    for _, point in points.iterrows():
        place, colour = (point["intensity"], point["gflops"].value), plots.COLOURS.get(point["name"], plots.INK)
        for across, up in PLACES:
            text = ax.annotate(
                point["label"], place, xytext=(across, up), textcoords="offset points", fontsize=9, color=colour,
                ha="left" if across > 0 else "right", va="center",
                arrowprops={"arrowstyle": "-", "color": colour, "linewidth": 0.5} if up or abs(across) > 9 else None,
            )  # fmt: skip
            text.update_positions(renderer)
            box = mpl.text.Text.get_window_extent(text, renderer)  # without the hairline
            if ax.bbox.x0 < box.x0 and box.x1 < ax.bbox.x1 and not any(map(box.overlaps, taken)):
                break
            if (across, up) != PLACES[-1]:
                text.remove()
        taken.append(box)


def _along(line: Line2D) -> list[Bbox]:
    """Small boxes of pixels that cover a line."""
    corners = line.axes.transData.transform(line.get_xydata())
    steps = [(a + (b - a) * part / 60) for a, b in itertools.pairwise(corners) for part in range(61)]
    return [Bbox.from_extents(x - 1, y - 1, x + 1, y + 1) for x, y in steps]


def _extent(point: ErrorbarContainer) -> Bbox:
    """The pixels that a point and its interval cover."""
    marker, _, (bar,) = point
    (x, y) = marker.axes.transData.transform(marker.get_xydata()[0])
    ends = marker.axes.transData.transform(bar.get_segments()[0])[:, 1]
    return Bbox.from_extents(x - 5, min(y - 5, *ends), x + 5, max(y + 5, *ends))
