"""Format numbers with the digits that their uncertainty warrants.

>>> number(2.7134, 0.04)
'2.71'
>>> number(2696.3, 140)
'2,700'
>>> number(103.8, 11)
'104'
"""

import math

SMALL = 1e-4  # numbers below it whose uncertainty is unknown or 0 are written with an exponent
# an uncertainty has two digits if they are at most 35 (Particle Data Group, Review of Particle Physics, introduction,
# 5.3), unless it is more than an eighth of the value or the value would have more than three digits
TWO_DIGITS, MOST_SHARE = 3.55, 1 / 8


def number(value: float, uncertainty: float = math.nan) -> str:
    """Format a number to its uncertainty's last digit, with at least two digits.

    An uncertainty has one digit, or two if they are small; see TWO_DIGITS. With an uncertainty of zero the number gets
    four digits, and with an unknown one three. Below 1e-4 it then gets at most two, and an exponent unless it rounds to
    1e-4. NaN is a dash."""
    if 0 < abs(value) < SMALL and not uncertainty > 0:
        sign = "−" if value < 0 else ""
        return f"{sign}{abs(value):.2g}"
    return rounded(value, last_place(value, uncertainty))


def last_place(value: float, uncertainty: float) -> int:
    """Return the power of ten of the last digit that `number` shows."""
    if math.isnan(value):
        return 0
    if value == 0:
        return math.floor(math.log10(uncertainty)) if uncertainty > 0 else 0
    first_place = math.floor(math.log10(abs(value)))
    if uncertainty > 0:
        place = math.floor(math.log10(uncertainty))
        has_two = uncertainty < min(TWO_DIGITS * 10.0**place, MOST_SHARE * abs(value)) and place > first_place - 2
        return min(place - has_two, first_place - 1)
    if uncertainty == 0:
        return first_place - 3
    return first_place - 2


def rounded(value: float, place: int) -> str:
    """Format a number rounded to a power of ten."""
    if math.isnan(value):
        return "–"
    decimals = max(0, -place)
    # z: what rounds to zero has no sign
    return f"{round(value, -place):z,.{decimals}f}".replace("-", "−")
