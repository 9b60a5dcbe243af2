"""A reference in blocks of rows is the plain formula, and what it checks are copies."""

import pytest
import torch

from lib import attention
from lib.experiments import attending, exact


@pytest.mark.parametrize("causal", [True, False])
@pytest.mark.parametrize("scores", [1, 100, 2**22])
def test_blocks_of_rows_compute_what_the_plain_formula_does_forward_and_backward(monkeypatch, scores, causal):
    monkeypatch.setattr(attending, "SCORES", scores)
    inputs = [torch.randn(2, 13, 4, dtype=torch.float64, requires_grad=True) for _ in range(3)]
    dout = torch.randn(2, 13, 4, dtype=torch.float64)
    outs = [attend(*inputs, causal) for attend in (attention.naive, attending.by_rows)]
    expected, found = ((out, *torch.autograd.grad(out, inputs, dout)) for out in outs)
    torch.testing.assert_close(found, expected)


def test_a_copy_in_double_is_on_the_cpu_and_no_view():
    tensor = torch.ones(3, dtype=torch.float64, requires_grad=True)
    double = exact.double(tensor)
    double += 1
    assert (tensor.sum().item(), double.sum().item(), double.requires_grad) == (3, 6, False)
