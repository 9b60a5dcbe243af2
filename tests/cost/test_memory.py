"""The formula of the memory agrees with what PyTorch saves and allocates, in every mode and group of layers."""

import pytest
import torch

from lib import model, precision
from lib.config import MODES
from lib.cost import flops, memory
from lib.instruments import peak_memory
from plain import one
from shapes import SHAPES, build

pytestmark = pytest.mark.usefixtures("one_thread", "former_precision", "little_garbage")


@pytest.fixture(params=SHAPES)
def shape(request):
    return SHAPES[request.param]


@pytest.mark.parametrize("attend", ["naive", "tiled", "sdpa"])
@pytest.mark.parametrize("name", ["fp32", "bf16"])
def test_activations_are_what_autograd_saves(shape, name, attend):
    network, inputs, targets = build(shape, attend)
    own_storages = {x.untyped_storage().data_ptr() for x in (*network.parameters(), *network.buffers())}
    saved = {}

    def remember(x):
        storage = x.untyped_storage()
        if storage.data_ptr() not in own_storages:
            saved[storage.data_ptr()] = storage  # held, so that no other takes its place in memory
        return x

    autocast = precision.activate(name, "cpu")
    with autocast, torch.autograd.graph.saved_tensors_hooks(remember, lambda x: x):
        loss = model.loss(network(inputs), targets)
    assert loss.requires_grad
    # autocast's copies of the matrices are saved too, and are a term of their own in the peak
    copies = 2 * shape.matrix_parameters if name == "bf16" else 0
    measured = sum(storage.nbytes() for storage in saved.values()) - copies
    assert memory.activation_bytes(shape, name, attend) == pytest.approx(measured, rel=0.02)


def peak_of(case):
    """The most bytes alive in a second step, when the optimizer has its moments."""
    work = case.setup()
    work.iteration(lambda phase: None)
    work.before()
    return peak_memory.peaks(work.iteration, "cpu")["peak_mib"][0] * peak_memory.MIB


@pytest.mark.parametrize(("attend", "variant"), [("naive", "single_tensor"), ("tiled", "foreach"), ("sdpa", "fused")])
@pytest.mark.parametrize("name", ["fp32", "bf16"])
def test_the_peak_of_a_step_is_the_predicted_one(monkeypatch, shape, name, attend, variant):
    monkeypatch.setitem(model.SIZES, "test", shape)
    size = {"context_length": shape.context_length, "batch_size": shape.batch_size}
    case = one("memory", size="test", precision=name, attention=attend, optimizer=variant, **size)
    assert case.formula_bytes() == pytest.approx(peak_of(case), rel=0.03)


def test_autocast_widens_the_softmax_on_a_gpu_only():
    shape = SHAPES["narrow"]
    cpu, cuda = (memory.activation_bytes(shape, "bf16", "naive", device) for device in ("cpu", "cuda"))
    assert cuda - cpu == shape.num_layers * 4 * shape.num_scores  # the weights in single precision beside their copy
    assert memory.activation_bytes(shape, "fp32", "naive", "cuda") == memory.activation_bytes(shape, "fp32", "naive")


def test_a_step_holds_at_least_what_its_forward_pass_does():
    # the forward pass alone has autocast's copies of all layers' matrices
    shape = flops.Shape(d_model=768, d_ff=3072, num_layers=12, num_heads=12, context_length=1024)
    forward, backward = (
        memory.peak_bytes(shape, "bf16", "sdpa", "fused", mode, "cuda", checkpoint=1)
        for mode in ("forward", "forward_backward")
    )
    assert forward <= backward


@pytest.mark.parametrize(
    ("mode", "checkpoint"), [*((mode, 0) for mode in MODES), ("train_step", 1), ("train_step", 2), ("train_step", 5)]
)
@pytest.mark.parametrize("name", ["fp32", "bf16"])
def test_the_peak_of_every_mode_and_group_is_the_predicted_one(monkeypatch, name, mode, checkpoint):
    # few words and many layers, so that layers are the peak, and not the loss
    monkeypatch.setitem(model.SIZES, "test", model.Config(48, d_model=32, d_ff=96, num_layers=5, num_heads=2))
    axes = {"precision": name, "mode": mode, "checkpoint": checkpoint}
    case = one("memory", size="test", context_length=64, optimizer="fused", **axes)
    measured = peak_of(case)
    assert 0.99 * measured < case.formula_bytes() < 1.08 * measured  # too high where attention is the peak in bf16


@pytest.mark.parametrize("checkpoint", [0, 1])
def test_one_sequence_more_than_the_largest_batch_does_not_fit(checkpoint):
    limit_bytes = 8 * 2**30
    most = memory.largest_batch(model.SIZES["small"], limit_bytes, "fp32", checkpoint)
    peaks = []
    for batch_size in (most, most + 1):
        shape = flops.shape_of(model.SIZES["small"], batch_size)
        peaks.append(
            memory.peak_bytes(shape, "fp32", "naive", "single_tensor", "train_step", "cuda", checkpoint=checkpoint)
        )
    assert peaks[0] <= limit_bytes < peaks[1]
    assert memory.largest_batch(model.SIZES["small"], 2**20, "fp32", checkpoint) == 0
