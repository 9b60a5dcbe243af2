"""The formula of attention, and checks that each class of FlashAttention passes; as a program, those of the kernels.

`interpreted` runs the kernels without a GPU, `compiled` compiles them for some. Each prints a JSON object: what went
wrong by the check's name. Triton reads TRITON_INTERPRET when it is imported, so each has a process of its own.
"""

import functools
import json
import math
import os
import sys
import traceback

import torch

from lib.flash import tiles

FLOATS = {"fp32": torch.float32, "fp16": torch.float16, "bf16": torch.bfloat16, "fp64": torch.float64}
TOLERANCE = {"fp32": 1e-5, "fp16": 1e-2, "bf16": 8e-2, "fp64": 1e-12}


def draw(queries, keys, d_head, dtype=torch.float32, leading=(1, 2)):
    """Queries, keys, values and the gradient of the output."""
    generator = torch.Generator().manual_seed(queries + keys + d_head)
    lengths = (queries, keys, keys, queries)
    drawn = [torch.randn(*leading, n, d_head, generator=generator, dtype=torch.float64, device="cpu") for n in lengths]
    drawn = [x.to(torch.get_default_device(), dtype) for x in drawn]
    return [x.requires_grad_() for x in drawn[:3]], drawn[3]


def expected(inputs, dout, causal=True):
    """Output, log-sum-exp and gradients by the formula in double precision.

    It is exp(s - log sum exp s) v with s = q . k / sqrt(D), where query t sees keys 0 to t."""
    q, k, v = doubles = [x.detach().double().requires_grad_() for x in inputs]
    scores = torch.einsum("...td,...sd->...ts", q, k) / math.sqrt(q.shape[-1])
    if causal:
        t, s = torch.arange(q.shape[-2])[:, None], torch.arange(k.shape[-2])
        scores = torch.where(s <= t, scores, -torch.inf)
    logsumexp = torch.logsumexp(scores, -1)
    out = torch.einsum("...ts,...sd->...td", torch.exp(scores - logsumexp[..., None]), v)
    return [x.detach() for x in (out, logsumexp, *torch.autograd.grad(out, doubles, dout.double()))]


def found(function, inputs, dout, causal):
    """Output, log-sum-exp and gradients of a class of `lib.flash`."""
    out = function.apply(*inputs, causal)
    saved = out.grad_fn.saved_tensors
    (logsumexp,) = (x for x in saved if x.shape == out.shape[:-1])  # exactly one
    assert {x.data_ptr() for x in saved} == {x.data_ptr() for x in (*inputs, out, logsumexp)}
    return [x.detach() for x in (out, logsumexp, *torch.autograd.grad(out, inputs, dout))]


def check(results, right, tolerance=1e-5):
    """Compare results with those of the formula."""
    for result, each in zip(results, right, strict=True):
        torch.testing.assert_close(result.double(), each, atol=tolerance * max(1, each.abs().max()), rtol=tolerance)


def compare(function, queries, keys, d_head, causal, floats):
    """Compare a class with the formula: output, log-sum-exp and all gradients."""
    inputs, dout = draw(queries, keys, d_head, FLOATS[floats])
    results = found(function, inputs, dout, causal)
    assert [x.dtype for x in results] == [
        inputs[0].dtype, torch.promote_types(inputs[0].dtype, torch.float32), *(x.dtype for x in inputs)
    ]  # fmt: skip
    check(results, expected(inputs, dout, causal), TOLERANCE[floats])


def twice(function):
    """Compare the bits of two runs."""
    inputs, dout = draw(50, 40, 16, torch.float16)
    first, second = (found(function, inputs, dout, True) for _ in range(2))
    assert all(torch.equal(a, b) for a, b in zip(first, second, strict=True))


