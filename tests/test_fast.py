"""An accelerated model keeps the plain one's weights, names, logits, gradients and losses."""

import copy
import gc
import weakref
from dataclasses import replace

import pytest
import torch

from lib import adam, fast, model, precision, products
from lib.config import Config
from lib.model import TransformerLM

TINY = Config(vocab_size=96, context_length=16, d_model=32, num_layers=2, num_heads=4, d_ff=48)
BOTH = ["projections", "cast_once"]
CASES = [
    (["projections"], "fp32"), (["products"], "fp32"), (["products", "projections"], "fp32"),
    (["projections"], "bf16"), (["cast_once"], "bf16"), (BOTH, "bf16"), ([*BOTH, "products"], "bf16"),
]  # fmt: skip


@pytest.fixture(autouse=True)
def by_onednn(monkeypatch):
    """Compute every product by oneDNN where `products` is on, instead of measuring which library is faster."""
    choice = products.Choice(*[products.available()] * 3)
    monkeypatch.setattr(products, "choose", lambda *_: choice)


def trained(switches, name, steps=1):
    """Return the model, its optimizer, the logits and the losses of some steps; without switches plain."""
    torch.manual_seed(3)
    network = TransformerLM(TINY)
    tokens_BT = torch.randint(96, (2, 17))
    if switches:
        fast.accelerate(network, switches)
    make = fast.AdamW if switches else lambda params: adam.AdamW(params, "fused")
    optimizer = make(network.parameters())
    losses = []
    for step in range(steps):
        if step:
            optimizer.step()
            optimizer.zero_grad(set_to_none=True)
        with precision.activate(name, "cpu"):
            logits = network(tokens_BT[:, :-1])
            loss = model.loss(logits, tokens_BT[:, 1:])
        loss.backward()
        losses.append(loss.item())
    return network, optimizer, logits.detach(), losses


@pytest.mark.parametrize(("switches", "name"), CASES)
def test_logits_and_every_gradient_are_those_of_the_plain_model(switches, name):
    tolerance = 1e-6 if name == "fp32" else 0.02
    plain, _, expected, _ = trained([], name)
    network, _, logits, _ = trained(switches, name)
    torch.testing.assert_close(logits, expected, rtol=tolerance, atol=tolerance)
    named = dict(network.named_parameters())
    assert list(named) == sorted(named, key=list(dict(plain.named_parameters())).index)
    for key, weight in plain.named_parameters():
        gradient = named[key].grad.float()
        assert (gradient - weight.grad).norm() <= tolerance * weight.grad.norm().clamp(min=1e-3), key


@pytest.mark.parametrize(("switches", "name"), [CASES[2], CASES[-1]])
def test_fifty_steps_have_the_losses_of_the_plain_model(switches, name):
    *_, expected = trained([], name, steps=50)
    *_, losses = trained(switches, name, steps=50)
    assert losses == pytest.approx(expected, rel=1e-4 if name == "fp32" else 0.01)
    assert losses[-1] < 0.99 * losses[0]


@pytest.mark.parametrize(("switches", "name"), [CASES[2], CASES[-1]])
def test_weights_of_the_plain_model_load_strictly_and_are_used(switches, name):
    torch.manual_seed(5)
    plain, tokens_BT = TransformerLM(TINY), torch.randint(96, (2, 16))
    network = trained(switches, name)[0]
    network.load_state_dict(plain.state_dict(), strict=True)
    with precision.activate(name, "cpu"):
        torch.testing.assert_close(network(tokens_BT), plain(tokens_BT), rtol=1e-6, atol=1e-6)
    assert list(network.state_dict()) == list(plain.state_dict())
    torch.testing.assert_close(network.state_dict(), plain.state_dict(), rtol=0, atol=0)


def test_gradients_add_up_over_several_backward_passes():
    network = trained(["projections"], "fp32")[0]
    once = network.layers[0].attn.q_proj.weight.grad.clone()
    torch.manual_seed(3)
    TransformerLM(TINY)  # draws what `trained` drew before its tokens
    tokens_BT = torch.randint(96, (2, 17))
    model.loss(network(tokens_BT[:, :-1]), tokens_BT[:, 1:]).backward()
    torch.testing.assert_close(network.layers[0].attn.q_proj.weight.grad, 2 * once)


