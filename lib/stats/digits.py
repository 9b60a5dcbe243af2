"""Writes numbers with the digits that their uncertainty warrants.

>>> number(2.7134, 0.04)
'2.71'
>>> interval(Interval(2.7134, 2.66, 2.75, 90, 3))
'2.71 (2.66 to 2.75)'
"""

import math

from lib.stats.intervals import Interval

FIGURE_SPACE, POINT_SPACE = "\u2007", "\u2008"  # as wide as a digit, and as a point, in tabular numerals
MISSING = "–"
TINY = -4  # the power of ten below which a number is written as one


def number(value: float, uncertainty: float = math.nan) -> str:
    """The value with the digits that its uncertainty warrants: to the uncertainty's first digit, and to the
    second where the first is a 1 or 2; four digits where there is none at all, three where none is known, and two with
    a power of ten where that is very small."""
    if value == 0:
        return "0"
    size = math.floor(math.log10(abs(value)))
    if size < TINY and not uncertainty > 0:
        return f"{value:.2g}"
    if uncertainty > 0:
        place = math.floor(math.log10(uncertainty))
        place = min(place - (uncertainty < 3 * 10**place), size - 1)  # never fewer than two digits
    else:
        place = size - (3 if uncertainty == 0 else 2)
    return f"{round(value, -place):,.{max(0, -place)}f}"


def count(value: float) -> str:
    """A whole number of things."""
    return f"{value:,.0f}"


def exact(value: float) -> str:
    """A number with all the digits that single precision has."""
    return f"{value:.9g}"


def interval(of: Interval | None) -> str:
    """The value with its interval behind it, as plain text: 2.71 (2.66 to 2.75)."""
    if of is None:
        return MISSING
    if not of.known:
        return f"{number(of.value)} (too few samples for an interval)"
    value, ends = number(of.value, of.reach), f"({number(of.low, of.reach)} to {number(of.high, of.reach)})"
    return f"{value} {ends}" if of.reach else value


def aligned(texts: list[str]) -> list[str]:
    """Numbers padded on the right so that, flush right in tabular numerals, they align at the point."""
    decimals = [len(text.partition(".")[2]) for text in texts]
    widest = max(decimals, default=0)
    return [
        text if text == MISSING else text + ("" if has else POINT_SPACE * (widest > 0)) + FIGURE_SPACE * (widest - has)
        for text, has in zip(texts, decimals, strict=True)
    ]
