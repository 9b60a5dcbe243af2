"""A reference holds no more than what it checks and computes what the plain formula does; MPS has no doubles."""

import pytest
import torch

from lib import attention
from lib.experiments import attending, exact
from pretended import NO_DOUBLE, pretended


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


def test_a_double_on_a_device_that_has_none_is_refused_in_a_backward_pass_too():
    with pretended("mps"):
        there, here = torch.ones(2, device="mps"), torch.ones(2)
        for double in (lambda: there.double(), lambda: here.double().to("mps"), lambda: (there + here).double()):
            with pytest.raises(TypeError, match=NO_DOUBLE):
                double()
        assert there.cpu().double().sum() == (here.to("mps") + there).to("cpu").double().mean() == 2
        there.requires_grad_().register_hook(lambda gradient: gradient.double())
        with pytest.raises(TypeError, match=NO_DOUBLE):
            there.sum().backward()
