"""Numbers have the digits that their uncertainty warrants, and align."""

import math

import pytest

from lib.stats import digits


@pytest.mark.parametrize(
    ("value", "uncertainty", "text"),
    [
        (2696.3, 140, "2,700"), (2696.3, 14, "2,696"), (0.8684, 0.065, "0.87"), (0.8684, 0.012, "0.868"),
        (12.3456, math.nan, "12.3"), (12.3456, 0, "12.35"), (3.0, 5.0, "3.0"), (0, 1, "0"), (123456, 300, "123,500"),
    ],
)  # fmt: skip
def test_a_number_has_the_digits_that_its_uncertainty_warrants(value, uncertainty, text):
    assert digits.number(value, uncertainty) == text


def test_numbers_align_at_the_point():
    texts = digits.aligned(["1.25", "100", "3.5"])
    assert texts == [
        "1.25",
        "100" + digits.POINT_SPACE + 2 * digits.FIGURE_SPACE,
        "3.5" + digits.FIGURE_SPACE,
    ]
