"""The kernels in Triton give the formula's numbers: on a GPU, or in Triton's interpreter.

Triton reads TRITON_INTERPRET when it is imported, so `test_tiles` runs this file in a process of its own."""

import math
import os

import pytest
import torch

from flash_checks import FLOATS, LAYOUTS, SHAPES, compare, draw, overflow, poison, results_of
from lib.flash.tiles import FlashAttentionTriton, Tile, attend

triton = pytest.importorskip("triton")
kernels = pytest.importorskip("lib.flash.kernels")
INTERPRETED = os.environ.get("TRITON_INTERPRET") == "1"
if not INTERPRETED and not torch.cuda.is_available():
    pytest.skip("no CUDA device; test_tiles interprets these kernels", allow_module_level=True)


def widened(operand):
    """Give a bf16 operand its value, since the interpreter would multiply its bits."""
    import numpy
    from triton.runtime import interpreter

    if str(operand.dtype.scalar) != "bf16":
        return operand
    value = (operand.data.astype(numpy.uint32) << 16).view(numpy.float32)
    return interpreter.TensorHandle(value, interpreter.tl.float32)


def interpreted(name, grid, tensors, numbers, **options):
    return lambda *tensors: getattr(kernels, name)[grid](*tensors, *numbers)


def small_tile(kernel, numbers, d_head, capability):
    if d_head == 40:
        return Tile(16, 32, 4, 1)
    if d_head < 64:
        return Tile(32, 16, 4, 1)
    return Tile(64, 64, 4, 1)


@pytest.fixture(scope="module", autouse=True)
def _device():
    """Run the kernels on a GPU, or interpret them on one thread with small tiles."""
    if not INTERPRETED:
        with torch.device("cuda"):
            yield
        return
    from triton.runtime import interpreter

    product = interpreter.InterpreterBuilder.create_dot
    patch_tensor = interpreter._patch_lang_tensor

    def create_dot(self, left, right, *rest):
        return product(self, widened(left), widened(right), *rest)

    def patched(tensor, *scope):
        patch_tensor(tensor, *scope)
        # NumPy 2.4 would refuse a bound of a loop that is only known at run time
        tensor.__index__ = lambda self: self.handle.data.item()

    torch.set_num_threads(1)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(interpreter.InterpreterBuilder, "create_dot", create_dot)
        patch.setattr(interpreter, "_patch_lang_tensor", patched)
        patch.setattr(kernels, "capability", lambda: (9, 0))
        patch.setattr(kernels, "current_device", lambda: 0)
        patch.setattr(kernels, "launcher", interpreted)
        patch.setattr("lib.flash.tiles.tile_of", small_tile)
        yield


@pytest.mark.parametrize(("queries", "keys", "d_head", "causal", "floats"), SHAPES)
def test_they_are_the_formula(queries, keys, d_head, causal, floats):
    compare(FlashAttentionTriton, queries, keys, d_head, causal, floats)


@pytest.mark.parametrize("layout", LAYOUTS)
def test_they_take_any_strides_and_dimensions_and_repeat_their_bits(layout):
    layout(FlashAttentionTriton)


@pytest.mark.parametrize("floats", FLOATS)
def test_a_future_score_that_overflows_or_value_that_is_not_finite_reaches_no_earlier_row(floats):
    overflow(FlashAttentionTriton, floats)
    poison(FlashAttentionTriton, floats)


def test_tiles_under_the_mask_are_skipped_so_that_what_is_no_number_there_reaches_nothing():
    (q, k, v), dout = draw(40, 100, 16)
    for x in (k, v):
        x.data[..., 64:, :] = math.nan
    out, logsumexp, dq, dk, dv = results_of(FlashAttentionTriton, (q, k, v), dout, True)
    assert all(x.isfinite().all() for x in (out, logsumexp, dq))
    assert not dk[..., 64:, :].any()
    assert not dv[..., 64:, :].any()
    inputs, dout = draw(64, 64, 16)
    dout[..., 0, :] = math.nan  # in the first tile of queries, which sees the first two of keys
    *_, dq, dk, dv = results_of(FlashAttentionTriton, inputs, dout, True)
    assert all(x[..., 32:, :].isfinite().all() for x in (dq, dk, dv))


def test_offsets_beyond_2_to_31_numbers_are_right():
    (q, _, v), _ = draw(16, 16, 16, torch.float16, leading=(3, 1))
    # memory that is not touched costs nothing
    apart = torch.empty(2**31 + 256, dtype=torch.float16).as_strided(q.shape, (2**30, 256, 16, 1)).copy_(q.detach())
    near = attend(q, q, v, True)
    far = attend(apart, apart, v, True)
    assert torch.equal(near[0], far[0])
    assert torch.equal(near[1], far[1])


def test_torch_compile_sees_one_graph_that_gives_the_same_bits():
    inputs, dout = draw(20, 20, 8)
    compiled = torch.compile(FlashAttentionTriton.apply, backend="aot_eager", fullgraph=True)
    out = compiled(*inputs, True)
    results = [out, *torch.autograd.grad(out, inputs, dout)]
    right, _, *gradients = results_of(FlashAttentionTriton, inputs, dout, True)
    torch.testing.assert_close(results, [right, *gradients], rtol=0, atol=0)
