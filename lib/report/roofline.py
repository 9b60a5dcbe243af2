"""Compute what the measured ceilings allow, and draw rates below them.

The roofline shows rates against arithmetic intensity (Williams, Waterman and Patterson 2009). A rate is at most the
ceiling of memory times the FLOPs per byte, and at most the ceiling of matrix products. Bytes are the least that must
move, so code that finds its data in a cache may lie above the slope.
"""

import math
from collections.abc import Iterable, Mapping, Sequence
from types import MappingProxyType

import matplotlib as mpl
import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.transforms import Bbox

from lib.config import SIZES
from lib.report import plots, tidy
from lib.stats import digits
from lib.stats.intervals import Interval

COLUMNS = ["label", "name", "precision", "intensity", "gflops", "hardware", "noisy"]
HEIGHT = 4.4  # inches
LABELS = 6  # of points; more cannot stand beside each other on a phone
FAR = (6, 12, 25, 40, 60, 85, 115)  # pixels between a point and its label, tried in this order
DIRECTIONS = [(x, y) for x in (1, -1, 0, 0.5, -0.5) for y in (0, 1, -1, 0.5, -0.5) if abs(x) + abs(y) >= 1]
MOVING = ["copy", "triad", "add", "adamw"]  # operations whose best rate is the ceiling of memory
OWN, BEST = "its own matrix products", "the best matrix product"  # whose rate a step's least time takes
UNKNOWN = Interval(math.nan, math.nan, math.nan, 0, 0)  # a ceiling that was not measured


def ceiling(ceilings: pd.DataFrame, operation: str | list[str], fact: str) -> dict[str, Interval]:
    """Return the best rate of an operation by precision, with its interval over processes.

    The rate is `fact` (flops or moved_bytes) per second, and the case is the one with the largest median."""
    chosen = tidy.with_rate(tidy.select(ceilings, operation=operation, status="ok"), "rate", fact)
    best: dict[str, Interval] = {}
    for _, case in chosen.groupby(ceilings.fields, sort=False, dropna=False):
        precision, found = case["precision"].iloc[0], tidy.median(case, "rate")
        best[precision] = max(best.get(precision, found), found, key=lambda one: one.value)
    return best


def limit_intervals(ceilings: pd.DataFrame) -> tuple[dict[str, Interval], Interval]:
    """Return the ceilings of products by precision, FLOP/s, and of memory, bytes/s, with their intervals."""
    moving = ceiling(ceilings, MOVING, "moved_bytes").values()
    return ceiling(ceilings, "matmul", "flops"), max(moving, key=lambda found: found.value, default=UNKNOWN)


def limits(ceilings: pd.DataFrame) -> tuple[dict[str, float], float]:
    """Return FLOP/s of products by precision, and bytes/s of memory or NaN."""
    products, memory = limit_intervals(ceilings)
    return {precision: found.value for precision, found in products.items()}, memory.value


def own_products(ceilings: pd.DataFrame) -> dict[tuple[str, int, int], Interval]:
    """Return the rates of steps' own products, FLOP/s, by precision, d_model and tokens."""
    chosen = tidy.with_rate(tidy.select(ceilings, operation="products", status="ok"), "rate", "flops")
    cases = chosen.groupby(["precision", "columns", "rows"], sort=False)
    return {key: tidy.median(case, "rate") for key, case in cases}


def call_us(ceilings: pd.DataFrame) -> Interval | None:
    """Return the microseconds of a call that computes next to nothing, or None."""
    calls = tidy.with_quotient(tidy.select(ceilings, operation="call"), "call_us", "total_ms", "calls", scale=1e3)
    return tidy.median(calls, "call_us")


def least_ms(operations: float, moved_bytes: float, products: Interval, bandwidth: Interval) -> Interval:
    """Return the longer time in ms of FLOPs and of bytes at their ceilings, in FLOP/s and bytes/s."""
    either = products.inverse.scaled(1e3 * operations), bandwidth.inverse.scaled(1e3 * moved_bytes)
    return max(either, key=lambda found: found.value)


def with_limit(records: pd.DataFrame, name: str, values: Iterable[float | Interval]) -> pd.DataFrame:
    """Add `name`, a limit of each record or NaN, and its relative error, `name`_error."""
    known = [value if isinstance(value, Interval) else Interval(value, math.nan, math.nan, 0, 0) for value in values]
    floats = {name: [each.value for each in known], f"{name}_error": [each.log_error for each in known]}
    return records.assign(**{key: pd.Series(each, records.index, dtype=float) for key, each in floats.items()})


def with_percent_of(
    records: pd.DataFrame, name: str, amount: str, limit: Mapping[str, float | Interval], times: float = 1
) -> pd.DataFrame:
    """Add a metric: `times` the fact `amount` per second, in percent of a limit.

    The time is that of the whole iteration, and `limit` is keyed by precision; missing where it was not measured. If
    the limit is an interval, medians of the metric include its error."""
    known = with_limit(records, "limit", records["precision"].map(dict(limit)))
    facts = (amount, "total_ms", "limit", "limit_error")
    known = tidy.derive(known, name, lambda total, ms, most, _: 100 * times * total * 1e3 / ms / most, *facts)
    return tidy.derive(known, name + tidy.LOG_ERROR, lambda *facts: facts[-1], *facts)


def with_least_time(
    records: pd.DataFrame,
    flops: Mapping[str, float | Interval],
    bandwidth: float | Interval,
    own: Mapping[tuple[str, int, int], Interval] = MappingProxyType({}),
) -> pd.DataFrame:
    """Add `least_ms` and `least_percent`, its share of the measured time, to training steps.

    It is the time of all matrix products at the rate of the step's own, and then of all other least bytes at the
    ceiling of memory. `own` is as from `own_products`; a step that it lacks takes the ceiling of its precision.
    Attention's products count at the same rate. `limit` is the rate, in FLOP/s, and `limit_of` says whose it is.
    Missing where no rate was measured. Medians include the errors of rates that are intervals."""
    widths = records["size"].map({size: config.d_model for size, config in SIZES.items()})
    cases = list(zip(records["precision"], widths, tidy.column(records, "tokens"), strict=True))
    rates = [own.get(case, flops.get(case[0], math.nan)) for case in cases]
    names = [OWN if case in own else BEST if case[0] in flops else None for case in cases]
    known = with_limit(records.assign(limit_of=pd.Series(names, records.index, dtype=object)), "limit", rates)
    known = with_limit(known, "speed", [bandwidth] * len(records))

    def fact(name: str) -> pd.Series:
        return tidy.column(records, name).astype(float)

    products_ms = 1e3 * (fact("forward_flops") + fact("backward_flops")) / known["limit"]
    moved_ms = 1e3 * (fact("forward_bytes") + fact("backward_bytes") + fact("optimizer_bytes")) / known["speed"]
    error = np.hypot(products_ms * known["limit_error"], moved_ms * known["speed_error"]) / (products_ms + moved_ms)
    return with_least(known, products_ms + moved_ms, error)


def with_least(records: pd.DataFrame, ms: Sequence[float], error: Sequence[float]) -> pd.DataFrame:
    """Add `least_ms` and `least_percent` by the least time in ms of each record, and its relative error."""
    known = records.assign(least=ms, error=error)
    known = tidy.derive(known, "least_ms", lambda _, least: least, "total_ms", "least")
    known = tidy.with_quotient(known, "least_percent", "least_ms", "total_ms", scale=100)
    for name in ("least_ms", "least_percent"):
        known = tidy.derive(known, name + tidy.LOG_ERROR, lambda _, error: error, "total_ms", "error")
    return known.drop(columns=["least", "error"])


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
