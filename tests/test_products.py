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
    monkeypatch.setattr(products, "_choose", lambda rows, *_: ALL if rows > 6 else NONE)
    compiled = torch.compile(products.linear, backend="aot_eager", fullgraph=True, dynamic=dynamic)
    for length in (2, 5, 6):
        tensors = drawn((2, length))
        expected = results(nn.functional.linear, *tensors)
        torch.testing.assert_close(results(compiled, *tensors), expected, rtol=1e-5, atol=1e-5)


@needs_both
def test_a_derivative_of_the_gradient_is_refused_instead_of_wrong():
    x, weight, _, dout = drawn(bias=False)
    out = ChosenLinear.apply(x, weight, None, ALL)
    (dx,) = torch.autograd.grad(out, x, dout.requires_grad_(), create_graph=True)
    with pytest.raises(RuntimeError, match="differentiate twice"):
        dx.sum().backward()


@pytest.mark.parametrize(
    ("gains_s", "choice"),
    [((1.0, 0.0, 0.1), Choice(True, False, True)), ((0.0, 0.0, 0.0), NONE), ((4e-5, 0.0, 0.0), NONE)],
    ids=["some", "none", "less than the wrapper costs"],
)
def test_each_product_goes_to_the_library_that_is_faster_for_it(monkeypatch, gains_s, choice):
    # the left factors of the output, and of the gradients of input and weight
    by_shape = dict(zip([(4, 5), (4, 6), (6, 4)], gains_s, strict=True))
    monkeypatch.setattr(products, "available", lambda: True)
    monkeypatch.setattr(products, "gain_s", lambda left, right: by_shape[tuple(left.shape)])
    assert products._choose.__wrapped__(4, 5, 6, 1) == choice


@pytest.mark.parametrize(
    ("mkl_s", "onednn_s", "gain_s"), [([3.0], [2.0], 1.0), ([1.0], [2.0], 0.0), ([1.0, 3.0], [2.0], 0.0)]
)
def test_a_library_must_be_faster_in_three_of_four_rounds(monkeypatch, mkl_s, onednn_s, gain_s):
    times = {"mkl": itertools.cycle(mkl_s), "onednn": itertools.cycle(onednn_s)}
    now = [0.0]

    def pass_by(library):
        now[0] += next(times[library])

    monkeypatch.setattr(products.time, "perf_counter", lambda: now[0])
    monkeypatch.setattr(products.nn.functional, "linear", lambda *_: pass_by("mkl"))
    monkeypatch.setattr(products, "onednn", lambda *_: pass_by("onednn"))
    assert products.gain_s(None, None) == gain_s


@needs_both
def test_a_choice_is_measured_once_for_a_shape_and_draws_no_random_numbers(monkeypatch):
    monkeypatch.setattr(products, "SECONDS", 0)
    before = torch.get_rng_state()
    choice = products.choose(3, 5, 7)
    misses = products._choose.cache_info().misses
    assert products.choose(3, 5, 7) == choice
    assert products._choose.cache_info().misses == misses
    assert torch.equal(torch.get_rng_state(), before)


@needs_both
def test_any_module_keeps_its_parameters_names_hooks_and_results(chosen):
    torch.manual_seed(0)
    layer = nn.TransformerEncoderLayer(16, 2, 24, dropout=0.0)
    head = nn.Linear(16, 16, bias=False)
    # a weight under two names
    module = nn.Sequential(layer, head, head)
    x = torch.randn(5, 2, 16)
    expected = module(x)
    expected.sum().backward()
    gradients = {name: parameter.grad for name, parameter in module.named_parameters()}
    state = list(module.state_dict())
    module.zero_grad()
    calls = []
    head.register_forward_hook(lambda *_: calls.append("hook"))

    asked = chosen(ALL)
    fast.products(module)
    out = module(x)
    out.sum().backward()
    torch.testing.assert_close(out, expected, rtol=1e-5, atol=1e-5)
    own = {name: parameter.grad for name, parameter in module.named_parameters()}
    torch.testing.assert_close(own, gradients, rtol=1e-5, atol=1e-5)
    assert list(module.state_dict()) == state
    assert calls == ["hook", "hook"]
    assert set(asked) == {(10, 16, 24), (10, 24, 16), (10, 16, 16)}
