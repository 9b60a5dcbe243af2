"""The costs of several devices agree with worked examples, and with each other."""

import math

import pytest
import torch

from lib.cost.flops import shape_of
from lib.model import SIZES, TransformerLM
from lib.parallel import accounting
from lib.parallel.accounting import Messages, Network

GB, GIB = 1e9, 2**30


def test_an_all_reduce_of_1_gb_on_8_ranks_takes_14_turns_and_sends_seven_quarters():
    fast = Network(latency_s=2e-6, bandwidth=300 * GB)
    assert accounting.bus_bytes("all_reduce", GB, 8) == 1.75 * GB
    assert fast.overhead_s("all_reduce", 8) == pytest.approx(28e-6)
    assert fast.seconds("all_reduce", GB, 8) == pytest.approx(28e-6 + 1.75 / 300)


@pytest.mark.parametrize("operation", accounting.PASSES)
@pytest.mark.parametrize("world", [2, 6])
def test_a_network_follows_from_what_one_collective_shows(operation, world):
    of = Network(1e-5, 10 * GB)
    shown = of.overhead_s(operation, world), of.bandwidth / accounting.bus_bytes(operation, 1, world)
    again = accounting.network(operation, world, *shown)
    assert (again.latency_s, again.bandwidth) == (pytest.approx(1e-5), pytest.approx(10 * GB))


def test_the_best_bucket_has_the_least_overhead():
    s, w, o = 8e9, 250 * GB, 50e-6  # XL in fp32 between two H100
    best = accounting.optimal_bucket_bytes(s, w, o)
    left = {factor: factor * best / w + s / (factor * best) * o for factor in (0.5, 0.9, 1, 1.1, 2)}
    assert min(left, key=left.get) == 1
    assert left[1] == pytest.approx(2 * math.sqrt(s * o / w))


def test_a_pipeline_of_messages_ends_when_the_formula_says():
    of, messages = Network(1e-4, 1 * GB), Messages("all_reduce", 1e8, 7, "backward")
    each = messages.seconds(of, 2) / 7
    assert accounting.exposed_s([messages], of, 1, {"backward": 1}) == 0
    assert accounting.exposed_s([messages._replace(beside="")], of, 2, {}) == pytest.approx(7 * each)
    for phase in (0.0, 2 * each, 7 * each, 30 * each):
        end = 0.0
        for number in range(1, 8):
            end = max(end, number * phase / 7) + each
        assert accounting.exposed_s([messages], of, 2, {"backward": phase}) == pytest.approx(end - phase)


def counted(model: torch.nn.Module) -> dict[str, int]:
    """Count the parameters of a model, its matrices, vectors and embedding."""
    numels = {"matrices": 0, "vectors": 0, "embedding": model.token_embeddings.weight.numel()}
    for param in model.parameters():
        numels["matrices" if param.dim() > 1 else "vectors"] += param.numel()
    return numels


@pytest.fixture(scope="module")
def tiny():
    with torch.device("meta"):
        return TransformerLM(SIZES["tiny"])


def test_every_scheme_sends_the_gradients_and_some_half_as_much_again(tiny):
    shape, world, numels = shape_of(SIZES["tiny"], 4), 4, counted(tiny)
    half = 4 * shape.parameters * (world - 1) / world
    for scheme in ("naive", "flat", "overlap", "bucketed"):
        assert accounting.step_bytes(scheme, shape, world) == 2 * half
    assert accounting.step_bytes("sharded", shape, world) == 3 * half
    for precision, width in (("fp32", 4), ("bf16", 2)):
        # gathered twice and scattered, but for the embedding, whose backward pass needs no weights
        matrices = width * (3 * numels["matrices"] - numels["embedding"])
        expected = (matrices + 2 * 4 * numels["vectors"]) * (world - 1) / world
        assert accounting.step_bytes("fsdp", shape, world, precision) == pytest.approx(expected)


