"""Make a plain model faster: other forward passes of the same modules and weights.

Lines to paste into a training script are `PASTE_ANY`, which needs only PyTorch, and `PASTE_LIB`. Shapes in names are
those of `lib.model`, and N the numbers of a flattened parameter.
"""

import functools
import weakref
from collections.abc import Collection

import torch
from torch import Tensor, nn

from lib import adam, model, validate
from lib.adam import Hyper

SWITCHES = ("products", "projections", "cast_once")
DEFAULTS = Hyper()

# Lines for any nn.Module named `network`, with a function `loss_of(outputs, targets)`. tests/test_paste.py runs them.
PASTE_ANY = """\
import ctypes
import platform

import torch

device = next(network.parameters()).device.type
dtype = torch.bfloat16  # torch.float32: no autocast

# On Linux, keep freed memory in the process: M_MMAP_MAX, M_TRIM_THRESHOLD and M_TOP_PAD of malloc.h.
if platform.libc_ver()[0] == "glibc":
    for parameter, value in [(-4, 0), (-1, -1), (-2, 2**26)]:
        ctypes.CDLL(None).mallopt(parameter, value)

# Fused attention. Models of transformers have this method; torch.nn.Transformer's layers do it by themselves.
if hasattr(network, "set_attn_implementation"):
    network.set_attn_implementation("sdpa")

# Compile layer by layer: equal layers share a graph, so it takes a fraction of the whole model's time.
for module in network.modules():
    if isinstance(module, torch.nn.ModuleList):
        for layer in module:
            layer.compile(dynamic=False)

optimizer = torch.optim.AdamW(network.parameters(), fused=True)


def train(inputs, targets):
    with torch.autocast(device, dtype, enabled=dtype != torch.float32):
        loss = loss_of(network(inputs), targets)
    loss.backward()
    optimizer.step()
    optimizer.zero_grad(set_to_none=True)
    return loss.detach()
"""

# Lines that replace those which compile and make the optimizer; `projections` changes layers of lib.model alone.
PASTE_LIB = """\
from lib import fast

switches = ["projections", "cast_once"]
if dtype == torch.float32:
    switches = ["projections", "products"]
fast.accelerate(network, switches, dtype)
fast.compile_layers(network)
optimizer = fast.AdamW(network.parameters())
"""


def accelerate(network: nn.Module, switches: Collection[str], dtype: torch.dtype = torch.bfloat16) -> None:
    """Give modules of a plain model faster forward passes, in place.

    `projections` multiplies by the weights of queries, keys and values at once, and by w1 and w3 at once, in the layers
    of `lib.model`. `products` is `fast.products`. `cast_once` keeps a copy of each nn.Linear's matrix in `dtype`, the
    type of autocast around the model. Gradients then have that type too, and `AdamW` writes the copy in the pass that
    updates the weight.

    All parameters stay the same fp32 tensors under the same names. Call it once the model is on its device, and before
    it is compiled. Raises ValueError for an unknown switch, or a `dtype` for `cast_once` that is not narrower."""
    for switch in switches:
        validate.choice("switches", switch, SWITCHES)
    narrow = None
    if "cast_once" in switches:
        narrow = dtype
        if narrow.itemsize >= torch.float32.itemsize:
            raise ValueError(f"dtype: got {dtype}, expected a narrower type than torch.float32")
    # a module gets another class and keeps its weights and hooks: whoever holds it need not know
    if "projections" in switches:
        for module in list(network.modules()):
            if type(module) is model.SelfAttention:
                module.inputs = Factor([module.q_proj.weight, module.k_proj.weight, module.v_proj.weight], narrow)
                module.__class__ = Attention
            elif type(module) is model.SwiGLU:
                module.inputs = Factor([module.w1.weight, module.w3.weight], narrow)
                module.__class__ = SwiGLU
    if narrow is not None:
        for module in list(network.modules()):
            # weights of joined projections have a copy
            if type(module) is nn.Linear and not hasattr(module.weight, "rounded"):
                module.factor = Factor([module.weight], narrow)
                module.__class__ = NarrowLinear
        network.register_load_state_dict_post_hook(_copy_anew)
    if "products" in switches:
        products(network)


def products(network: nn.Module) -> None:
    """Make each fp32 nn.Linear and each Factor in fp32 multiply by the faster library on a CPU."""
    # it loads the compiler's front end, which takes a second
    from lib import products as libraries

    for module in network.modules():
        if type(module) is nn.Linear and module.weight.dtype == torch.float32:
            module.__class__ = libraries.Linear
        # whatever its type: this `linear` leaves all but fp32 to PyTorch
        elif isinstance(module, Factor):
            module.linear = libraries.linear


def compile_layers(network: nn.Module) -> None:
    """Compile each element of a model's nn.ModuleLists; the rest stays eager.

    Equal layers share a graph, so this takes a fraction of the whole model's time. Raises ValueError without a list."""
    layers = []
    for module in network.modules():
        if isinstance(module, nn.ModuleList):
            layers += module
    if not layers:
        raise ValueError(f"network: got {type(network).__name__} without a ModuleList, expected one with its layers")
    for layer in layers:
        layer.compile(dynamic=False)


