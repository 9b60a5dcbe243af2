"""The kernels pass in Triton's interpreter, and tiles fit the shared memory of their GPU."""

import importlib.util
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from torch._subclasses.fake_tensor import FakeTensorMode

from lib.flash import tiles
from lib.paths import ROOT

needs_triton = pytest.mark.skipif(not importlib.util.find_spec("triton"), reason="triton is not installed")
CAPABILITIES = [*tiles.SHARED_KIB, (8, 6), (8, 9), (12, 0), (12, 1)]


@needs_triton
def test_the_interpreted_kernels_pass():
    command = [sys.executable, "-m", "pytest", Path(__file__).with_name("test_kernels.py")]
    done = subprocess.run(command, cwd=ROOT, env=os.environ | {"TRITON_INTERPRET": "1"}, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout
    assert "skipped" not in done.stdout


def test_the_operators_have_shapes_without_contents_and_without_triton():
    with FakeTensorMode():
        for leading in ((), (2,), (2, 3), (2, 1, 3)):
            q, k, v = (torch.empty(*leading, n, 8, dtype=torch.bfloat16, requires_grad=True) for n in (5, 7, 7))
            out = tiles.FlashAttentionTriton.apply(q, k, v, True)
            (logsumexp,) = (x for x in out.grad_fn.saved_tensors if x.shape == q.shape[:-1])
            out.sum().backward()
            assert (out.shape, out.dtype, logsumexp.dtype) == (q.shape, q.dtype, torch.float32)
            assert [x.grad.shape for x in (q, k, v)] == [q.shape, k.shape, v.shape]


def shared_bytes(kernel, numbers, d_head, tile):
    """Rows that stay (Q, dO; K, V), rows under way (K, V; Q, dO), and the two sums of each query under way."""
    row = d_head * (2 if numbers == "narrow" else 4)
    if kernel == "flash_backward_kv":
        return 2 * row * (tile.keys + tile.stages * tile.queries) + 2 * 4 * tile.stages * tile.queries
    return row * ((1 if kernel == "flash_forward" else 2) * tile.queries + 2 * tile.stages * tile.keys)


@pytest.mark.parametrize("capability", CAPABILITIES)
def test_every_tile_fits_the_shared_memory(capability):
    limit = 1024 * tiles.SHARED_KIB.get(capability, tiles.LEAST_KIB)
    for kernel, numbers, d_head in tiles.TILES:
        tile = tiles.tile_of(kernel, numbers, d_head, capability)
        assert shared_bytes(kernel, numbers, d_head, tile) <= limit, (kernel, numbers, d_head)


def test_a_tile_is_chosen_by_type_precision_head_size_and_gpu(former_precision):
    assert list(map(tiles.padded, (1, 16, 40, 64, 80, 128))) == [16, 16, 64, 64, 128, 128]
    assert tiles.tile_of("flash_forward", "narrow", 40, (9, 0)) == tiles.TILES["flash_forward", "narrow", 64][227]
    assert tiles.tile_of("flash_forward", "narrow", 80, (7, 5)) == tiles.TILES["flash_forward", "narrow", 128][99]
    for precision, numbers in (("highest", "ieee"), ("high", "tf32"), ("medium", "tf32")):
        torch.set_float32_matmul_precision(precision)
        kinds = map(tiles.number_kind_of, (torch.float32, torch.bfloat16, torch.float64))
        assert list(kinds) == [numbers, "narrow", "ieee"]
