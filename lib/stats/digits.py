"""Format numbers with the digits that their uncertainty warrants.

>>> number(2.7134, 0.04)
'2.71'
>>> number(2696.3, 140)
'2,700'
"""

import math

SMALL = 1e-4  # numbers below it whose uncertainty is unknown or 0 are written with an exponent
UNKNOWN = 0.02  # the relative uncertainty of a value without an interval
LEAST_DIFFERENCE = 0.03  # of a ratio from one that must be seen


def number(value: float, uncertainty: float = math.nan) -> str:
    """Format a number to the first digit of its uncertainty, with at least two digits.

    A number with an uncertainty of zero gets four digits, and one whose uncertainty is unknown three; below
    1e-4 both get at most two, and an exponent unless they round to 1e-4. NaN is a dash."""
    if 0 < abs(value) < SMALL and not uncertainty > 0:
        sign = "−" if value < 0 else ""
        return f"{sign}{abs(value):.2g}"
    return rounded(value, last_place(value, uncertainty))


def last_place(value: float, uncertainty: float) -> int:
    """Return the power of ten of the last digit that `number` shows without an exponent."""
    if math.isnan(value):
        return 0
    if value == 0:
        return math.floor(math.log10(uncertainty)) if uncertainty > 0 else 0
    first_place = math.floor(math.log10(abs(value)))
    if uncertainty > 0:
        return min(math.floor(math.log10(uncertainty)), first_place - 1)
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


def between(value: float, low: float, high: float) -> tuple[str, str, str]:
    """Format a value and the ends of its interval to the first digit of half its width.

    The ends are empty texts where they are unknown or equal. A value whose ends are unknown gets the digits of one that
    is known to 2%."""
    if low == high:
        return number(value, 0.0), "", ""
    if math.isnan(low):
        return number(value, UNKNOWN * abs(value)), "", ""
    return _with_ends(value, low, high, (high - low) / 2)


def ratio_between(value: float, low: float, high: float) -> tuple[str, str, str]:
    """Format a ratio and its ends as `between` does, with the digits that tell them from one.

    No end reads 1.0 that is not, nor does a ratio more than 3% from one. At most one digit more is shown than the
    interval warrants."""
    if not low < high:
        # without ends two decimals, and at least two digits
        return number(value, 0.01), "", ""
    reach = (high - low) / 2
    nearest = min(abs(low - 1), abs(high - 1))
    if abs(value - 1) > LEAST_DIFFERENCE:
        nearest = min(nearest, abs(value - 1))
    # rounding moves a number by at most half of its uncertainty
    return _with_ends(value, low, high, max(min(reach, 2 * nearest), reach / 10))


def _with_ends(value: float, low: float, high: float, uncertainty: float) -> tuple[str, str, str]:
    place = last_place(value, uncertainty)
    return number(value, uncertainty), rounded(low, place), rounded(high, place)
