"""The kernels in Triton give the formula's numbers, compile for GPUs that are not here, and fit their shared memory."""

import importlib.util
import json
import os
import subprocess
import sys

import pytest
import torch
from torch._subclasses.fake_tensor import FakeTensorMode

from flash_checks import INTERPRETED
from lib.flash import tiles
from lib.instruments import device
from lib.paths import ROOT

needs_triton = pytest.mark.skipif(not importlib.util.find_spec("triton"), reason="triton is not installed")
needs_cuda = pytest.mark.skipif(device.on("cuda").missing() is not None, reason="no CUDA device")
CAPABILITIES = [*tiles.SHARED_KIB, (8, 6), (8, 9), (12, 0), (12, 1)]


def checked(*arguments, **variables):
    """Return what went wrong in a process with Triton, by the check's name."""
    script = ROOT / "tests" / "support" / "flash_checks.py"
    environ = os.environ | {"PYTHONPATH": os.pathsep.join([str(ROOT), *sys.path])} | variables
    done = subprocess.run([sys.executable, script, *arguments], env=environ, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


@needs_triton
def test_the_interpreted_kernels_pass():
    errors = checked("interpreted", TRITON_INTERPRET="1")
    assert errors == dict.fromkeys(INTERPRETED), errors


@needs_triton
def test_the_kernels_compile_for_a_gpu_and_fit_its_shared_memory():
    assert set(checked("compiled", "9.0").values()) == {None}


@needs_triton
@pytest.mark.skipif(not os.environ.get("TORTURE"), reason="takes minutes: make torture")
@pytest.mark.parametrize("capability", ["8.0", "8.6", "9.0", "10.0", "12.0"])
def test_all_kernels_compile_for_every_gpu(capability):
    errors = checked("compiled", capability)
    assert len(errors) == len(tiles.TILES)
    assert set(errors.values()) == {None}


@needs_cuda
@needs_triton
@pytest.mark.parametrize("name", INTERPRETED)
def test_the_kernels_pass_on_a_gpu(name):
    with torch.device("cuda"):
        INTERPRETED[name]()


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
    assert [tiles.padded(n) for n in (1, 16, 40, 64, 80, 128)] == [16, 16, 64, 64, 128, 128]
    assert tiles.tile_of("flash_forward", "narrow", 40, (9, 0)) == tiles.TILES["flash_forward", "narrow", 64][227]
    assert tiles.tile_of("flash_forward", "narrow", 80, (7, 5)) == tiles.TILES["flash_forward", "narrow", 128][99]
    for precision, numbers in (("highest", "ieee"), ("high", "tf32"), ("medium", "tf32")):
        torch.set_float32_matmul_precision(precision)
        kinds = [tiles.numbers_of(dtype) for dtype in (torch.float32, torch.bfloat16, torch.float64)]
        assert kinds == [numbers, "narrow", "ieee"]