def test_the_calls_of_a_step_are_counted_by_tensor_and_bucket(tiny):
    shape = shape_of(SIZES["tiny"], 4)
    tensors = len(list(tiny.parameters()))
    matrices = sum(param.dim() > 1 for param in tiny.parameters())
    calls = {scheme: [m.calls for m in accounting.step_messages(scheme, shape)] for scheme in accounting.SCHEMES}
    assert calls["naive"] == calls["overlap"] == [tensors]
    assert calls["flat"] == calls["bucketed"] == [1]
    assert calls["sharded"] == [1, tensors]
    assert calls["fsdp"] == [matrices, matrices - 1, matrices, tensors - matrices]
    (bucketed,) = accounting.step_messages("bucketed", shape, bucket_bytes=1e6)
    assert bucketed.calls == math.ceil(4 * shape.parameters / 1e6)


def test_a_rank_holds_16_bytes_a_parameter_or_its_part_of_them(tiny):
    shape = shape_of(SIZES["tiny"], 4)
    held = {scheme: sum(accounting.state_bytes(scheme, shape, 64).values()) for scheme in accounting.SCHEMES}
    for scheme in ("naive", "flat", "overlap", "bucketed"):
        assert held[scheme] == 16 * shape.parameters
    assert held["sharded"] == (8 + 8 / 64) * shape.parameters
    numels = counted(tiny)
    assert held["fsdp"] == pytest.approx(16 * (numels["vectors"] + numels["matrices"] / 64))


def test_fsdp_gathers_a_layer_and_the_embedding_or_another_layer():
    layer = 4 * 128**2 + 3 * 128 * 512 + 2 * 128
    assert accounting.gathered_bytes(shape_of(SIZES["tiny"], 4)) == 4 * (layer + 10_000 * 128)
    large = 4 * 1280**2 + 3 * 1280 * 5120 + 2 * 1280
    assert accounting.gathered_bytes(shape_of(SIZES["large"], 4), "bf16") == 2 * 2 * large


def test_xxl_needs_320_tokens_a_device_with_overlap_and_395_without():
    of = {**accounting.TPU_V5P, "d_ff": accounting.XXL.d_ff}
    mesh = {"tensor_world": accounting.MESH[1], "axes": accounting.MESH_AXES}
    assert accounting.mixed_tokens(**of, **mesh) == pytest.approx(319.4, abs=0.1)
    assert accounting.mixed_tokens(**of, **mesh, overlap=False) == pytest.approx(395.3, abs=0.1)
    assert accounting.best_mesh_tokens(**of, axes=accounting.MESH_AXES) == pytest.approx(245.3, abs=0.1)
    assert accounting.tensor_ranks(**of) == pytest.approx(20.8, abs=0.1)
    assert accounting.mixed_tokens(**of, tensor_world=32) == math.inf


def test_xxl_takes_3276_gib_and_35_devices():
    xxl = accounting.XXL
    assert xxl.parameters == 219_848_638_464
    assert xxl.state_bytes / GIB == pytest.approx(3276)
    assert xxl.token_bytes == 17_547_264
    assert math.ceil(xxl.state_bytes / accounting.H100_BYTES) == 41
    assert xxl.least_world(0, accounting.TPU_BYTES) == 35
    world = xxl.least_world(320, accounting.TPU_BYTES)
    assert xxl.sharded_bytes(320, world) < accounting.TPU_BYTES <= xxl.sharded_bytes(320, world - 1)
    assert xxl.least_world(1e6, accounting.TPU_BYTES) is None


def test_the_scaling_books_example_needs_2550_tokens_a_chip_and_850_with_three_axes():
    of = accounting.TPU_V5P
    assert accounting.data_parallel_tokens(**of) == pytest.approx(2550, rel=0.01)
    assert accounting.data_parallel_tokens(**of, axes=3) == pytest.approx(850, rel=0.01)
    assert accounting.data_parallel_tokens(**of, precision="fp32") == pytest.approx(2 * 2555.6, rel=1e-3)
