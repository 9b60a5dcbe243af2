"""The names of the course's adapters stand for what is built here."""

import pytest
import torch
import torch.nn.functional as F

import course
import rank_checks

FLASH = [(course.get_flashattention_autograd_function_pytorch, "cpu")]
FLASH += [(course.get_flashattention_autograd_function_triton, "cuda")]


@pytest.mark.parametrize(("adapter", "device"), FLASH)
def test_flash_attention_is_attention(adapter, device):
    function = adapter()
    assert issubclass(function, torch.autograd.Function)
    if device == "cuda" and not torch.cuda.is_available():
        pytest.skip("no GPU; tests/flash runs these kernels in Triton's interpreter")
    inputs = torch.randn(3, 2, 32, 16, device=device, requires_grad=True)
    out = function.apply(*inputs, True)
    expected = F.scaled_dot_product_attention(*inputs, is_causal=True)
    torch.testing.assert_close(out, expected, rtol=1e-2, atol=1e-2)
    # the course looks for the one log-sum-exp of each query
    assert [x.shape for x in out.grad_fn.saved_tensors].count((2, 32)) == 1
    gradients = [torch.autograd.grad(x.square().sum(), inputs)[0] for x in (out, expected)]
    torch.testing.assert_close(*gradients, rtol=1e-2, atol=1e-2)


def test_a_step_by_each_adapter_for_ranks_is_that_of_one_process(two_ranks):
    for errors in two_ranks.run(rank_checks.errors_of_course_adapters):
        assert len(errors) == 5
        assert max(errors) < 1e-6
