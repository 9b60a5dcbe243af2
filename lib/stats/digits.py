"""Format numbers with the digits that their uncertainty warrants.

>>> number(2.7134, 0.04)
'2.71'
>>> interval(Interval(2.7134, 2.66, 2.75, 90, 3))
'2.71 (2.66 to 2.75)'
"""

import math

from lib.stats.intervals import Interval

FIGURE_SPACE, POINT_SPACE = "\u2007", "\u2008"  # as wide as a digit, and as a point, in tabular numerals
MISSING = "–"
TINY = -4  # numbers below this power of ten are written with an exponent


def number(value: float, uncertainty: float = math.nan) -> str:
    """Format the value to the first digit of its uncertainty, or to the second after a 1 or 2.

    A value without uncertainty gets four digits, one with unknown uncertainty three. If such a value is below 1e-4, it
    gets two digits and an exponent."""
    if value == 0:
        return "0"
    if value < 0:
        return f"−{number(-value, uncertainty)}"
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
    """Format a whole number, with commas between thousands."""
    return f"{value:,.0f}"


def bound(most: float) -> str:
    """Format an upper bound with two digits, rounded up, and never below 0.01.

    >>> bound(0.9901)
    '1.00'
    """
    place = max(-2, math.floor(math.log10(most)) - 1) if most > 0 else -2
    return f"{max(0.01, math.ceil(round(most / 10**place, 6)) * 10**place):,.{max(0, -place)}f}"


def exact(value: float) -> str:
    """Format a number with all the digits of single precision."""
    return f"{value:.9g}"


def value(of: Interval) -> str:
    """Format a value alone, with the digits that its interval warrants: 2.71."""
    return number(of.value, of.reach)


def interval(of: Interval | None) -> str:
    """Format a value with its interval in plain text: 2.71 (2.66 to 2.75)."""
    if of is None:
        return MISSING
    if not of.known:
        return f"{number(of.value)} (no interval)"
    ends = f" ({number(of.low, of.reach)} to {number(of.high, of.reach)})" if of.reach else ""
    return value(of) + ends


def brief(of: Interval) -> str:
    """Return the value with its interval, or alone if it has none."""
    return interval(of) if of.known else number(of.value)


def aligned(texts: list[str]) -> list[str]:
    """Pad numbers so that they align at the point, flush right in tabular numerals."""
    decimals = [len(text.partition(".")[2]) for text in texts]
    widest = max(decimals, default=0)
    return [
        text if text == MISSING else text + ("" if has else POINT_SPACE * (widest > 0)) + FIGURE_SPACE * (widest - has)
        for text, has in zip(texts, decimals, strict=True)
    ]
