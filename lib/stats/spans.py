"""Format a value and its interval's ends with the digits that it warrants.

>>> between(69.12, 67.2, 71.9)
('69.1', '67.2', '71.9')
"""

import math

from lib.stats import digits

LEAST_DIFFERENCE = 0.03  # a ratio that is farther from one must not read 1.0
LAST_PLACE = -4  # the power of ten of the last digit that tells the end of a ratio from one


def between(value: float, low: float, high: float, finer: int = 0) -> tuple[str, str, str]:
    """Format a value and its ends to the digits that half the interval's width warrants.

    `finer` asks for so many digits more. The ends are empty texts where they are unknown or equal. A value whose ends
    are unknown gets three digits."""
    if low == high:
        return digits.number(value, 0.0), "", ""
    if math.isnan(low):
        return digits.number(value), "", ""
    return _with_ends(value, low, high, (high - low) / 2 / 10**finer)


def ratio_between(value: float, low: float, high: float) -> tuple[str, str, str]:
    """Format a ratio as `between` does, with the digits that tell it from one.

    An end that is not one does not read 1.0, nor does a ratio more than 3% from one. That takes all three at most one
    digit more than the interval warrants; an end that still reads 1.0 gets more by itself."""
    if not low < high:
        # without ends two decimals, and at least two digits
        return digits.number(value, 0.01), "", ""
    reach = (high - low) / 2
    nearest = min(abs(low - 1), abs(high - 1))
    if abs(value - 1) > LEAST_DIFFERENCE:
        nearest = min(nearest, abs(value - 1))
    # rounding moves a number by at most half of its uncertainty
    uncertainty = max(min(reach, 2 * nearest), reach / 10)
    place = digits.last_place(value, uncertainty)
    return digits.number(value, uncertainty), _beside_one(low, place), _beside_one(high, place)


def _beside_one(end: float, place: int) -> str:
    while place > LAST_PLACE and round(end, -place) == 1 != end:
        place -= 1
    return digits.rounded(end, place)


def _with_ends(value: float, low: float, high: float, uncertainty: float) -> tuple[str, str, str]:
    place = digits.last_place(value, uncertainty)
    return digits.number(value, uncertainty), digits.rounded(low, place), digits.rounded(high, place)
