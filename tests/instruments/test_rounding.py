"""Rounding is that of the dtype, step by step, and trouble is seen where it is."""

import math

import pytest
import torch

from lib.instruments import rounding


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32])
@pytest.mark.parametrize("value", [0.01, 3.9, 4.0])
def test_the_spacing_is_the_distance_to_the_next_number(dtype, value):
    x = torch.tensor(value, dtype=dtype)
    bits = {2: torch.int16, 4: torch.int32}[x.element_size()]
    following = (x.view(bits) + 1).view(dtype)
    assert rounding.spacing(x.item(), dtype) == following.item() - x.item()


def test_the_error_of_a_sum_is_that_of_its_terms_and_that_of_its_additions():
    loops = rounding.accumulation(torch.float16, "cpu")["loops"]
    parts = zip(loops["stored_error"], loops["added_error"], strict=True)
    assert [stored + added for stored, added in parts] == pytest.approx(loops["sum_error"])


@pytest.mark.parametrize(
    ("norm", "own"),
    [("layer_norm", torch.nn.functional.layer_norm), ("rms_norm", torch.nn.functional.rms_norm)],
)
def test_a_norm_by_steps_is_pytorchs_own_where_nothing_is_rounded(norm, own):
    x = torch.randn(4, 32, dtype=torch.float64)
    steps = rounding.exact_steps(norm, x)
    assert next(iter(steps)) == "input"
    torch.testing.assert_close(steps["quotient"], own(x, [32], eps=rounding.EPS))


def test_the_squares_of_a_norm_overflow_in_fp16_and_not_in_bf16():
    fp16, bf16 = (rounding.sensitivity("rms_norm", dtype, "cpu") for dtype in (torch.float16, torch.bfloat16))
    failures = dict(zip(fp16["norm_limits"]["scale"], fp16["norm_limits"]["step"], strict=True))
    assert failures[1000.0] == "square"
    assert bf16["norm_limits"]["scale"] == []
    assert len(bf16["norm_errors"]["relative_error"]) == len(rounding.SCALES) + len(rounding.OFFSETS)
    assert max(bf16["norm_errors"]["relative_error"]) < 0.05
    assert bf16["step_errors"]["step"][0] == "input"


def test_trouble_is_seen_where_it_is():
    exact = torch.ones(4, dtype=torch.float64)
    assert rounding.failure(torch.tensor([1, 1, 1, math.inf]), exact) == "overflows"
    assert rounding.failure(torch.tensor([0, 0, 1, 1.0]), exact) == "underflows"
    assert rounding.failure(torch.tensor([0, 1, 1, 1.0]), exact) == ""
