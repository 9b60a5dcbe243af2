"""Make a plain model faster: compile its layers, keep its matrices in bf16.

Each rounded matrix has an fp32 master (Micikevicius et al. 2018, https://arxiv.org/abs/1710.03740). A training step
then casts no weight: the pass that updates the master also writes the rounded weight. Shapes in names: N the numbers of
a flattened parameter.
"""

import functools
import weakref
from collections.abc import Iterable

import torch
from torch import Tensor, nn

from lib import adam
from lib.adam import Hyper

DEFAULTS = Hyper()


def compile_layers(network: nn.Module) -> None:
    """Compile each element of a model's nn.ModuleLists; the rest stays eager.

    Equal layers share a graph, so this takes a fraction of the whole model's time. PyTorch does not
    compile the forward pass of its own classes, such as nn.TransformerEncoderLayer, but does so for their subclasses.
    Raises ValueError without a list."""
    layers = []
    for module in network.modules():
        if isinstance(module, nn.ModuleList):
            layers += module
    if not layers:
        raise ValueError(f"network: got {type(network).__name__} without a ModuleList, expected one with its layers")
    for layer in layers:
        layer.compile(dynamic=False)


class MastersAdamW(adam.AdamW):
    """Optimize weights in bf16 by fp32 masters.

    Other parameters take the variant `fused`. Make it from an fp32 model, then call `round_matrices`, and run forward
    passes under autocast in bf16.

    - A weight that was changed from outside (loaded, copied, set in place) replaces its master. It counts as rounded to
      bf16. To change less, change `state[weight]["master"]` and copy that to the weight.
    - Gradients have the type of their weight, and so has an all-reduce of them. Gradients of several backward passes
      add up in fp32.
    - Ranks must have equal weights before they round them, since a master is not sent.

    Raises ValueError for amsgrad, and for parameters that are neither fp32 nor bf16."""

    def __init__(self, params, hyper: Hyper = DEFAULTS):
        super().__init__(params, "fused", hyper)

    def __setstate__(self, state: dict) -> None:
        super().__setstate__(state)
        # a copy of a parameter has lost its hooks
        for group in self.param_groups:
            _add_up_in_fp32(group["params"])

    def add_param_group(self, group: dict) -> None:
        """Add parameters, as the constructor does for each group.

        Raises ValueError as the class does."""
        _refuse_amsgrad(group.get("amsgrad", self.defaults["amsgrad"]))
        super().add_param_group(group)
        for param in self.param_groups[-1]["params"]:
            if param.dtype not in (torch.float32, torch.bfloat16):
                raise ValueError(f"params: got {param.dtype}, expected {torch.float32} (nearest: {torch.bfloat16})")
        _add_up_in_fp32(self.param_groups[-1]["params"])

    def round_matrices(self, network: nn.Module) -> None:
        """Round a model's trained fp32 matrices to bf16, in place.

        This optimizer keeps masters of those among its parameters. Matrices are the weights of nn.Linear, which
        autocast would round in each pass. The embedding stays in fp32, as do norms and biases: no product reads them,
        and they set the type of the residual stream. A matrix that shares its weight with an embedding stays in fp32,
        too."""
        matrices, others = set(), set()
        for module in network.modules():
            for name, param in module.named_parameters(recurse=False):
                is_matrix = isinstance(module, nn.Linear) and name == "weight"
                (matrices if is_matrix else others).add(param)
        own = {param for group in self.param_groups for param in group["params"]}
        for weight in matrices - others:
            if weight.requires_grad and weight.dtype == torch.float32:
                master = weight.data.contiguous()
                if weight in own:
                    state = self.state[weight] or adam.state(master, "fused", amsgrad=False)
                    self.state[weight] = {**state, "master": master}
                weight.grad = None
                weight.data = master.to(torch.bfloat16)
                _add_up_in_fp32([weight])

    def load_state_dict(self, state_dict: dict) -> None:
        """Load a state that this class, any variant or torch.optim.AdamW saved.

        Raises ValueError for one of amsgrad."""
        for group in state_dict["param_groups"]:
            _refuse_amsgrad(group["amsgrad"])
        super().load_state_dict(state_dict)
        numbers = [number for group in state_dict["param_groups"] for number in group["params"]]
        params = [param for group in self.param_groups for param in group["params"]]
        for number, param in zip(numbers, params, strict=True):
            for name, value in state_dict["state"].get(number, {}).items():
                # PyTorch has rounded all but the count to the type of the weight
                if name != "step":
                    self.state[param][name] = value.to(param.device, copy=True)

    @torch.no_grad()
    def _update(self, params: list[Tensor], hyper: Hyper) -> None:
        fp32, rounded = [], []
        for param in params:
            is_rounded = param.dtype == torch.bfloat16 or "master" in self.state[param]
            (rounded if is_rounded else fp32).append(param)
        if fp32:
            super()._update(fp32, hyper)
        if rounded:
            self._update_rounded(rounded, hyper)

    def _update_rounded(self, params: list[Tensor], hyper: Hyper) -> None:
        counts = torch.stack([self.state[param]["step"].add_(1) for param in params])
        # each parameter's lr / (1 - beta1^t) and 1 / sqrt(1 - beta2^t), on the device
        rates = (hyper.lr / (1 - hyper.beta1**counts)).unbind()
        scales = (1 - hyper.beta2**counts).rsqrt().unbind()
        decay = torch.full_like(rates[0], 1 - hyper.lr * hyper.weight_decay)
        torch.autograd.graph.increment_version(params)
        for param, rate, scale in zip(params, rates, scales, strict=True):
            # `param.data =` may have given it another type or layout
            if param.dtype != torch.bfloat16 or not param.is_contiguous():
                param.data = param.data.to(torch.bfloat16).contiguous()
            state = self.state[param]
            # without a master the state is new, or that of another optimizer
            if "master" not in state:
                wide = {name: state[name].float() for name in ("exp_avg", "exp_avg_sq")}
                state |= {"master": param.float(), **wide}
            kept = [state[name] for name in ("master", "exp_avg", "exp_avg_sq")]
            # `.data` is no view, whose shape would count for the compiler
            vectors = [tensor.view(-1).data for tensor in (param, param.grad.contiguous(), *kept)]
            _compiled()(*vectors, rate, scale, decay, hyper.beta1, hyper.beta2, hyper.eps)


