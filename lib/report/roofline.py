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
from matplotlib.axes import Axes
from matplotlib.transforms import Bbox

from lib.report import plots, tidy
from lib.stats import digits

COLUMNS = ["label", "name", "precision", "intensity", "gflops", "hardware", "noisy"]
HEIGHT = 4.4  # inches
LABELS = 6  # of points; more cannot stand beside each other on a phone
FAR = (6, 12, 25, 40, 60, 85, 115)  # pixels between a point and its label, tried in this order
DIRECTIONS = [(x, y) for x in (1, -1, 0, 0.5, -0.5) for y in (0, 1, -1, 0.5, -0.5) if abs(x) + abs(y) >= 1]


@mpl.rc_context(plots.STYLE)
def draw(points: pd.DataFrame, products: Mapping[str, float], bandwidth: float) -> Axes:
    """Draw points with intervals on log axes, below the roof of each precision.

    `products` are ceilings in FLOP/s by precision, `bandwidth` is memory's in bytes/s."""
    (ax,) = plots.axes(height=HEIGHT)
    ax.figure.get_layout_engine().set(rect=(0, 0, 0.98, 1))  # the labels of points need the width
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
    ax.set(xscale="log", yscale="log", xlabel="arithmetic intensity, FLOP a byte", ylabel="rate, GFLOP/s")
    shown = [name for name in tidy.ORDER if name in products and name in set(points["precision"])]
    _draw_roofs(ax, {name: products[name] for name in shown}, bandwidth)
    ax.grid(axis="y")
    _place_labels(ax, points)
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
    place = {"xytext": (-5, 3), "ha": "right", "va": "bottom"}
    middle = seen**0.3 * furthest**0.7
    if math.log(middle / low) < 0.4 * math.log(high / low):  # above the slope is no room for the words
        middle, place = seen**0.7 * furthest**0.3, {"xytext": (5, -3), "ha": "left", "va": "top"}
    text = f"memory, {digits.number(bandwidth / 1e9)} GB/s"
    ax.annotate(text, (middle, middle * bandwidth / 1e9), textcoords="offset points", **place)
    top = 1.6 * max([top, *(peak / 1e9 for peak in products.values())])
    apart, placed = (top / (bottom / 2)) ** (1.4 * plots.FONT / (72 * HEIGHT - 5 * plots.FONT)), 0.0
    for name, ridge in sorted(ridges.items(), key=lambda item: item[1]):
        level = products[name] / 1e9
        placed = max(level, placed * apart)
        ax.plot([ridge, high], [level, level], **slope)
        said = f"{name}: {digits.number(level)} GFLOP/s, ridge at {digits.number(ridge)}"
        ax.annotate(said, (high, placed), xytext=(0, 3), textcoords="offset points", ha="right", va="bottom")
        ax.plot([ridge, ridge], [bottom / 2, level], color=plots.QUIET, linewidth=0.8, linestyle=":")
    ax.set(xlim=(low, high), ylim=(bottom / 2, top * apart ** (len(ridges) > 1)))
    for axis in (ax.xaxis, ax.yaxis):
        plots.round_ticks(axis)


def _place_labels(ax: Axes, points: pd.DataFrame) -> None:
    """Label the fastest points where there is room, joined by hairlines if far."""
    points = points.loc[points["gflops"].map(lambda i: i.value).nlargest(LABELS).sort_index().index]
    ax.figure.draw_without_rendering()  # lays out the figure, which fixes the positions
    texts, to_points = [text.get_window_extent() for text in ax.texts], 72 / ax.figure.dpi
    lines = [(line, line.get_path()) for line in ax.get_lines() if line.get_linestyle() != ":"]
    bars = [(bars, path) for bars in ax.collections for path in bars.get_paths()]
    marks = np.concatenate([s.get_transform().transform_path(p).interpolated(30).vertices for s, p in lines + bars])
    for _, point in points.iterrows():
        at, colour = (point["intensity"], point["gflops"].value), plots.COLOURS.get(point["name"], plots.INK)
        label = ax.annotate(
            point["label"], at, (0, 0), textcoords="offset points", ha="center", va="center", color=colour
        )
        label.set_in_layout(False)
        centre, half = ax.transData.transform(at), np.array(label.get_window_extent().size) / 2 + 2
        places = [
            _Place(centre, half, half * side + distance * np.array(side)) for distance in FAR for side in DIRECTIONS
        ]
        free = [place for place in places if place.is_free(ax.bbox, texts)]
        if not free:
            label.remove()
            continue
        best = min(free, key=lambda place: place.cost(marks))
        label.set_position(best.shift * to_points)
        texts.append(best.box)
        if best.length > FAR[1]:
            ends = ax.transData.inverted().transform(best.hairline)
            ax.plot(*ends.T, color=plots.QUIET, linewidth=0.6)
            marks = np.concatenate([marks, best.hairline])


class _Place:
    """A place for a label, in pixels: its box, and the hairline from its point to the box."""

    def __init__(self, centre: np.ndarray, half: np.ndarray, shift: np.ndarray):
        self.shift, self.box = shift, Bbox([centre + shift - half, centre + shift + half])
        self.hairline = np.linspace(centre, np.clip(centre, self.box.min, self.box.max), 12)
        self.length = math.dist(self.hairline[0], self.hairline[-1])

    def is_free(self, frame: Bbox, texts: list[Bbox]) -> bool:
        """Return True if the label lies inside the frame, and no text lies below it or its hairline."""
        inside = all(frame.contains(*corner) for corner in (self.box.min, self.box.max))
        crossed = any(text.overlaps(self.box) or text.contains(*dot) for text in texts for dot in self.hairline)
        return inside and not crossed

    def cost(self, marks: np.ndarray) -> float:
        """Return the length of the hairline, in pixels, and more for each mark that the label covers."""
        return self.length + 10 * ((marks >= self.box.min) & (marks <= self.box.max)).all(axis=1).sum()