def test_gradients_are_narrow_the_copy_follows_the_weight_and_a_dropped_model_frees_both():
    network, optimizer, *_ = trained(BOTH, "bf16", steps=2)
    optimizer.step()
    for weight in (network.layers[1].ffn.w2.weight, network.layers[0].attn.q_proj.weight):
        assert (weight.dtype, weight.grad.dtype) == (torch.float32, torch.bfloat16)
        assert torch.equal(weight.rounded, weight.to(torch.bfloat16))
    del weight
    alive = [weakref.ref(param) for param in network.parameters()]
    del network, optimizer, _
    gc.collect()
    assert [ref for ref in alive if ref() is not None] == []


@pytest.mark.usefixtures("forget_graphs")
@pytest.mark.parametrize("switches", [["projections", "products"], BOTH])
def test_equal_layers_compile_to_one_graph_and_give_the_eager_results(switches):
    from torch._dynamo.utils import counters

    torch.manual_seed(0)
    network = TransformerLM(replace(TINY, num_layers=10))  # more than the recompilations that PyTorch allows
    fast.accelerate(network, switches)
    tokens_BT = torch.randint(96, (2, 16))
    with torch.autocast("cpu", torch.bfloat16, enabled="cast_once" in switches):
        expected = network(tokens_BT)
        for layer in network.layers:
            layer.compile(dynamic=False, backend="aot_eager")
        graphs = counters["stats"]["unique_graphs"]
        tolerance = 1e-2 if "cast_once" in switches else 1e-5
        torch.testing.assert_close(network(tokens_BT), expected, rtol=tolerance, atol=tolerance)
    assert counters["stats"]["unique_graphs"] == graphs + 1


def test_layers_are_the_elements_of_all_lists():
    layer = torch.nn.Module()
    layer.experts = torch.nn.ModuleList([torch.nn.Linear(2, 2)])
    network = torch.nn.Module()
    network.body = torch.nn.Module()
    network.body.blocks = torch.nn.ModuleList([layer])
    network.heads = torch.nn.ModuleList([torch.nn.Linear(2, 2)])
    compiled = []
    for module in network.modules():
        module.compile = lambda module=module, **options: compiled.append((module, options))
    fast.compile_layers(network)
    layers = [layer, layer.experts[0], network.heads[0]]
    assert compiled == [(each, {"dynamic": False}) for each in layers]


def test_weights_cast_once_serve_any_module_with_biases():
    torch.manual_seed(0)
    plain = torch.nn.TransformerEncoder(torch.nn.TransformerEncoderLayer(16, 2, 24, dropout=0.0), 2)
    x = torch.randn(5, 2, 16)
    network = copy.deepcopy(plain)
    fast.accelerate(network, ["cast_once"])
    assert list(network.state_dict()) == list(plain.state_dict())
    with torch.autocast("cpu", torch.bfloat16):
        torch.testing.assert_close(network(x), plain(x), rtol=2e-2, atol=2e-2)


def test_what_cannot_be_is_refused():
    with pytest.raises(ValueError, match="nearest: projections"):
        fast.accelerate(TransformerLM(TINY), ["projection"])
    with pytest.raises(ValueError, match="expected a narrower type"):
        fast.accelerate(TransformerLM(TINY), ["cast_once"], torch.float32)
    with pytest.raises(ValueError, match="network: got Linear without a ModuleList"):
        fast.compile_layers(torch.nn.Linear(2, 2))
    with pytest.raises(ValueError, match="amsgrad: got True, expected False"):
        fast.AdamW(TransformerLM(TINY).parameters(), adam.Hyper(amsgrad=True))
    with pytest.raises(ValueError, match="amsgrad: got True, expected False"):
        fast.AdamW([{"params": TransformerLM(TINY).parameters(), "amsgrad": True}])
