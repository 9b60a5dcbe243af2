"""Draw rates against arithmetic intensity, below the machine's measured ceilings.

The roofline follows Williams, Waterman and Patterson (2009). A rate is at most the ceiling of memory times the FLOPs
per byte, and at most the ceiling of matrix products. Bytes are the least that must move, so code that finds its data
in a cache may lie above the slope.
"""

import math
from collections.abc import Mapping

import matplotlib as mpl
import numpy as np
import pandas as pd
from adjustText import adjust_text
from matplotlib.axes import Axes

from lib.report import plots, tidy
from lib.stats import digits

COLUMNS = ["label", "name", "precision", "intensity", "gflops", "hardware", "noisy"]
ITERATIONS = 300  # of placing labels; a time limit would make figures differ between machines


@mpl.rc_context(plots.STYLE)
def draw(points: pd.DataFrame, products: Mapping[str, float], bandwidth: float, joined: bool = False) -> Axes:
    """Draw points with intervals on log axes, below the roof of each precision.

    `products` are ceilings in FLOP/s by precision, `bandwidth` is memory's in bytes/s. `joined` connects points of a
    name."""
    (ax,) = plots.axes(height=4.2)
    ax.figure.get_layout_engine().set(rect=(0, 0, 1, 1))  # the labels of points need the width
    if points.empty or not bandwidth > 0:
        return ax
    for name, group in points.groupby("name", sort=False):
        colour = plots.COLOURS.get(name, plots.INK)
        for _, point in group.iterrows():
            i = point["gflops"]
            face = "none" if point["noisy"] else colour
            ax.errorbar(
                point["intensity"], i.value, yerr=plots.errors([i]), color=colour, marker=plots.MARKERS[colour],
                markerfacecolor=face, markersize=5, capsize=2.5, elinewidth=1, zorder=3,
            )  # fmt: skip
        if joined:
            heights = [i.value for i in group["gflops"]]
            ax.plot(group["intensity"], heights, color=colour, linewidth=0.9, linestyle=plots.DASHES[colour])
    ax.set(xscale="log", yscale="log", xlabel="arithmetic intensity, FLOP a byte", ylabel="rate, GFLOP/s")
    shown = [name for name in tidy.ORDER if name in products and name in set(points["precision"])]
    _draw_roofs(ax, {name: products[name] for name in shown}, bandwidth)
    ax.grid(axis="y")
    names = list(dict.fromkeys(points["name"]))
    if set(points["label"]) & {""} and not joined:
        plots.legend(ax, names)
    _place_labels(ax, points[points["label"] != ""])
    return ax


def _draw_roofs(ax: Axes, products: Mapping[str, float], bandwidth: float) -> None:
    """Draw memory's slope, the level of each precision's products, and their ridge."""
    low, high = (limit * by for limit, by in zip(ax.get_xlim(), (0.7, 2), strict=True))
    bottom, top = ax.get_ylim()
    ridges = {name: peak / bandwidth for name, peak in products.items()}
    high = max([high, *(4 * ridge for ridge in ridges.values())])
    low = min([low, *(ridge / 16 for ridge in ridges.values())])
    furthest = max(ridges.values(), default=high)
    slope = {"color": plots.INK, "linewidth": 1.3}
    ax.plot([low, furthest], [low * bandwidth / 1e9, furthest * bandwidth / 1e9], **slope)
    seen = max(low, bottom / 2 / (bandwidth / 1e9))  # where the visible part of the slope begins
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
    for axis in (ax.xaxis, ax.yaxis):
        plots.round_ticks(axis)


def _place_labels(ax: Axes, points: pd.DataFrame) -> None:
    """Place labels clear of points, lines and each other, joined by hairlines if far."""
    middle = math.sqrt(math.prod(ax.get_xlim()))
    texts = [
        ax.text(
            point["intensity"], point["gflops"].value, point["label"], fontsize=9, va="top",
            ha="right" if point["intensity"] > middle else "left", color=plots.COLOURS.get(point["name"], plots.INK),
        )
        for _, point in points.iterrows()
    ]  # fmt: skip
    ax.figure.draw_without_rendering()  # lays out the figure, which fixes the positions
    lines = [(line, line.get_path()) for line in ax.get_lines() if line.get_linestyle() != ":"]
    bars = [(bars, path) for bars in ax.collections for path in bars.get_paths()]
    pixels = [shown.get_transform().transform_path(path).interpolated(40).vertices for shown, path in lines + bars]
    x, y = ax.transData.inverted().transform(np.concatenate(pixels)).T
    roofs = [text for text in ax.texts if text not in texts]
    hairline = {"arrowstyle": "-", "color": plots.QUIET, "linewidth": 0.6}
    adjust_text(
        texts, x, y, objects=roofs, ax=ax, iter_lim=ITERATIONS, force_static=(0.3, 0.6), arrowprops=hairline
    )  # fmt: skip
