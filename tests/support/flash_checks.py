"""The formula of attention, and checks that each class of FlashAttention passes."""

import math

import torch

FLOATS = {"fp32": torch.float32, "fp16": torch.float16, "bf16": torch.bfloat16, "fp64": torch.float64}
TOLERANCE = {"fp32": 1e-5, "fp16": 1e-2, "bf16": 8e-2, "fp64": 1e-12}
# queries, keys, features of a head, causal, type
SHAPES = [
    (1, 1, 16, True, "fp32"), (64, 1, 16, False, "fp16"), (50, 128, 16, True, "fp32"), (128, 50, 64, True, "bf16"),
    (128, 128, 128, True, "fp16"), (16, 50, 40, False, "bf16"), (50, 70, 40, True, "fp64"), (70, 50, 40, False, "fp64"),
]  # fmt: skip


def draw(queries, keys, d_head, dtype=torch.float32, leading=(1, 2)):
    generator = torch.Generator().manual_seed(queries + keys + d_head)
    drawn = []
    for rows in (queries, keys, keys, queries):
        x = torch.randn(*leading, rows, d_head, generator=generator, dtype=torch.float64, device="cpu")
        drawn.append(x.to(torch.get_default_device(), dtype))
    *inputs, dout = drawn
    return [x.requires_grad_() for x in inputs], dout


def expected(inputs, dout, causal=True):
    """Compute output, log-sum-exp and gradients by the formula in double precision.

    It is exp(s - log sum exp s) v with s = q . k / sqrt(D), where query t sees keys 0 to t."""
    q, k, v = doubles = [x.detach().double().requires_grad_() for x in inputs]
    scores = torch.einsum("...td,...sd->...ts", q, k) / math.sqrt(q.shape[-1])
    if causal:
        t, s = torch.arange(q.shape[-2])[:, None], torch.arange(k.shape[-2])
        scores = torch.where(s <= t, scores, -torch.inf)
    logsumexp = torch.logsumexp(scores, -1)
    out = torch.einsum("...ts,...sd->...td", torch.exp(scores - logsumexp[..., None]), v)
    return [x.detach() for x in (out, logsumexp, *torch.autograd.grad(out, doubles, dout.double()))]


def results_of(function, inputs, dout, causal):
    """Return output, log-sum-exp and gradients of a class of `lib.flash`, which keeps nothing else than these."""
    out = function.apply(*inputs, causal)
    saved = out.grad_fn.saved_tensors
    (logsumexp,) = (x for x in saved if x.shape == out.shape[:-1])  # exactly one
    assert {x.data_ptr() for x in saved} == {x.data_ptr() for x in (*inputs, out, logsumexp)}
    return [x.detach() for x in (out, logsumexp, *torch.autograd.grad(out, inputs, dout))]


def check(results, right, tolerance=1e-5):
    for result, exact in zip(results, right, strict=True):
        torch.testing.assert_close(result.double(), exact, atol=tolerance * max(1, exact.abs().max()), rtol=tolerance)


def compare(function, queries, keys, d_head, causal, floats):
    inputs, dout = draw(queries, keys, d_head, FLOATS[floats])
    out, logsumexp, *gradients = results_of(function, inputs, dout, causal)
    assert {x.dtype for x in (out, *gradients)} == {FLOATS[floats]}
    assert logsumexp.dtype == torch.promote_types(FLOATS[floats], torch.float32)
    check([out, logsumexp, *gradients], expected(inputs, dout, causal), TOLERANCE[floats])


def overflow(function, floats):
    """A score of the last key is beyond the type for all queries but the last, whose future it is."""
    (q, k, v), dout = draw(40, 40, 16, FLOATS[floats])
    k.data[..., -1, :] = torch.finfo(k.dtype).max * q.detach()[..., :1, :].sign()[..., 0, :]
    for of_last in (q.data, dout):
        of_last[..., -1, :] = 0
    results = results_of(function, (q, k, v), dout, True)
    check(results, expected((q, k, v), dout), TOLERANCE[floats])


def poison(function, floats):
    """A key or value is not finite: rows before it are as without it, and from it on a value is seen."""
    for of_value in (False, True):
        for number in (math.inf, -math.inf, math.nan):
            (q, k, v), dout = draw(40, 40, 16, FLOATS[floats], leading=(1,))
            (v if of_value else k).data[..., 20, 3] = number
            out, _, dq, *_ = results_of(function, (q, k, v), dout, True)
            earlier = [x.detach()[..., :20, :].requires_grad_() for x in (q, k, v)]
            right, _, dright, *_ = expected(earlier, dout[..., :20, :])
            check([out[..., :20, :], dq[..., :20, :]], [right, dright], TOLERANCE[floats])
            if of_value:
                seen = torch.full_like(out[..., 20:, 3], number)
                torch.testing.assert_close(out[..., 20:, 3], seen, equal_nan=True)
                assert out[..., :3].isfinite().all()


def twice(function):
    inputs, dout = draw(50, 40, 16, torch.float16)
    first, second = results_of(function, inputs, dout, True), results_of(function, inputs, dout, True)
    torch.testing.assert_close(first, second, rtol=0, atol=0)


def strides(function):
    """Take (B, H, T, D) views of (B, T, H, D), and gradients that are transposed or expanded."""
    (q, k, v), dout = draw(33, 33, 16)
    views = [x.detach().transpose(1, 2).contiguous().transpose(1, 2).requires_grad_() for x in (q, k, v)]
    for gradient in (dout.mT.contiguous().mT, dout[:, :1].expand_as(dout)):
        check(results_of(function, views, gradient, True), expected(views, gradient, True))


def dimensions(function):
    for leading in ((), (2,), (2, 1, 2)):
        inputs, dout = draw(5, 7, 8, leading=leading)
        check(results_of(function, inputs, dout, True), expected(inputs, dout, True))


LAYOUTS = [twice, strides, dimensions]