def strides(function):
    """Take (B, H, T, D) views of (B, T, H, D), and gradients that are transposed or expanded."""
    (q, k, v), dout = draw(33, 33, 16)
    views = [x.detach().transpose(1, 2).contiguous().transpose(1, 2).requires_grad_() for x in (q, k, v)]
    for gradient in (dout.mT.contiguous().mT, dout[:, :1].expand_as(dout)):
        check(found(function, views, gradient, True), expected(views, gradient, True))


def dimensions(function):
    """Take any number of leading dimensions."""
    for leading in ((), (2,), (2, 1, 2)):
        inputs, dout = draw(5, 7, 8, leading=leading)
        check(found(function, inputs, dout, True), expected(inputs, dout, True))


def _unseen():
    """Tiles under the mask are skipped: what is not a number there reaches nothing."""
    (q, k, v), dout = draw(40, 100, 16)
    for x in (k, v):
        x.data[..., 64:, :] = math.nan
    out, logsumexp, dq, dk, dv = found(tiles.FlashAttentionTriton, (q, k, v), dout, True)
    assert all(x.isfinite().all() for x in (out, logsumexp, dq))
    assert not dk[..., 64:, :].any()
    assert not dv[..., 64:, :].any()
    inputs, dout = draw(64, 64, 16)
    dout[..., 0, :] = math.nan  # in the first tile of queries, which sees the first two of keys
    *_, dq, dk, dv = found(tiles.FlashAttentionTriton, inputs, dout, True)
    assert all(x[..., 32:, :].isfinite().all() for x in (dq, dk, dv))


def _far():
    """Offsets beyond 2^31 numbers are right; memory that is not touched costs nothing."""
    (q, _, v), _ = draw(16, 16, 16, torch.float16, leading=(3, 1))
    apart = torch.empty(2**31 + 256, dtype=torch.float16).as_strided(q.shape, (2**30, 256, 16, 1)).copy_(q.detach())
    near, far = (tiles.attend(x, x, v, True) for x in (q, apart))
    assert all(torch.equal(a, b) for a, b in zip(near, far, strict=True))


def _registered():
    """The operators have fakes that PyTorch's own checks accept."""
    inputs, dout = draw(5, 17, 8)
    with torch.no_grad():
        torch.library.opcheck(tiles.attend, (*inputs, True))
        out, logsumexp = tiles.attend(*inputs, False)
        torch.library.opcheck(tiles.differentiate, (*inputs, out, dout, logsumexp, False))


def _traced():
    """torch.compile sees one graph, and the operators that it holds give the same bits."""
    inputs, dout = draw(20, 20, 8)
    compiled = torch.compile(tiles.FlashAttentionTriton.apply, backend="aot_eager", fullgraph=True)
    out = compiled(*inputs, True)
    results = [out, *torch.autograd.grad(out, inputs, dout)]
    right, _, *gradients = found(tiles.FlashAttentionTriton, inputs, dout, True)
    assert all(torch.equal(a, b) for a, b in zip(results, [right, *gradients], strict=True))


# queries, keys, features of a head, causal, type
SHAPES = [
    (1, 1, 16, True, "fp32"), (64, 1, 16, False, "fp16"), (50, 128, 16, True, "fp32"), (128, 50, 64, True, "bf16"),
    (128, 128, 128, True, "fp16"), (16, 50, 40, False, "bf16"), (50, 70, 40, True, "fp64"), (70, 50, 40, False, "fp64"),
]  # fmt: skip
EQUAL = {"twice": twice, "strides": strides, "dimensions": dimensions}
INTERPRETED = {
    **{
        f"{t} queries, {s} keys, {d} features, {'causal' if causal else 'full'}, {floats}": functools.partial(
            compare, tiles.FlashAttentionTriton, t, s, d, causal, floats
        )
        for t, s, d, causal, floats in SHAPES
    },
    **{name: functools.partial(check, tiles.FlashAttentionTriton) for name, check in EQUAL.items()},
    "unseen": _unseen, "far": _far, "registered": _registered, "traced": _traced,
}  # fmt: skip


