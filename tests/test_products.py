"""Products by the chosen library are PyTorch's to 1e-5, forward and backward, for any module, and compile."""

import itertools

import pytest
import torch
from torch import nn

from lib import fast, products
from lib.products import Choice, ChosenLinear

needs_both = pytest.mark.skipif(not products.available(), reason="PyTorch has one library only")
CHOICES = [Choice(*flags) for flags in itertools.product([True, False], repeat=3)]
ALL = Choice(True, True, True)
NONE = Choice(False, False, False)


@pytest.fixture
def chosen(monkeypatch):
    """Set the choice instead of measuring it; the rows, inputs and outputs asked for are appended to a list."""
    asked = []

    def choose(choice):
        monkeypatch.setattr(products, "choose", lambda *shape: asked.append(shape) or choice)
        return asked

    return choose


def results(function, x, weight, bias, dout):
    """Return the output, and the gradients of what needs one."""
    out = function(x, weight, bias)
    wanted = [tensor for tensor in (x, weight, bias) if tensor is not None and tensor.requires_grad]
    return [out.detach(), *torch.autograd.grad(out, wanted, dout)]


def drawn(rows=(7,), inputs=24, outputs=40, bias=True, x_needs_gradient=True):
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(*rows, inputs, generator=generator).requires_grad_(x_needs_gradient)
    weight = torch.randn(outputs, inputs, generator=generator).requires_grad_()
    bias_F = torch.randn(outputs, generator=generator).requires_grad_() if bias else None
    return x, weight, bias_F, torch.randn(*rows, outputs, generator=generator)


@needs_both
@pytest.mark.parametrize("choice", CHOICES, ids=str)
@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("rows", [(7,), (2, 3, 4)])
def test_a_linear_map_and_its_gradients_are_those_of_torch(chosen, rows, bias, choice):
    chosen(choice)
    tensors = drawn(rows, bias=bias)
    expected = results(nn.functional.linear, *tensors)
    torch.testing.assert_close(results(products.linear, *tensors), expected, rtol=1e-5, atol=1e-5)


