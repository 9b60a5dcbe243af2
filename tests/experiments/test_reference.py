"""A reference in blocks of rows is the plain formula."""

import pytest
import torch

from lib import attention
from lib.experiments import reference


@pytest.mark.parametrize("causal", [True, False])
@pytest.mark.parametrize("scores", [1, 100, 2**22])
def test_blocks_of_rows_compute_what_the_plain_formula_does_forward_and_backward(monkeypatch, scores, causal):
    monkeypatch.setattr(reference, "SCORES", scores)
    inputs = [torch.randn(2, 13, 4, dtype=torch.float64, requires_grad=True) for _ in range(3)]
    dout = torch.randn(2, 13, 4, dtype=torch.float64)
    outs = [attend(*inputs, causal) for attend in (attention.naive, reference.by_rows)]
    expected, result = ((out, *torch.autograd.grad(out, inputs, dout)) for out in outs)
    torch.testing.assert_close(result, expected)
