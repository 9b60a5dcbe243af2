"""Numbers have the digits that their uncertainty warrants."""

import math

import pytest

from lib.stats import digits


@pytest.mark.parametrize(
    ("value", "uncertainty", "text"),
    [
        (2696.3, 140, "2,700"), (2696.3, 14, "2,700"), (2696.3, 3, "2,696"), (0.8684, 0.065, "0.87"),
        (0.8684, 0.002, "0.868"), (12.3456, math.nan, "12.3"), (12.3456, 0, "12.35"), (3.0, 5.0, "3.0"), (0, 1, "0"),
        (0, 0.3, "0.0"), (0, math.nan, "0"), (123456, 300, "123,500"),
        (-81.2, 2, "−81.2"), (103.8, 11, "104"), (103.8, 26, "100"), (9.04, 0.9, "9.0"),
        (0.00001234, math.nan, "1.2e-05"), (math.nan, 1, "–"),
        (-0.00001234, math.nan, "−1.2e-05"),
    ],
)  # fmt: skip
def test_a_number_has_the_digits_that_its_uncertainty_warrants(value, uncertainty, text):
    assert digits.number(value, uncertainty) == text


def test_what_rounds_to_zero_has_no_sign():
    assert digits.rounded(-0.02, -1) == "0.0"
