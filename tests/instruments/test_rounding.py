"""Rounding is that of the dtype, step by step, and trouble is seen where it is."""

import math

import numpy as np
import pytest
import torch

from lib.instruments import rounding


def test_the_error_of_a_sum_is_that_of_its_terms_and_that_of_its_additions():
    loops = rounding.accumulation(torch.float16, "cpu")["loops"]
    assert np.add(loops["stored_error"], loops["added_error"]) == pytest.approx(loops["sum_error"])


@pytest.mark.parametrize(
    ("norm", "own"), [("layer_norm", torch.nn.functional.layer_norm), ("rms_norm", torch.nn.functional.rms_norm)]
)
def test_a_norm_by_steps_is_pytorchs_own_where_nothing_is_rounded(norm, own):
    x = torch.randn(4, 32, dtype=torch.float64)
    steps = rounding.steps(norm, x)
    assert next(iter(steps)) == "input"
    torch.testing.assert_close(steps["quotient"], own(x, [32], eps=rounding.EPS))


def test_the_squares_of_a_norm_overflow_in_fp16_and_not_in_bf16():
    fp16, bf16 = (rounding.sensitivity("rms_norm", dtype, "cpu") for dtype in (torch.float16, torch.bfloat16))
    failures = dict(zip(fp16["norm_limits"]["scale"], fp16["norm_limits"]["step"], strict=True))
    assert failures[1000.0] == "square"
    assert bf16["norm_limits"]["scale"] == []
    assert len(bf16["norm_errors"]["relative_error"]) == len(rounding.SCALES)
    assert max(bf16["norm_errors"]["relative_error"]) < 0.05
    assert bf16["step_errors"]["step"][0] == "input"


def test_trouble_is_seen_where_it_is():
    assert rounding.failure(torch.tensor([1, 1, 1, math.inf])) == "overflows"
    assert rounding.failure(torch.tensor([0, 0, 1, 1.0])) == "underflows"
    assert rounding.failure(torch.tensor([0, 1, 1, 1.0])) == ""
