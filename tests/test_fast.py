"""A model with rounded matrices trains as the plain one does, whatever else is done with its weights."""

import copy
import io
from dataclasses import replace

import pytest
import torch
from torch import nn
from torch._dynamo.utils import counters
from torch.nn.utils import clip_grad_norm_, parameters_to_vector, vector_to_parameters

from lib import adam, fast, model
from lib.config import Config
from lib.instruments import environment
from lib.model import TransformerLM

TINY = Config(vocab_size=96, context_length=16, d_model=32, num_layers=2, num_heads=4, d_ff=48)
TOKENS_BT = torch.randint(96, (8, 17), generator=torch.Generator().manual_seed(0))
NAME = "layers.0.ffn.w1.weight"
pytestmark = [
    pytest.mark.usefixtures("forget_graphs", "one_thread"),
    pytest.mark.skipif(environment.compiler_missing("cpu") is not None, reason="no C++ compiler"),
]


def plain(change=None):
    """Return the plain model and its optimizer; `change` is called with the model before that is made."""
    torch.manual_seed(3)
    network = TransformerLM(TINY)
    if change:
        change(network)
    return network, adam.AdamW(network.parameters(), "fused")


def rounded(change=None):
    network, _ = plain(change)
    optimizer = fast.MastersAdamW(network.parameters())
    optimizer.round_matrices(network)
    return network, optimizer


def backward(network, tokens_BT=TOKENS_BT):
    with torch.autocast("cpu", torch.bfloat16):
        loss = model.loss(network(tokens_BT[:, :-1]), tokens_BT[:, 1:])
    loss.backward()
    return loss.item()


def train(network, optimizer, steps=3):
    losses = []
    for _ in range(steps):
        losses.append(backward(network))
        optimizer.step()
        optimizer.zero_grad()
    return losses


def full(network, optimizer):
    """Return the fp32 weights by name."""
    return fast.full_state_dict(network, optimizer)


def check(state, expected, tolerance=2e-4):
    """Compare each weight by norms; rounding to bf16 alone would differ by 1e-3."""
    assert list(state) == list(expected)
    for name, weight in expected.items():
        assert (state[name] - weight).norm() <= tolerance * weight.norm(), name


def test_fifty_steps_have_the_losses_of_the_plain_model_at_changing_rates_with_one_graph():
    losses = []
    graphs = counters["stats"]["unique_graphs"]
    for network, optimizer in (plain(), rounded()):
        schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: 1 / (1 + step))
        losses.append([])
        for _ in range(50):
            losses[-1] += train(network, optimizer, 1)
            schedule.step()
    assert losses[1] == pytest.approx(losses[0], rel=2e-3)
    assert losses[1][-1] < 0.99 * losses[1][0]
    assert counters["stats"]["unique_graphs"] == graphs + 1


def test_matrices_are_rounded_and_masters_change_as_plain_weights_do():
    network, optimizer = rounded()
    reference = plain()
    train(*reference)
    start = full(network, optimizer)
    check(start, plain()[0].state_dict(), 0)
    train(network, optimizer)
    check(full(network, optimizer), reference[0].state_dict())
    for name, weight in network.named_parameters():
        is_matrix = weight.dim() == 2 and name != "token_embeddings.weight"
        assert weight.dtype == (torch.bfloat16 if is_matrix else torch.float32)
        assert torch.equal(weight, full(network, optimizer)[name].to(weight.dtype))


def freeze(network):
    network.layers[0].requires_grad_(False)


def test_frozen_weights_stay_as_they_are_and_get_no_gradient():
    network, optimizer = rounded(freeze)
    train(network, optimizer)
    backward(network)
    check(network.layers[0].state_dict(), plain()[0].layers[0].state_dict(), 0)
    assert all(weight.grad is None for weight in network.layers[0].parameters())
    reference, _ = plain(freeze)
    reference.load_state_dict(full(network, optimizer))
    backward(reference)
    norms = [clip_grad_norm_(each.parameters(), 0.1) for each in (network, reference)]
    torch.testing.assert_close(*norms, rtol=1e-2, atol=0)


def test_a_copy_and_a_pickle_of_model_and_optimizer_train_on_with_equal_bits():
    pair = rounded()
    train(*pair)
    file = io.BytesIO()
    torch.save(pair, file)
    file.seek(0)
    copies = [copy.deepcopy(pair), torch.load(file, weights_only=False)]
    losses = train(*pair)
    for copied in copies:
        assert train(*copied) == losses
        check(full(*copied), full(*pair), 0)


def test_training_resumes_with_equal_bits_and_from_the_state_of_plain_adamw():
    network, optimizer = rounded()
    train(network, optimizer)
    file = io.BytesIO()
    torch.save((network.state_dict(), optimizer.state_dict()), file)
    file.seek(0)
    weights, state = torch.load(file, weights_only=True)
    restored, resumed = rounded()
    restored.load_state_dict(weights)
    resumed.load_state_dict(state)
    assert train(restored, resumed) == train(network, optimizer)
    check(full(restored, resumed), full(network, optimizer), 0)
    reference = plain()
    train(*reference)
    network, optimizer = rounded(lambda network: network.load_state_dict(reference[0].state_dict()))
    optimizer.load_state_dict(reference[1].state_dict())
    train(*reference)
    train(network, optimizer)
    # without masters it begins from rounded weights
    check(full(network, optimizer), reference[0].state_dict(), 1e-2)


@torch.no_grad()
def load_part(network):
    network.load_state_dict({NAME: 2 * network.get_parameter(NAME)}, strict=False)


