"""FlashAttention in PyTorch gives the formula's numbers, keeps one sum a query, and never holds all scores."""

from types import SimpleNamespace

import pytest
import torch

from flash_checks import FLOATS, LAYOUTS, SHAPES, compare, draw, expected, overflow, poison
from lib import attention
from lib.flash.blocks import COMPILED_BLOCK, FlashAttentionTorch
from lib.instruments import environment
from lib.instruments.peak_memory import follow

needs_compiler = pytest.mark.skipif(environment.compiler_missing("cpu") is not None, reason="no C++ compiler")


@pytest.mark.parametrize(("queries", "keys", "d_head", "causal", "floats"), SHAPES)
def test_it_is_the_formula(queries, keys, d_head, causal, floats):
    small_blocks = SimpleNamespace(apply=lambda *inputs: FlashAttentionTorch.apply(*inputs, 16))
    for function in (small_blocks, FlashAttentionTorch):
        compare(function, queries, keys, d_head, causal, floats)


@pytest.mark.parametrize("layout", LAYOUTS)
def test_it_takes_any_strides_and_dimensions_and_repeats_its_bits(layout):
    layout(FlashAttentionTorch)


@pytest.mark.parametrize("floats", FLOATS)
def test_a_future_score_that_overflows_or_value_that_is_not_finite_reaches_no_earlier_row(floats):
    overflow(FlashAttentionTorch, floats)
    poison(FlashAttentionTorch, floats)


@needs_compiler
@pytest.mark.usefixtures("forget_graphs")
def test_the_compiled_one_is_the_formula_with_the_same_graphs_for_other_lengths():
    from torch._dynamo.utils import counters

    in_blocks = SimpleNamespace(apply=lambda *inputs: FlashAttentionTorch.apply(*inputs, COMPILED_BLOCK, True))
    compare(in_blocks, 300, 300, 16, True, "fp32")
    graphs = counters["stats"]["unique_graphs"]
    compare(in_blocks, 428, 428, 16, True, "fp32")
    assert counters["stats"]["unique_graphs"] == graphs


def test_gradients_in_bf16_are_as_exact_at_any_number_of_blocks():
    inputs, dout = draw(512, 512, 32, torch.bfloat16)
    _, _, right, *_ = expected(inputs, dout, False)
    errors = []
    for block in (512, 16):
        dq, *_ = torch.autograd.grad(FlashAttentionTorch.apply(*inputs, False, block), inputs, dout)
        errors.append(((dq - right).norm() / right.norm()).item())
    assert errors[1] < 1.2 * errors[0] < 0.01


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_large_narrow_scores_are_as_exact_as_those_of_pytorch(dtype):
    inputs, dout = draw(256, 256, 32, dtype)
    inputs[0].data *= 16
    right, _, *gradients = expected(inputs, dout)
    errors = []
    for function in (attention.tiled, attention.sdpa):
        out = function(*inputs)
        results = zip([out, *torch.autograd.grad(out, inputs, dout)], [right, *gradients], strict=True)
        errors.append([(result - exact).norm() / exact.norm() for result, exact in results])
    for ours, theirs in zip(*errors, strict=True):
        assert ours < 1.5 * theirs


def test_a_second_derivative_is_refused():
    inputs, dout = draw(8, 8, 4, leading=())
    out = FlashAttentionTorch.apply(*inputs, False)
    first = torch.autograd.grad(out, inputs, dout.requires_grad_(), create_graph=True)
    with pytest.raises(RuntimeError, match="once_differentiable"):
        first[0].sum().backward()


@pytest.mark.parametrize("causal", [True, False])
def test_no_tensor_of_all_scores_is_ever_allocated(causal):
    length, block = 512, 64
    inputs, dout = draw(length, length, 8, leading=())

    def iteration(mark):
        out = FlashAttentionTorch.apply(*inputs, causal, block)
        mark("forward")
        torch.autograd.grad(out, inputs, dout)
        mark("backward")

    sizes = [allocation["bytes"] for allocation in follow(iteration).allocations]
    assert max(sizes) == 4 * length * block