class Factor(nn.Module):
    """Multiply by the weights of linear maps of one input at once.

    The weights become rows of one matrix. Autograd differentiates by that matrix, or by its copy in the type `narrow`,
    and each weight gets its rows of the gradient."""

    def __init__(self, weights: list[nn.Parameter], narrow: torch.dtype | None):
        super().__init__()
        self.weights = weights
        self.rows = [len(weight) for weight in weights]
        self.linear = nn.functional.linear
        matrix = torch.cat([weight.detach() for weight in weights])
        for weight, rows in zip(weights, matrix.split(self.rows), strict=True):
            weight.data = rows
        if narrow is not None:
            matrix = matrix.to(narrow)
            for weight, rows in zip(weights, matrix.split(self.rows), strict=True):
                weight.rounded = rows
                weight.grad_dtype = narrow
        self.register_buffer("matrix", matrix.requires_grad_(), persistent=False)
        # a hook that held the module would keep it alive, and with it the weights
        hand_over = functools.partial(Factor._hand_over, weakref.proxy(self))
        self.matrix.register_post_accumulate_grad_hook(hand_over)

    def _hand_over(self, matrix: Tensor) -> None:
        """Give each weight its rows of the matrix's gradient."""
        for weight, rows in zip(self.weights, matrix.grad.split(self.rows), strict=True):
            if weight.grad is None:
                weight.grad = rows
            else:
                weight.grad += rows
        matrix.grad = None

    def forward(self, x_BTC: Tensor) -> tuple[Tensor, ...]:
        return self.linear(x_BTC, self.matrix).split(self.rows, dim=-1)


class NarrowLinear(nn.Linear):
    """Compute a linear map by a copy of its weight in the type `narrow`."""

    def forward(self, x_BTC: Tensor) -> Tensor:
        return nn.functional.linear(x_BTC, self.factor.matrix, self.bias)


class Attention(model.SelfAttention):
    """Compute queries, keys and values by one product: `inputs`, the Factor that `accelerate` sets."""

    def forward(self, x_BTC: Tensor) -> Tensor:
        q_BTC, k_BTC, v_BTC = self.inputs(x_BTC)
        q_BHTD = model.split_heads(q_BTC, self.num_heads)
        k_BHTD = model.split_heads(k_BTC, self.num_heads)
        v_BHTD = model.split_heads(v_BTC, self.num_heads)
        out_BHTD = self.attend(self.rope(q_BHTD), self.rope(k_BHTD), v_BHTD, causal=True)
        return self.output_proj(model.join_heads(out_BHTD))


class SwiGLU(model.SwiGLU):
    """Compute w1 x and w3 x by one product."""

    def forward(self, x_BTC: Tensor) -> Tensor:
        gate_BTF, up_BTF = self.inputs(x_BTC)
        return self.w2(nn.functional.silu(gate_BTF) * up_BTF)


@torch.no_grad()
def _copy_anew(network: nn.Module, _) -> None:
    """Write the weights' copies again, after new weights were loaded."""
    for weight in network.parameters():
        if hasattr(weight, "rounded"):
            weight.rounded.copy_(weight)


class AdamW(adam.AdamW):
    """Optimize an accelerated model, and write weights' copies in the same pass.

    Parameters without a copy take the variant `fused`. Raises ValueError for amsgrad, in `hyper` or in a
    new group; a state that is loaded must be without it."""

    def __init__(self, params, hyper: Hyper = DEFAULTS):
        super().__init__(params, "fused", hyper)

    def add_param_group(self, group: dict) -> None:
        """Add parameters, as the constructor does for each group. Raises ValueError for amsgrad."""
        if group.get("amsgrad", self.defaults["amsgrad"]):
            raise ValueError("amsgrad: got True, expected False")
        super().add_param_group(group)

    @torch.no_grad()
    def _update(self, params: list[Tensor], hyper: Hyper) -> None:
        copied = [param for param in params if hasattr(param, "rounded")]
        plain = [param for param in params if not hasattr(param, "rounded")]
        if plain:
            super()._update(plain, hyper)
        if copied:
            self._update_copied(copied, hyper)

    def _update_copied(self, params: list[Tensor], hyper: Hyper) -> None:
        steps = [self.state[param]["step"] for param in params]
        torch._foreach_add_(steps, 1)
        # rate = lr / (1 - beta1^t) and scale = 1 / sqrt(1 - beta2^t), on the device
        rates = torch._foreach_pow(hyper.beta1, steps)
        scales = torch._foreach_pow(hyper.beta2, steps)
        for powers in (rates, scales):
            torch._foreach_sub_(powers, 1)
            torch._foreach_neg_(powers)
        torch._foreach_reciprocal_(rates)
        torch._foreach_mul_(rates, hyper.lr)
        torch._foreach_rsqrt_(scales)
        for param, rate, scale in zip(params, rates, scales, strict=True):
            state = self.state[param]
            tensors = param.data, param.grad, state["exp_avg"], state["exp_avg_sq"], param.rounded
            _compiled()(*(tensor.view(-1) for tensor in tensors), rate, scale, hyper)


@functools.cache
def _compiled():
    return torch.compile(_update_and_copy, dynamic=True, fullgraph=True)  # one graph for vectors of any length


def _update_and_copy(param_N, grad_N, exp_avg_N, exp_avg_sq_N, rounded_N, rate, scale, hyper: Hyper) -> None:
    """Apply the equations of `adam.single_tensor` without amsgrad, and round the result."""
    # `rate`, with the learning rate, and `scale` correct the biases; compiled inside, their powers would be computed
    # for every element
    wide_N = grad_N.to(param_N.dtype)
    exp_avg_N.mul_(hyper.beta1).add_(wide_N, alpha=1 - hyper.beta1)
    exp_avg_sq_N.mul_(hyper.beta2).addcmul_(wide_N, wide_N, value=1 - hyper.beta2)
    param_N.mul_(1 - hyper.lr * hyper.weight_decay)
    param_N.sub_(exp_avg_N / (exp_avg_sq_N.sqrt() * scale + hyper.eps) * rate)
    rounded_N.copy_(param_N)
