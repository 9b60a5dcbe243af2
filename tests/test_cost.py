"""The arithmetic of costs agrees with what PyTorch counts, saves and allocates."""

import dataclasses

import pytest
import torch
from torch.utils.flop_counter import FlopCounterMode

from lib import adam, attention, cost, memory, model, precision

# The model of the tests, once with little vocabulary, once with a great deal of it, as in the real sizes:
# the logits are then larger than anything else.
SHAPES = {
    "narrow": cost.Shape(
        d_model=64, d_ff=224, num_layers=2, num_heads=4, vocab_size=96, batch_size=2, context_length=96
    ),
    "wide": cost.Shape(
        d_model=64, d_ff=224, num_layers=2, num_heads=4, vocab_size=4000, batch_size=4, context_length=96
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


@pytest.mark.parametrize(
    ("name", "attend"),
    # naive in bf16 is left out: a CPU's autocast keeps the softmax in bf16, where the formula holds CUDA's fp32
    [("fp32", "naive"), ("fp32", "tiled"), ("fp32", "sdpa"), ("bf16", "tiled"), ("bf16", "sdpa")],
)
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
    assert cost.activation_bytes(shape, name, attend) == pytest.approx(measured, rel=0.1)


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
@pytest.mark.parametrize("attend", ["naive", "tiled"])
@pytest.mark.parametrize("name", ["fp32", "bf16"])
def test_a_step_takes_no_more_memory_than_predicted_and_not_much_less(shape, name, attend, variant):
    measured = measured_peak(shape, name, attend, variant)
    assert measured <= cost.step_bytes(shape, name, attend, variant) <= 1.6 * measured


@pytest.mark.parametrize("variant", ["single_tensor", "foreach"])
def test_the_temporaries_of_the_optimizer_are_part_of_the_prediction(variant):
    # few tokens: the optimizer's temporaries are the peak, beside logits that are still held
    shape = dataclasses.replace(SHAPES["wide"], batch_size=1, context_length=16)
    measured = measured_peak(shape, "fp32", "naive", variant)
    predicted = cost.step_bytes(shape, "fp32", "naive", variant)
    small = 4096  # token ids, step counts, the loss: not worth a term of the formula
    assert measured - small <= predicted <= 1.3 * measured
