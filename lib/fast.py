"""Make a plain model faster: swap its submodules, keep its weights, their names and its results.

>>> accelerate(network, ["projections", "cast_once"], torch.bfloat16)  # doctest: +SKIP
>>> optimizer = AdamW(network.parameters())  # doctest: +SKIP

Shapes in names are those of `lib.model`.
"""

import functools
import weakref
from collections.abc import Iterable

import torch
from torch import Tensor, nn

from lib import adam, model, validate
from lib.adam import Hyper

SWITCHES = ("projections", "cast_once")
DEFAULTS = Hyper()


def accelerate(network: model.TransformerLM, switches: Iterable[str], dtype: torch.dtype = torch.bfloat16) -> None:
    """Swap submodules of a plain model for faster ones, in place.

    `projections` multiplies by the weights of queries, keys and values at once, and by w1 and w3 at once. `cast_once`
    keeps a copy of each matrix in `dtype`, the type of autocast around the model. Gradients then have that type too,
    and `AdamW` writes the copy in the pass that updates the weight.
    All parameters stay the same fp32 tensors under the same names. Call it once the model is on its device. Raises
    ValueError for an unknown switch, or a `dtype` that is not narrower."""
    switches = set(switches)
    for switch in switches:
        validate.choice("switches", switch, SWITCHES)
    narrow = dtype if "cast_once" in switches else None
    if narrow is not None and narrow.itemsize >= torch.float32.itemsize:
        raise ValueError(f"dtype: got {dtype}, expected a narrower type than torch.float32")
    if "projections" in switches:
        for layer in network.layers:
            layer.attn, layer.ffn = Attention(layer.attn, narrow), SwiGLU(layer.ffn, narrow)
    if narrow is not None:
        for parent in list(network.modules()):
            for name, child in parent.named_children():
                if type(child) is nn.Linear:
                    setattr(parent, name, NarrowLinear(child, narrow))
        network.register_load_state_dict_post_hook(lambda module, _: _copy_anew(module))


class Factor(nn.Module):
    """Multiply by the weights of linear maps of one input at once, and return the output of each.

    The weights become rows of one matrix. Autograd differentiates by that matrix, or by its copy in the type `narrow`,
    and each weight gets its rows of the gradient."""

    def __init__(self, weights: list[nn.Parameter], narrow: torch.dtype | None):
        super().__init__()
        self.weights, self.rows = weights, [len(weight) for weight in weights]
        matrix = torch.cat([weight.detach() for weight in weights])
        for weight, rows in zip(weights, matrix.split(self.rows), strict=True):
            weight.data = rows
        if narrow is not None:
            matrix = matrix.to(narrow)
            for weight, rows in zip(weights, matrix.split(self.rows), strict=True):
                weight.rounded, weight.grad_dtype = rows, narrow
        self.register_buffer("matrix", matrix.requires_grad_(), persistent=False)
        # a hook that held the module would keep it alive, and with it the weights
        hand_over = functools.partial(Factor._hand_over, weakref.proxy(self))
        self.matrix.register_post_accumulate_grad_hook(hand_over)

    def _hand_over(self, matrix: Tensor) -> None:
        for weight, rows in zip(self.weights, matrix.grad.split(self.rows), strict=True):
            weight.grad = rows if weight.grad is None else weight.grad + rows
        matrix.grad = None

    def forward(self, x_BTC: Tensor) -> tuple[Tensor, ...]:
        return nn.functional.linear(x_BTC, self.matrix).split(self.rows, dim=-1)


class Weight(nn.Module):
    """Hold the weight of a linear map that a `Factor` computes, under its name in the plain model."""

    def __init__(self, linear: nn.Linear):
        super().__init__()
        self.weight = linear.weight


class NarrowLinear(Weight):
    """Compute a linear map by a copy of its weight in the type `narrow`."""

    def __init__(self, linear: nn.Linear, narrow: torch.dtype):
        if linear.bias is not None:
            raise ValueError("bias: got a linear map with one, expected none")
        super().__init__(linear)
        self.factor = Factor([self.weight], narrow)

    def forward(self, x_BTC: Tensor) -> Tensor:
        return self.factor(x_BTC)[0]


