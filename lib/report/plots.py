"""Draw figures in the style of the report, as SVG in the ink of the page."""

import html
import io
import itertools
import re

import matplotlib as mpl
import pandas as pd
from matplotlib.figure import Figure

from lib.catalog import CATALOG, Variant

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
# lengths of strokes and gaps, as seaborn takes them
DASHES = {"": "", "dashed": (4, 1.5), "dotted": (1, 1.2), "dashdot": (4, 1.2, 1, 1.2)}
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
    """Return each name's colour, for seaborn's `palette`: its own, or a free one."""
    return {name: HUES[hue] for name, hue, _ in _looks(names)}


def dashes(names: pd.Series) -> dict[object, object]:
    """Return each name's dashes, for seaborn's `dashes`: those of its variant."""
    return {name: DASHES[dash] for name, _, dash in _looks(names)}


@mpl.rc_context(STYLE)
def blank(height: float, columns: int = 1) -> Figure:
    """Return a figure of empty axes, of this height in inches, as wide as the text.

    For what pandas or seaborn draw by themselves: `seaborn.heatmap(values, ax=figure.axes[0])`."""
    figure = Figure(figsize=(WIDTH, height), layout="constrained")
    # browsers set small text a little wider than matplotlib expects
    figure.get_layout_engine().set(rect=(0.01, 0, 0.96, 1))
    figure.subplots(ncols=columns)
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


def _looks(names: pd.Series) -> list[tuple[object, str, str]]:
    """Return each name with its hue and dash: the catalogue's, or a free hue."""
    names = list(names.drop_duplicates())
    # some are variants in two experiments: the one that knows most of them is meant
    variants = max(CATALOG.values(), key=lambda entry: len(set(names) & set(entry.variants))).variants
    looks = {name: variants.get(name, Variant()) for name in names}
    taken = {variant.hue for variant in looks.values()}
    # ink is for references
    free_hues = itertools.cycle([hue for hue in HUES if hue != "ink" and hue not in taken] or HUES)
    return [(name, variant.hue or next(free_hues), variant.dash) for name, variant in looks.items()]