@torch.no_grad()
def scale(network):
    network.get_parameter(NAME).mul_(2)


def set_data(network):
    network.get_parameter(NAME).data = 2 * network.get_parameter(NAME).data.float()


def set_vector(network):
    vector = parameters_to_vector(network.parameters()).detach()
    vector_to_parameters(2 * vector, network.parameters())


@pytest.mark.parametrize("change", [load_part, scale, set_data, set_vector])
def test_a_weight_that_is_changed_from_outside_is_the_one_that_trains_on(change):
    network, optimizer = rounded()
    train(network, optimizer, 1)
    changed = copy.deepcopy(network)
    change(changed)
    change(network)
    weight = network.get_parameter(NAME)
    expected = 2 * full(network, optimizer)[NAME] - full(network, optimizer)[NAME]
    assert torch.equal(weight.to(torch.bfloat16).float(), expected)
    assert backward(network) == backward(changed)
    optimizer.step()
    # one step at the rate of 1e-3 from the weight that was set
    assert (full(network, optimizer)[NAME] - expected).abs().max() < 5e-3
    assert weight.dtype == torch.bfloat16


@pytest.mark.parametrize("other", ["layers.1.ffn.w1", "token_embeddings"])
def test_a_weight_that_two_modules_share_is_one_weight(other):
    def share(network):
        owner = network.lm_head if other == "token_embeddings" else network.layers[0].ffn.w1
        network.get_submodule(other).weight = owner.weight

    network, optimizer = rounded(share)
    reference = plain(share)
    assert train(network, optimizer) == pytest.approx(train(*reference), rel=1e-3)
    check(full(network, optimizer), reference[0].state_dict())
    assert network.token_embeddings.weight.dtype == torch.float32


@pytest.mark.parametrize("copied", [False, True])
def test_gradients_of_many_backward_passes_add_up_in_fp32(copied):
    network, optimizer = rounded()
    if copied:
        network, optimizer = copy.deepcopy((network, optimizer))
    reference, _ = plain()
    for _ in range(40):
        backward(network, TOKENS_BT[:2])
        backward(reference, TOKENS_BT[:2])
    gradients = [each.get_parameter(NAME).grad for each in (network, reference)]
    torch.testing.assert_close(*gradients, rtol=1e-3, atol=1e-4)
    optimizer.step()
    optimizer.zero_grad(set_to_none=False)
    backward(network)
    assert network.get_parameter(NAME).grad.norm() > 0


def test_what_cannot_be_is_refused():
    with pytest.raises(ValueError, match="network: got Linear without a ModuleList"):
        fast.compile_layers(nn.Linear(2, 2))
    with pytest.raises(ValueError, match=r"^params: got torch.float16, expected torch.float32"):
        fast.MastersAdamW(TransformerLM(TINY).half().parameters())
    for groups, hyper in [
        (nn.Linear(2, 2).parameters(), adam.Hyper(amsgrad=True)),
        ([{"params": nn.Linear(2, 2).parameters(), "amsgrad": True}], adam.Hyper()),
    ]:
        with pytest.raises(ValueError, match="amsgrad: got True, expected False"):
            fast.MastersAdamW(groups, hyper)
    _, optimizer = rounded()
    params = [param for group in optimizer.param_groups for param in group["params"]]
    state = adam.AdamW(params, hyper=adam.Hyper(amsgrad=True)).state_dict()
    with pytest.raises(ValueError, match="amsgrad: got True, expected False"):
        optimizer.load_state_dict(state)


def test_equal_layers_compile_to_one_graph_and_give_the_eager_results():
    torch.manual_seed(0)
    network = TransformerLM(replace(TINY, num_layers=10))  # more than the recompilations that PyTorch allows
    optimizer = fast.MastersAdamW(network.parameters())
    optimizer.round_matrices(network)
    with torch.autocast("cpu", torch.bfloat16):
        expected = network(TOKENS_BT[:, :-1])
        for layer in network.layers:
            layer.compile(dynamic=False, backend="aot_eager")
        graphs = counters["stats"]["unique_graphs"]
        torch.testing.assert_close(network(TOKENS_BT[:, :-1]), expected, rtol=1e-2, atol=1e-2)
    assert counters["stats"]["unique_graphs"] == graphs + 1


def test_layers_are_the_elements_of_all_lists(monkeypatch):
    compiled = []
    monkeypatch.setattr(nn.Module, "compile", lambda module, **options: compiled.append((module, options)))
    layer = nn.Module()
    layer.experts = nn.ModuleList([nn.Linear(2, 2)])
    network = nn.ModuleDict({"blocks": nn.ModuleList([layer]), "heads": nn.ModuleList([nn.Linear(2, 2)])})
    fast.compile_layers(network)
    layers = [layer, layer.experts[0], network["heads"][0]]
    assert compiled == list(zip(layers, [{"dynamic": False}] * 3, strict=True))


def test_a_master_is_followed_as_long_as_the_weight_is_its_rounding():
    # all exponents, and each of the bits that decide a rounding
    bits = torch.arange(0, 2**31 - 2**24, 4099, dtype=torch.int32)
    master = torch.cat([bits, bits & -0x10000 | 0x8000]).view(torch.float32)
    weight = master.to(torch.bfloat16)
    assert torch.equal(fast._follow(weight, master), master)
    neighbour = (weight.view(torch.int16) + 1).view(torch.bfloat16)
    assert torch.equal(fast._follow(neighbour, master), neighbour.float())