def _mend_interpreter():
    """Multiply bf16 by its value, not its bits, and take run-time bounds of loops, which NumPy 2.4 would refuse."""
    import numpy
    from triton.runtime import interpreter

    product, patch = interpreter.InterpreterBuilder.create_dot, interpreter._patch_lang_tensor

    def widened(operand):
        if str(operand.dtype.scalar) != "bf16":
            return operand
        value = (operand.data.astype(numpy.uint32) << 16).view(numpy.float32)
        return interpreter.TensorHandle(value, interpreter.tl.float32)

    def patched(tensor, *scope):
        patch(tensor, *scope)
        tensor.__index__ = lambda self: self.handle.data.item()

    interpreter.InterpreterBuilder.create_dot = lambda self, a, b, *rest: product(self, widened(a), widened(b), *rest)
    interpreter._patch_lang_tensor = patched


def interpreted():
    """Run all checks of the kernels on a CPU, with tiles so small that there are several."""
    from lib.flash import kernels

    _mend_interpreter()
    kernels.capability = lambda: (9, 0)
    tiles.tile_of = lambda kernel, numbers, d_head, capability: (
        tiles.Tile(16, 32, 4, 1) if d_head == 40 else tiles.Tile(32, 16, 4, 1) if d_head < 64 else
        tiles.Tile(64, 64, 4, 1)
    )  # fmt: skip
    torch.set_num_threads(1)
    return INTERPRETED


def compiled(*capabilities):
    """Compile every kernel for GPUs, such as 9.0, which need not be there; see whether their shared memory suffices."""
    return {
        f"{capability} {kernel} {numbers} {d_head}": functools.partial(
            _compile, kernel, numbers, d_head, tuple(map(int, capability.split(".")))
        )
        for capability in capabilities for kernel, numbers, d_head in tiles.TILES
        if (numbers, d_head) == ("narrow", 64) or os.environ.get("TORTURE")
    }  # fmt: skip


def _compile(kernel, numbers, d_head, capability):
    import triton
    from triton.backends.compiler import GPUTarget
    from triton.compiler import ASTSource

    from lib.flash import kernels

    function = getattr(kernels, kernel)
    tile = tiles.tile_of(kernel, numbers, d_head, capability)
    fixed = tiles.constants(numbers, d_head, tile, True)
    signature, constants, aligned = {}, {}, {}
    for place, name in enumerate(function.arg_names):
        if name in fixed:
            signature[name], constants[place,] = "constexpr", fixed[name]
        elif name.endswith("strides"):
            signature[name], constants[place, 3] = ("i32", "i32", "i32", "constexpr"), 1
            aligned |= {(place, dimension): [["tt.divisibility", 16]] for dimension in range(3)}
        else:
            numeric = "bf16" if numbers == "narrow" else "fp32"
            tensor = "*fp32" if name in ("LOGSUMEXP", "MEAN") else f"*{numeric}"
            signature[name] = tensor if name.isupper() else "i32"
            aligned[place,] = [["tt.divisibility", 16]]
    target = GPUTarget("cuda", 10 * capability[0] + capability[1], 32)
    options = {"num_warps": tile.warps, "num_stages": tile.stages}
    program = triton.compile(ASTSource(function, signature, constants, aligned), target=target, options=options)
    assert program.metadata.shared <= 1024 * tiles.SHARED_KIB.get(capability, tiles.LEAST_KIB)
    assert capability[0] != 9 or numbers != "narrow" or "wgmma" in program.asm["ptx"]


def main(how, *arguments):
    """Run the checks of one kind; print what went wrong."""
    errors = {}
    for name, check in {"interpreted": interpreted, "compiled": compiled}[how](*arguments).items():
        try:
            check()
            errors[name] = None
        except Exception:
            errors[name] = traceback.format_exc()
    print(json.dumps(errors))


if __name__ == "__main__":
    main(*sys.argv[1:])
