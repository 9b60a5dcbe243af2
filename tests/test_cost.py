"""The arithmetic of costs agrees with what PyTorch counts, saves and allocates."""

import dataclasses

import pytest
import torch
from torch.utils.flop_counter import FlopCounterMode

from lib import adam, attention, cost, memory, model, precision
from lib.cases.step import Step

# Shapes of differing aspect, so that each has its peak elsewhere: in a layer's feed-forward or attention, in the loss
# where the vocabulary is wide, at the end of the backward pass or in the optimizer where parameters outweigh tokens.
SHAPES = {
    "narrow": cost.Shape(
        d_model=64, d_ff=224, num_layers=2, num_heads=4, vocab_size=96, batch_size=2, context_length=96
    ),
    "wide": cost.Shape(
        d_model=64, d_ff=224, num_layers=2, num_heads=4, vocab_size=4000, batch_size=4, context_length=96
    ),
    "deep": cost.Shape(d_model=32, d_ff=96, num_layers=12, num_heads=2, vocab_size=50, batch_size=1, context_length=32),
    "long": cost.Shape(d_model=32, d_ff=64, num_layers=2, num_heads=2, vocab_size=64, batch_size=1, context_length=520),
    "few tokens": cost.Shape(
        d_model=128, d_ff=512, num_layers=2, num_heads=2, vocab_size=200, batch_size=2, context_length=8
    ),
}


@pytest.fixture(params=SHAPES)
def shape(request):
    return SHAPES[request.param]


@pytest.fixture(autouse=True)
def former_precision():
    former = torch.get_float32_matmul_precision()
    yield
    torch.set_float32_matmul_precision(former)


@pytest.fixture(autouse=True)
def one_thread():
    """The operations are small: on a busy machine the threads would mostly wait for one another."""
    former = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(former)


def build(shape, attend="naive"):
    """The model of a shape, and a batch of inputs and targets."""
    values = dataclasses.asdict(shape)
    batch = values.pop("batch_size")
    tokens = torch.randint(shape.vocab_size, (batch, shape.context_length + 1))
    return model.TransformerLM(model.Config(**values), attend), tokens[:, :-1], tokens[:, 1:]


def flops(run):
    with FlopCounterMode(display=False) as counter:
        run()
    return counter.get_total_flops()


def test_flops_of_the_forward_pass_are_those_counted(shape):
    network, inputs, _ = build(shape)
    assert flops(lambda: network(inputs)) == cost.forward_flops(shape)


def test_the_backward_pass_takes_twice_the_flops_of_the_forward_pass(shape):
    network, inputs, targets = build(shape)
    assert flops(lambda: model.loss(network(inputs), targets).backward()) == 3 * cost.forward_flops(shape)


@pytest.mark.parametrize("causal", [True, False])
def test_flops_of_attention_are_those_counted_masked_or_not(causal):
    q, k, v = torch.randn(3, 5, 40, 8)
    assert flops(lambda: attention.naive(q, k, v, causal)) == cost.attention_flops(5, 40, 8)


@pytest.mark.parametrize(("amsgrad", "moved"), [(False, 28), (True, 36)])
def test_adam_moves_seven_or_nine_numbers_an_element(amsgrad, moved):
    assert cost.adam_bytes(1, amsgrad) == moved
    assert cost.adam_bytes(1000, amsgrad) == 1000 * moved


@pytest.mark.parametrize("attend", ["naive", "tiled", "sdpa"])
@pytest.mark.parametrize("name", ["fp32", "bf16"])
def test_activations_are_what_autograd_saves(shape, name, attend):
    network, inputs, targets = build(shape, attend)
    kept = {x.untyped_storage().data_ptr() for x in (*network.parameters(), *network.buffers())}
    saved = {}

    def remember(x):
        storage = x.untyped_storage()
        if storage.data_ptr() not in kept:
            saved[storage.data_ptr()] = storage  # held, so that no other takes its place in memory
        return x

    autocast = precision.activate(name, "cpu")
    with autocast, torch.autograd.graph.saved_tensors_hooks(remember, lambda x: x):
        loss = model.loss(network(inputs), targets)
    assert loss.requires_grad
    # autocast's copies of the matrices are saved too, and are a term of their own in `step_bytes`
    copies = 2 * shape.matrix_parameters if name == "bf16" else 0
    measured = sum(storage.nbytes() for storage in saved.values()) - copies
    assert cost.activation_bytes(shape, name, attend) == pytest.approx(measured, rel=0.01)


def measured_peak(shape, name, attend, variant):
    """The most bytes alive in a second step, when the optimizer has its moments."""
    network, inputs, targets = build(shape, attend)
    optimizer = adam.AdamW(network.parameters(), variant)
    autocast = precision.activate(name, "cpu")
    last = {}

    def iteration(mark):
        with autocast:
            last["logits"] = network(inputs)  # kept to the end, as the experiment keeps them
            loss = model.loss(last["logits"], targets)
        mark("forward")
        loss.backward()
        mark("backward")
        optimizer.step()
        mark("optimizer")

    iteration(lambda phase: None)
    last.clear()
    optimizer.zero_grad(set_to_none=True)
    return memory.peaks(iteration, "cpu")["peak_mib"][0] * memory.MIB


@pytest.mark.parametrize("variant", ["single_tensor", "foreach", "fused"])
@pytest.mark.parametrize("attend", ["naive", "tiled", "sdpa"])
@pytest.mark.parametrize("name", ["fp32", "bf16"])
def test_the_peak_of_a_step_is_the_predicted_one(shape, name, attend, variant):
    measured = measured_peak(shape, name, attend, variant)
    assert cost.step_bytes(shape, name, attend, variant) == pytest.approx(measured, rel=0.03)


@pytest.mark.parametrize("variant", ["single_tensor", "foreach", "fused"])
def test_the_states_of_a_step_are_counted_exactly(shape, variant):
    network, _, _ = build(shape)
    optimizer = adam.AdamW(network.parameters(), variant)
    for parameter in network.parameters():
        parameter.grad = torch.zeros_like(parameter)
    optimizer.step()
    tensors = [tensor for state in optimizer.state.values() for tensor in state.values()]
    tensors += [tensor for parameter in network.parameters() for tensor in (parameter, parameter.grad)]
    assert sum(tensor.untyped_storage().nbytes() for tensor in tensors) == cost.state_bytes(shape)


@pytest.mark.parametrize("context_length", [128, 512])
@pytest.mark.parametrize("size", ["small", "medium"])
def test_the_peak_of_a_real_size_is_the_predicted_one(size, context_length):
    case = Step(size, context_length, 4, "fp32", False, "naive", "fused", "cpu")
    assert cost.step_bytes(case.shape, "fp32", "naive", "fused") == pytest.approx(case.traced().total, rel=0.03)


def test_autocast_widens_the_softmax_on_a_gpu_only(shape):
    cpu, cuda = (cost.activation_bytes(shape, "bf16", "naive", device) for device in ("cpu", "cuda"))
    assert cuda - cpu == shape.num_layers * 4 * shape.scores  # the weights in single precision beside their copy
    assert cost.activation_bytes(shape, "fp32", "naive", "cuda") == cost.activation_bytes(shape, "fp32", "naive")
