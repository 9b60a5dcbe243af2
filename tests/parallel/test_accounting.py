"""The costs of several devices agree with worked examples, and with the tensors of a model."""

import math

import numpy as np
import pytest
import torch

from lib.cost.flops import shape_of
from lib.model import SIZES, TransformerLM
from lib.parallel import accounting

SHAPE = shape_of(SIZES["tiny"], 4)


@pytest.fixture(scope="module")
def numels():
    with torch.device("meta"):
        network = TransformerLM(SIZES["tiny"])
    counts = {"matrices": 0, "vectors": 0, "embedding": network.token_embeddings.weight.numel()}
    for param in network.parameters():
        counts["matrices" if param.dim() > 1 else "vectors"] += param.numel()
    return counts


def test_a_rank_holds_16_bytes_a_parameter_or_its_part_of_them(numels):
    held = {}
    for scheme in ("replicas", "sharded", "fsdp"):
        held[scheme] = sum(accounting.state_bytes(scheme, SHAPE, 64).values())
    assert held["replicas"] == 16 * SHAPE.parameters
    assert held["sharded"] == (8 + 8 / 64) * SHAPE.parameters
    assert held["fsdp"] == pytest.approx(16 * (numels["vectors"] + numels["matrices"] / 64))


def test_xxl_needs_320_tokens_a_device_with_overlap_and_395_without():
    of = {**accounting.TPU_V5P, "d_ff": accounting.XXL.d_ff}
    mesh = {"tensor_world": accounting.MESH[1], "axes": accounting.MESH_AXES}
    assert accounting.mixed_tokens(**of, **mesh) == pytest.approx(319.4, abs=0.1)
    assert accounting.mixed_tokens(**of, **mesh, overlap=False) == pytest.approx(395.3, abs=0.1)
    assert accounting.tensor_ranks(**of) == pytest.approx(20.8, abs=0.1)


@pytest.mark.parametrize(("overlap", "world", "fsdp"), [(False, 3430, 212), (True, 13_260, 411)])
def test_no_other_mesh_of_more_devices_is_bound_by_products(overlap, world, fsdp):
    of = {**accounting.TPU_V5P, "d_ff": accounting.XXL.d_ff, "tokens": 2**20}
    ranks = accounting.most_mixed_ranks(**of, overlap=overlap)
    assert (math.prod(ranks), ranks[0]) == pytest.approx((world, fsdp), rel=2e-3)
    # by brute force over meshes, from the times themselves
    intensity = of["flops"] / of["bandwidth"]
    x, y = np.meshgrid(np.linspace(1, 800, 1600), np.linspace(1, 60, 1200))
    weights = (x - 1) * intensity / of["tokens"]
    activations = (y - 1) * 2 * intensity / (3 * of["d_ff"])
    is_bound = np.maximum(weights, activations) <= 1 if overlap else weights + activations <= 1
    assert (x * y)[is_bound].max() == pytest.approx(math.prod(ranks), rel=5e-3)


def test_xxl_takes_3276_gib_and_35_devices():
    xxl = accounting.XXL
    assert xxl.parameters == 219_848_638_464
    assert xxl.state_bytes / 2**30 == pytest.approx(3276)
    assert xxl.token_bytes == 17_547_264
    assert xxl.least_world(0, accounting.TPU_BYTES) == 35
    world = xxl.least_world(320, accounting.TPU_BYTES)
    held = [(xxl.state_bytes + 160 * xxl.token_bytes) / n + 160 * xxl.token_bytes for n in (world, world - 1)]
    assert held[0] <= accounting.TPU_BYTES < held[1]
    assert xxl.least_world(0, xxl.state_bytes / 4) == 4  # an exact fit
    # half of the activations alone fill a device
    assert xxl.least_world(2 * accounting.TPU_BYTES / xxl.token_bytes, accounting.TPU_BYTES) == math.inf


def test_the_scaling_books_example_needs_2550_tokens_a_chip_and_850_with_three_axes():
    assert accounting.data_parallel_tokens(**accounting.TPU_V5P) == pytest.approx(2550, rel=0.01)
    assert accounting.data_parallel_tokens(**accounting.TPU_V5P, axes=3) == pytest.approx(850, rel=0.01)
