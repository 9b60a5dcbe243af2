"""Multiply fp32 matrices on a CPU by the faster of two libraries, by shape.

It measures which. PyTorch computes fp32 products by MKL. It also ships oneDNN, which is faster at some shapes on some
processors. A linear map has three products: the output, the gradient of the input, and the gradient of the weight.
Shapes in names: N rows, C inputs, F outputs.
"""

import functools
import operator
import statistics
import time
from typing import NamedTuple

import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable

LEAST_ROUNDS = 5
SECONDS = 0.2  # for each product, of both libraries together
OVERHEAD_S = 5e-5  # of `ChosenLinear` in a forward and backward pass beyond its products, at most


@torch.library.custom_op("fast::onednn", mutates_args=(), device_types="cpu")
def onednn(x_NC: Tensor, weight_FC: Tensor, bias_F: Tensor | None = None) -> Tensor:
    """Compute x W^T + b by oneDNN, also of views; autograd does not follow it."""
    # the last three arguments would add a function of each element
    return torch.ops.mkldnn._linear_pointwise(x_NC, weight_FC, bias_F, "none", [], "")


@onednn.register_fake
def _like_onednn(x_NC, weight_FC, bias_F=None):
    return x_NC.new_empty(x_NC.shape[0], weight_FC.shape[0])


def available() -> bool:
    """Return True if this PyTorch has both libraries."""
    return torch.backends.mkl.is_available() and torch.backends.mkldnn.is_available()


class Choice(NamedTuple):
    """Hold True for each product of a linear map that oneDNN should compute."""

    output: bool
    input_gradient: bool
    weight_gradient: bool


def _product(left_NC: Tensor, right_FC: Tensor, bias_F: Tensor | None, by_onednn: bool) -> Tensor:
    # a gradient passes other matrices: the letters name this product's own sizes
    if by_onednn:
        return onednn(left_NC, right_FC, bias_F)
    return nn.functional.linear(left_NC, right_FC, bias_F)


class ChosenLinear(torch.autograd.Function):
    """Compute x W^T + b and its gradients, each by the library of a `Choice`."""

    @staticmethod
    def forward(ctx, x_NC, weight_FC, bias_F, choice):
        ctx.save_for_backward(x_NC, weight_FC)
        ctx.choice = choice
        return _product(x_NC, weight_FC, bias_F, choice.output)

    @staticmethod
    @once_differentiable  # oneDNN's operator has no derivative
    def backward(ctx, dout_NF):
        x_NC, weight_FC = ctx.saved_tensors
        dx_NC = dweight_FC = dbias_F = None
        if ctx.needs_input_grad[0]:
            dx_NC = _product(dout_NF, weight_FC.t(), None, ctx.choice.input_gradient)
        if ctx.needs_input_grad[1]:
            dweight_FC = _product(dout_NF.t(), x_NC.t(), None, ctx.choice.weight_gradient)
        if ctx.needs_input_grad[2]:
            dbias_F = dout_NF.sum(0)
        return dx_NC, dweight_FC, dbias_F, None


def linear(x: Tensor, weight_FC: Tensor, bias_F: Tensor | None = None) -> Tensor:
    """Compute x W^T + b over the last of at least two dimensions, by the faster library for its shape.

    The first call of a shape measures both, for about a second. Anything but fp32 on a CPU without autocast, and a
    shape where oneDNN does not pay, takes PyTorch's own `linear`."""
    strict = x.dtype == weight_FC.dtype == torch.float32 and not torch.is_autocast_enabled("cpu")
    if strict and x.device.type == "cpu" and x.numel() > 0:
        # a compiler may have left sizes open; an index is a number, so it compiles for these sizes
        rows = operator.index(x.numel() // x.shape[-1])
        inputs = operator.index(weight_FC.shape[1])
        outputs = operator.index(weight_FC.shape[0])
        choice = choose(rows, inputs, outputs)
        if any(choice):
            out_NF = ChosenLinear.apply(x.flatten(0, -2), weight_FC, bias_F, choice)
            return out_NF.unflatten(0, x.shape[:-1])
    return nn.functional.linear(x, weight_FC, bias_F)


class Linear(nn.Linear):
    """Compute an `nn.Linear` by the faster library, of inputs with at least two dimensions."""

    def forward(self, x: Tensor) -> Tensor:
        return linear(x, self.weight, self.bias)


# torch.compile calls it and takes the result for a constant, instead of compiling the measurement
@torch.compiler.assume_constant_result
def choose(rows: int, inputs: int, outputs: int) -> Choice:
    """Return which products of a linear map are faster by oneDNN, with these threads."""
    return _choose(rows, inputs, outputs, torch.get_num_threads())


@functools.cache
def _choose(rows: int, inputs: int, outputs: int, threads: int) -> Choice:
    """Choose by measuring; the threads are there for the cache."""
    if not available():
        return Choice(False, False, False)
    # ones, so that no random numbers are drawn
    x_NC = torch.ones(rows, inputs)
    weight_FC = torch.ones(outputs, inputs)
    dout_NF = torch.ones(rows, outputs)
    with torch.no_grad():
        # in the order of a Choice
        gains_s = [gain_s(x_NC, weight_FC), gain_s(dout_NF, weight_FC.t()), gain_s(dout_NF.t(), x_NC.t())]
    if sum(gains_s) <= OVERHEAD_S:
        return Choice(False, False, False)
    return Choice(*(gain > 0 for gain in gains_s))


def gain_s(left: Tensor, right: Tensor) -> float:
    """Return the median seconds that oneDNN saves, or 0 if it wins too seldom.

    It must win at least three quarters of the rounds."""
    # the first call of each prepares its library
    nn.functional.linear(left, right)
    onednn(left, right)
    saved_s = []
    end = time.perf_counter() + SECONDS
    while len(saved_s) < LEAST_ROUNDS or time.perf_counter() < end:
        start = time.perf_counter()
        nn.functional.linear(left, right)
        between = time.perf_counter()
        onednn(left, right)
        mkl_s = between - start
        onednn_s = time.perf_counter() - between
        saved_s.append(mkl_s - onednn_s)
    lower_quartile, median, _ = statistics.quantiles(saved_s, n=4)
    if lower_quartile <= 0:
        return 0.0
    return median
