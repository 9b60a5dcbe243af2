"""Format numbers with the digits that their uncertainty warrants.

>>> number(2.7134, 0.04)
'2.71'
>>> number(2696.3, 140)
'2,700'
"""

import math

SMALL = 1e-4  # numbers below it whose uncertainty is unknown are written with an exponent


def number(value: float, uncertainty: float = math.nan) -> str:
    """Format a number to the first digit of its uncertainty, but with two digits at least.

    A number with an uncertainty of zero gets four digits, and one whose uncertainty is unknown three."""
    if math.isnan(value):
        return "–"
    if value == 0:
        return "0"
    if value < 0:
        return f"−{number(-value, uncertainty)}"
    if value < SMALL and not uncertainty > 0:
        return f"{value:.2g}"
    # a place is the power of ten of a digit
    first_place = math.floor(math.log10(value))
    if uncertainty > 0:
        last_place = min(math.floor(math.log10(uncertainty)), first_place - 1)
    elif uncertainty == 0:
        last_place = first_place - 3
    else:
        last_place = first_place - 2
    decimals = max(0, -last_place)
    return f"{round(value, -last_place):,.{decimals}f}"


def count(value: float) -> str:
    """Format a whole number, with commas between thousands."""
    return f"{value:,.0f}"