class Attention(nn.Module):
    """Compute `model.SelfAttention` with one product for queries, keys and values."""

    def __init__(self, plain: model.SelfAttention, narrow: torch.dtype | None):
        super().__init__()
        self.num_heads, self.rope, self.attend = plain.num_heads, plain.rope, plain.attend
        self.q_proj, self.k_proj, self.v_proj = map(Weight, (plain.q_proj, plain.k_proj, plain.v_proj))
        self.output_proj = plain.output_proj
        self.inputs = Factor([plain.q_proj.weight, plain.k_proj.weight, plain.v_proj.weight], narrow)

    def forward(self, x_BTC: Tensor) -> Tensor:
        q_BHTD, k_BHTD, v_BHTD = (
            each.unflatten(-1, (self.num_heads, -1)).transpose(1, 2) for each in self.inputs(x_BTC)
        )
        out_BHTD = self.attend(self.rope(q_BHTD), self.rope(k_BHTD), v_BHTD, causal=True)
        return self.output_proj(out_BHTD.transpose(1, 2).flatten(-2))


class SwiGLU(nn.Module):
    """Compute `model.SwiGLU` with one product for w1 and w3."""

    def __init__(self, plain: model.SwiGLU, narrow: torch.dtype | None):
        super().__init__()
        self.w1, self.w2, self.w3 = Weight(plain.w1), plain.w2, Weight(plain.w3)
        self.inputs = Factor([plain.w1.weight, plain.w3.weight], narrow)

    def forward(self, x_BTC: Tensor) -> Tensor:
        gate_BTF, up_BTF = self.inputs(x_BTC)
        return self.w2(nn.functional.silu(gate_BTF) * up_BTF)


@torch.no_grad()
def _copy_anew(network: nn.Module) -> None:
    """Write the weights' copies again, after new weights were loaded."""
    for weight in _with_copies(network.parameters()):
        weight.rounded.copy_(weight)


def _with_copies(params: Iterable[Tensor]) -> list[Tensor]:
    return [param for param in params if hasattr(param, "rounded")]


class AdamW(adam.AdamW):
    """Optimize a model that `accelerate` may have changed, in one pass over memory.

    Reads gradients in their own type and writes the copies of weights. Parameters without a copy take the variant
    `fused`. Raises ValueError for amsgrad."""

    def __init__(self, params, hyper: Hyper = DEFAULTS):
        if hyper.amsgrad:
            raise ValueError("amsgrad: got True, expected False")
        super().__init__(params, "fused", hyper)

    @torch.no_grad()
    def _update(self, params: list[Tensor], hyper: Hyper) -> None:
        if others := [param for param in params if not hasattr(param, "rounded")]:
            super()._update(others, hyper)
        if not (copied := _with_copies(params)):
            return
        steps = [self.state[param]["step"] for param in copied]
        torch._foreach_add_(steps, 1)
        rates, scales = (torch._foreach_pow(beta, steps) for beta in (hyper.beta1, hyper.beta2))
        for powers in (rates, scales):
            torch._foreach_sub_(powers, 1)
            torch._foreach_neg_(powers)
        torch._foreach_reciprocal_(rates)
        torch._foreach_mul_(rates, hyper.lr)
        torch._foreach_rsqrt_(scales)
        for param, rate, scale in zip(copied, rates, scales, strict=True):
            state = self.state[param]
            tensors = param.data, param.grad, state["exp_avg"], state["exp_avg_sq"], param.rounded
            _compiled()(*(tensor.view(-1) for tensor in tensors), rate, scale, hyper)


@functools.cache
def _compiled():
    return torch.compile(_update_and_copy, dynamic=True, fullgraph=True)  # one graph for vectors of any length


def _update_and_copy(param_N, grad_N, exp_avg_N, exp_avg_sq_N, rounded_N, rate, scale, hyper: Hyper) -> None:
    """Apply the equations of `adam.single_tensor` and round the result.

    `rate` and `scale` correct the biases of the moments. Compiled inside, their powers would be computed for every
    element."""
    wide_N = grad_N.to(param_N.dtype)
    exp_avg_N.mul_(hyper.beta1).add_(wide_N, alpha=1 - hyper.beta1)
    exp_avg_sq_N.mul_(hyper.beta2).addcmul_(wide_N, wide_N, value=1 - hyper.beta2)
    param_N.mul_(1 - hyper.lr * hyper.weight_decay)
    param_N.sub_(exp_avg_N / (exp_avg_sq_N.sqrt() * scale + hyper.eps) * rate)
    rounded_N.copy_(param_N)