@needs_both
def test_gradients_that_nobody_needs_are_left_out_and_views_are_taken(chosen):
    chosen(ALL)
    x, weight, bias, dout = drawn((4, 6), inputs=24, outputs=24, x_needs_gradient=False)
    turned = x.transpose(0, 1), weight.t(), bias, dout.mT.contiguous().mT.transpose(0, 1)
    expected = results(nn.functional.linear, *turned)
    torch.testing.assert_close(results(products.linear, *turned), expected, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("kind", ["bf16", "autocast", "double", "empty"])
def test_what_is_not_fp32_is_left_to_torch(chosen, kind):
    asked = chosen(ALL)
    dtype = {"bf16": torch.bfloat16, "double": torch.float64}.get(kind, torch.float32)
    x, weight, bias, _ = (tensor.detach().to(dtype) for tensor in drawn())
    if kind == "empty":
        x = x[:0]
    with torch.autocast("cpu", torch.bfloat16, enabled=kind == "autocast"):
        assert torch.equal(products.linear(x, weight, bias), nn.functional.linear(x, weight, bias))
    assert asked == []


@needs_both
@pytest.mark.parametrize("dynamic", [None, True])
@pytest.mark.usefixtures("forget_graphs")
def test_it_compiles_to_one_graph_for_each_length(monkeypatch, dynamic):
    # measured, the choice might be no oneDNN at all
    monkeypatch.setattr(products, "_measured", lambda rows, *_: ALL if rows > 6 else NONE)
    compiled = torch.compile(products.linear, backend="aot_eager", fullgraph=True, dynamic=dynamic)
    for length in (2, 5, 6):
        tensors = drawn((2, length))
        expected = results(nn.functional.linear, *tensors)
        torch.testing.assert_close(results(compiled, *tensors), expected, rtol=1e-5, atol=1e-5)


@needs_both
def test_the_operator_keeps_pytorchs_rules():
    x, weight, bias, _ = (tensor.detach() for tensor in drawn())
    tests = ("test_schema", "test_faketensor")
    torch.library.opcheck(torch.ops.fast.onednn.default, (x, weight, bias), test_utils=tests)
    torch.library.opcheck(torch.ops.fast.onednn.default, (x.t(), weight.t()[:, :7], None), test_utils=tests)


@needs_both
def test_a_derivative_of_the_gradient_is_refused_instead_of_wrong():
    x, weight, _, dout = drawn(bias=False)
    out = ChosenLinear.apply(x, weight, None, ALL)
    (dx,) = torch.autograd.grad(out, x, dout.requires_grad_(), create_graph=True)
    with pytest.raises(RuntimeError, match="differentiate twice"):
        dx.sum().backward()


@pytest.fixture
def timed(monkeypatch):
    """Let products take made-up times: seconds of each library, by the shape of the left factor."""
    clock = [0.0]
    monkeypatch.setattr(products.time, "perf_counter", lambda: clock[0])
    monkeypatch.setattr(products, "available", lambda: True)

    def take(mkl, onednn):
        def pass_by(seconds):
            return lambda left, *_: clock.__setitem__(0, clock[0] + next(seconds[tuple(left.shape)]))

        monkeypatch.setattr(products.nn.functional, "linear", pass_by(mkl))
        monkeypatch.setattr(products, "onednn", pass_by(onednn))
        return products._measured.__wrapped__(4, 5, 6, 1)

    return take


def by_product(*seconds):
    """Return the times of a library, which repeat, by the shape of each product's left factor."""
    shapes = [(4, 5), (4, 6), (6, 4)]  # of the output, and the gradients of input and weight
    return {shape: itertools.cycle(times) for shape, times in zip(shapes, seconds, strict=True)}


@pytest.mark.parametrize(
    ("mkl", "onednn", "choice"),
    [
        (([3.0], [2.0], [1.0]), ([2.0], [2.5], [0.9]), Choice(True, False, True)),
        (([3.0], [2.0], [1.0]), ([3.0], [2.0], [1.0]), NONE),
        # less than the wrapper's own cost
        (([1.0], [1.0], [1.0]), ([1.0 - 4e-5], [1.0], [1.0]), NONE),
        # faster in half of the rounds only
        (([1.0, 3.0], [1.0], [1.0]), ([2.0], [1.0], [1.0]), NONE),
    ],
)
def test_each_product_goes_to_the_library_that_is_faster_for_it(timed, mkl, onednn, choice):
    assert timed(by_product(*mkl), by_product(*onednn)) == choice


@needs_both
def test_a_choice_is_measured_once_for_a_shape_and_draws_no_random_numbers(monkeypatch):
    monkeypatch.setattr(products, "SECONDS", 0)
    before = torch.get_rng_state()
    choice = products.choose(3, 5, 7)
    misses = products._measured.cache_info().misses
    assert products.choose(3, 5, 7) == choice
    assert products._measured.cache_info().misses == misses
    assert torch.equal(torch.get_rng_state(), before)


class Foreign(nn.Module):
    """A module that this project knows nothing of, with a weight under two names."""

    def __init__(self):
        super().__init__()
        self.encoder = nn.TransformerEncoder(nn.TransformerEncoderLayer(16, 2, 24, dropout=0.0), 2)
        self.head = nn.Linear(16, 16, bias=False)
        self.again = self.head

    def forward(self, x):
        return self.again(self.head(self.encoder(x)))


@needs_both
def test_any_module_keeps_its_parameters_names_hooks_and_results(chosen):
    torch.manual_seed(0)
    module = Foreign()
    x = torch.randn(5, 2, 16)
    expected = module(x)
    expected.sum().backward()
    gradients = {name: parameter.grad for name, parameter in module.named_parameters()}
    module.zero_grad()
    names, state, seen = list(gradients), list(module.state_dict()), []
    module.head.register_forward_hook(lambda *_: seen.append("hook"))

    asked = chosen(ALL)
    fast.products(module)
    out = module(x)
    out.sum().backward()
    torch.testing.assert_close(out, expected, rtol=1e-5, atol=1e-5)
    found = {name: parameter.grad for name, parameter in module.named_parameters()}
    torch.testing.assert_close(found, gradients, rtol=1e-5, atol=1e-5)
    assert [list(found), list(module.state_dict()), seen] == [names, state, ["hook", "hook"]]
    assert module.again is module.head
    assert set(asked) == {(10, 16, 24), (10, 24, 16), (10, 16, 16)}
