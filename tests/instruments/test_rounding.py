"""Rounding is that of the dtype, step by step, and trouble is seen where it is."""

import math

import pytest
import torch

from lib.instruments import rounding


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32])
@pytest.mark.parametrize("value", [0.01, 1.0, 3.9, 4.0, 10.0])
def test_the_spacing_is_the_distance_to_the_next_number(dtype, value):
    x = torch.tensor(value, dtype=dtype)
    bits = {2: torch.int16, 4: torch.int32}[x.element_size()]
    following = (x.view(bits) + 1).view(dtype)
    assert rounding.spacing(x.item(), dtype) == following.item() - x.item()


@pytest.mark.parametrize("norm", rounding.NORMS)
def test_a_norm_by_steps_is_pytorchs_own_where_nothing_is_rounded(norm):
    x = torch.randn(4, 32, dtype=torch.float64)
    steps = rounding.steps(norm, x, lambda name, tensor: tensor)
    assert next(iter(steps)) == "input"
    assert torch.allclose(steps["quotient"], rounding.KERNELS[norm](x, [32], eps=rounding.EPS))


def test_trouble_is_seen_where_it_is():
    exact = torch.ones(4, dtype=torch.float64)
    assert rounding.failure(torch.tensor([1, 1, 1, math.inf]), exact) == "overflows"
    assert rounding.failure(torch.tensor([0, 0, 1, 1.0]), exact) == "underflows"
    assert rounding.failure(torch.tensor([0, 1, 1, 1.0]), exact) == ""