def full_state_dict(network: nn.Module, optimizer: torch.optim.Optimizer) -> dict[str, Tensor]:
    """Return the model's state dict in fp32, for a checkpoint or an EMA.

    Each rounded matrix is replaced by its master. The result loads into a plain model. With a sharded optimizer only
    this rank's share has its masters."""
    weights = network.state_dict()
    for name, param in network.named_parameters(remove_duplicate=False):
        master = optimizer.state.get(param, {}).get("master")
        if master is not None:
            weights[name] = _follow(param.detach().to(torch.bfloat16), master)
    return weights


def _refuse_amsgrad(amsgrad: bool) -> None:
    if amsgrad:
        raise ValueError("amsgrad: got True, expected False")


def _follow(weight: Tensor, master: Tensor) -> Tensor:
    """Return the master, or the weight where it was changed from outside, in fp32."""
    # Round to bf16 by the bits: to the nearest number, and on a tie to the even one. A compiler would skip a cast to
    # bf16 and back, and does not vectorize a comparison of 16-bit integers.
    bits = master.view(torch.int32)
    rounded = ((bits + 0x7FFF + ((bits >> 16) & 1)) & -0x10000).view(torch.float32)
    wide = weight.float()
    return torch.where(wide == rounded, master, wide)


def _add_up_in_fp32(params: Iterable[nn.Parameter]) -> None:
    """Widen a bf16 parameter's gradient before another one is added to it."""
    for param in params:
        hooks = (param._backward_hooks or {}).values()
        if param.dtype == torch.bfloat16 and not any(getattr(hook, "func", None) is _widen for hook in hooks):
            # a hook that held the parameter would keep it alive
            param.register_hook(functools.partial(_widen, weakref.ref(param)))


def _widen(parameter: weakref.ref, gradient: Tensor) -> None:
    param = parameter()
    if param.grad is not None and param.grad.dtype == torch.bfloat16:
        former = param.grad
        param.grad = None
        param.grad_dtype = torch.float32
        param.grad = former.float()


@functools.cache
def _compiled():
    # one graph for vectors of any length: a list of all would compile for each set of shapes, for a minute and more
    return torch.compile(_update_and_round, dynamic=True, fullgraph=True)


def _update_and_round(weight_N, grad_N, master_N, m_N, v_N, rate, scale, decay, beta1, beta2, eps) -> None:
    """Update the master, and round it into the weight.

    The equations are those of `adam.single_tensor` without amsgrad."""
    # `rate`, with the learning rate, and `scale` correct the biases; compiled inside, their powers would be computed
    # for every element. As tensors they and `decay` may change without another graph.
    wide_N = grad_N.to(master_N.dtype)
    m_N.mul_(beta1).add_(wide_N, alpha=1 - beta1)
    v_N.mul_(beta2).addcmul_(wide_N, wide_N, value=1 - beta2)
    master_N.copy_(_follow(weight_N, master_N)).mul_(decay)
    master_N.sub_(m_N / (v_N.sqrt() * scale + eps) * rate)
    weight_N.copy_(master_N)
