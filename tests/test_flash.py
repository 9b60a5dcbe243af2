"""FlashAttention gives the formula's numbers, keeps one sum a query, and its kernels compile for GPUs not here."""

import importlib.util
import json
import os
import subprocess
import sys

import pytest
import torch
from torch._subclasses.fake_tensor import FakeTensorMode

import flash_checks
from flash_checks import INTERPRETED, SHAPES, compare, draw
from lib import flash
from lib.instruments import device, environment
from lib.instruments.memory_timeline import follow
from lib.paths import ROOT

needs_triton = pytest.mark.skipif(not importlib.util.find_spec("triton"), reason="triton is not installed")
needs_compiler = pytest.mark.skipif(environment.compiler_missing("cpu") is not None, reason="no C++ compiler")
needs_cuda = pytest.mark.skipif(device.on("cuda").missing() is not None, reason="no CUDA device")
CAPABILITIES = [(8, 0), (8, 6), (8, 7), (8, 9), (9, 0), (10, 0), (10, 3), (11, 0), (12, 0), (12, 1)]


def checked(*arguments, **variables):
    """Return what went wrong in a process with Triton, by the check's name."""
    script = ROOT / "tests" / "support" / "flash_checks.py"
    environ = os.environ | {"PYTHONPATH": os.pathsep.join([str(ROOT), *sys.path])} | variables
    done = subprocess.run([sys.executable, script, *arguments], env=environ, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


@pytest.fixture(scope="module")
def interpreted():
    return checked("interpreted", TRITON_INTERPRET="1")


@needs_triton
@pytest.mark.parametrize("name", INTERPRETED)
def test_the_interpreted_kernels_pass(interpreted, name):
    assert interpreted[name] is None, interpreted[name]


@needs_triton
def test_the_kernels_compile_for_a_gpu_and_fit_its_shared_memory():
    assert set(checked("compiled", "9.0").values()) == {None}


@needs_triton
@pytest.mark.torture
@pytest.mark.parametrize("capability", ["8.0", "8.6", "9.0", "10.0", "12.0"])
def test_all_kernels_compile_for_every_gpu(capability):
    errors = checked("compiled", capability)
    assert len(errors) == len(flash.TILES)
    assert set(errors.values()) == {None}


@pytest.mark.parametrize(("queries", "keys", "d_head", "causal", "floats"), SHAPES)
def test_the_one_in_pytorch_is_the_formula(queries, keys, d_head, causal, floats):
    class Blocks(flash.FlashAttentionTorch):
        apply = staticmethod(lambda *inputs: flash.FlashAttentionTorch.apply(*inputs, 16))

    compare(Blocks, queries, keys, d_head, causal, floats)
    compare(flash.FlashAttentionTorch, queries, keys, d_head, causal, floats)


@pytest.mark.parametrize("name", flash_checks.EQUAL)
def test_the_one_in_pytorch_takes_any_strides_and_dimensions_and_repeats_its_bits(name):
    flash_checks.EQUAL[name](flash.FlashAttentionTorch)


@needs_compiler
@pytest.mark.usefixtures("forget_graphs")
def test_the_compiled_one_is_the_formula_with_the_same_graphs_for_other_lengths():
    from torch._dynamo.utils import counters

    compare(flash.FlashAttentionCompiled, 300, 300, 16, True, "fp32")
    graphs = counters["stats"]["unique_graphs"]
    compare(flash.FlashAttentionCompiled, 428, 428, 16, True, "fp32")
    assert counters["stats"]["unique_graphs"] == graphs


@needs_cuda
@needs_triton
@pytest.mark.parametrize("name", [*INTERPRETED])
def test_the_kernels_pass_on_a_gpu(name):
    with torch.device("cuda"):
        INTERPRETED[name]()


@pytest.mark.parametrize("causal", [True, False])
def test_no_tensor_of_all_scores_is_ever_allocated(causal):
    length, block = 512, 64
    inputs, dout = draw(length, length, 8, leading=())

    def iteration(mark):
        out = flash.FlashAttentionTorch.apply(*inputs, causal, block)
        mark("forward")
        torch.autograd.grad(out, inputs, dout)
        mark("backward")

    sizes = [allocation.bytes for allocation in follow(iteration).allocations]
    assert max(sizes) == 4 * length * block


def test_the_operators_have_shapes_without_contents_and_without_triton():
    with FakeTensorMode():
        for leading in ((), (2,), (2, 3), (2, 1, 3)):
            q, k, v = (torch.empty(*leading, n, 8, dtype=torch.bfloat16, requires_grad=True) for n in (5, 7, 7))
            out = flash.FlashAttentionTriton.apply(q, k, v, True)
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
    limit = 1024 * flash.SHARED_KIB.get(capability, flash.LEAST_KIB)
    for kernel, numbers, d_head in flash.TILES:
        tile = flash.tile_of(kernel, numbers, d_head, capability)
        assert shared_bytes(kernel, numbers, d_head, tile) <= limit, (kernel, numbers, d_head)


def test_a_tile_is_chosen_by_type_precision_head_size_and_gpu(former_precision):
    assert flash.padded(80) == flash.padded(128) == 128
    assert [flash.padded(n) for n in (1, 16, 40, 64)] == [16, 16, 64, 64]
    assert flash.tile_of("flash_forward", "narrow", 40, (9, 0)) == flash.tile_of("flash_forward", "narrow", 64, (9, 0))
    assert flash.tile_of("flash_forward", "narrow", 80, (7, 5)).keys == 64
    for precision, numbers in (("highest", "ieee"), ("high", "tf32"), ("medium", "tf32")):
        torch.set_float32_matmul_precision(precision)
        assert flash.numbers_of(torch.float32) == numbers
        assert flash.numbers_of(torch.bfloat16) == "narrow"
        assert flash.numbers_of(torch.float64) == "ieee"


def test_what_keeps_the_kernels_from_running_is_said(monkeypatch):
    monkeypatch.setattr(flash.importlib.util, "find_spec", lambda name: object())
    assert flash.missing(128, (8, 0)) is None
    assert "CUDA" in flash.missing(64, None)
    assert "8.0 or more, got 7.5" in flash.missing(64, (7, 5))
    assert "at most 128 features, got 256" in flash.missing(256, (9, 0))
    monkeypatch.setattr(flash.importlib.util, "find_spec", lambda name: None)
    assert "not installed" in flash.missing(64, (9, 0))
