"""Compute AdamW steps in several variants, and offer each as an optimizer.

A step takes lists with one tensor a parameter, of its shape: `params`, `grads`, first moments `exp_avgs`, second
moments `exp_avg_sqs` and, for amsgrad, running maxima `max_exp_avg_sqs` (else empty). `steps` is a list of
0-dimensional step counts, `hyper` a `Hyper`. All but the gradients are updated in place (Loshchilov and Hutter 2019,
algorithm 2; amsgrad: Reddi et al. 2018).

- `single_tensor` is the equations, and the reference: each operation passes over each parameter.
- `foreach` makes about as many passes, but only one call an operation for all parameters.
- `fused` is PyTorch's kernel: one pass over memory.
- `compiled_single_tensor` and `compiled_foreach` are the first two through torch.compile.
"""

import functools
from collections.abc import Callable
from dataclasses import asdict, dataclass

import torch
from torch import Tensor

from lib import validate
from lib.catalog import CATALOG


@dataclass(frozen=True)
class Hyper:
    """Hold the hyper-parameters of AdamW. Raises ValueError for one out of its range."""

    lr: float = 1e-3
    beta1: float = 0.9
    beta2: float = 0.999
    eps: float = 1e-8
    weight_decay: float = 0.01
    amsgrad: bool = False

    def __post_init__(self):
        for name, value in vars(self).items():
            # a number of numpy or torch, as a schedule may compute it
            if hasattr(value, "item"):
                object.__setattr__(self, name, value.item())
        validate.fields(self)
        for name in ("lr", "eps", "weight_decay"):
            validate.at_least(name, getattr(self, name), 0)
        for name in ("beta1", "beta2"):
            if not 0 <= getattr(self, name) < 1:
                raise ValueError(f"{name}: got {getattr(self, name)}, expected at least 0 and less than 1")


def single_tensor(params, grads, exp_avgs, exp_avg_sqs, max_exp_avg_sqs, steps, hyper: Hyper) -> None:
    """Apply the equations to one parameter after the other: the reference."""
    # names of the equations: parameter, gradient, first and second moment
    for i, (p, g, m, v, step) in enumerate(zip(params, grads, exp_avgs, exp_avg_sqs, steps, strict=True)):
        step += 1
        t = _as_float(step)
        p.mul_(1 - hyper.lr * hyper.weight_decay)
        m.mul_(hyper.beta1).add_(g, alpha=1 - hyper.beta1)
        v.mul_(hyper.beta2).addcmul_(g, g, value=1 - hyper.beta2)
        if hyper.amsgrad:
            v = torch.maximum(max_exp_avg_sqs[i], v, out=max_exp_avg_sqs[i])
        rms = v.sqrt().div_((1 - hyper.beta2**t) ** 0.5).add_(hyper.eps)
        p.sub_(m / rms * (hyper.lr / (1 - hyper.beta1**t)))


def foreach(params, grads, exp_avgs, exp_avg_sqs, max_exp_avg_sqs, steps, hyper: Hyper) -> None:
    """Apply each operation to all parameters at once; on CUDA in few kernels."""
    torch._foreach_add_(steps, 1)
    counts = [_as_float(step) for step in steps]
    torch._foreach_mul_(params, 1 - hyper.lr * hyper.weight_decay)
    torch._foreach_mul_(exp_avgs, hyper.beta1)
    torch._foreach_add_(exp_avgs, grads, alpha=1 - hyper.beta1)
    torch._foreach_mul_(exp_avg_sqs, hyper.beta2)
    torch._foreach_addcmul_(exp_avg_sqs, grads, grads, value=1 - hyper.beta2)
    if hyper.amsgrad:
        torch._foreach_maximum_(max_exp_avg_sqs, exp_avg_sqs)
        rms = torch._foreach_sqrt(max_exp_avg_sqs)
    else:
        rms = torch._foreach_sqrt(exp_avg_sqs)
    torch._foreach_div_(rms, [(1 - hyper.beta2**t) ** 0.5 for t in counts])
    torch._foreach_add_(rms, hyper.eps)
    rates = [-hyper.lr / (1 - hyper.beta1**t) for t in counts]
    if torch.compiler.is_compiling():
        # rates are tensors here, and addcdiv takes numbers alone: they go into the denominator
        torch._foreach_div_(rms, rates)
        torch._foreach_addcdiv_(params, exp_avgs, rms)
    else:
        # kept out of the denominator, which a small rate would make overflow in fp16
        torch._foreach_addcdiv_(params, exp_avgs, rms, rates)


def fused(params, grads, exp_avgs, exp_avg_sqs, max_exp_avg_sqs, steps, hyper: Hyper) -> None:
    """Call PyTorch's own kernel, which reads and writes every value once."""
    torch._foreach_add_(steps, 1)
    torch._fused_adamw_(params, grads, exp_avgs, exp_avg_sqs, max_exp_avg_sqs, steps, maximize=False, **asdict(hyper))


def _as_float(step: Tensor) -> float | Tensor:
    """Return the count as a number, or as it is inside torch.compile.

    Reading it there would wait for the device."""
    return step if torch.compiler.is_compiling() else step.item()


@functools.cache
def _compile(variant):
    # At the first step, since importing the compiler takes seconds. Not `fullgraph`, which raises after eight graphs.
    return torch.compile(variant, dynamic=False)


VARIANTS = {
    "single_tensor": single_tensor,
    "foreach": foreach,
    "fused": fused,
    "compiled_single_tensor": lambda *lists_and_hyper: _compile(single_tensor)(*lists_and_hyper),
    "compiled_foreach": lambda *lists_and_hyper: _compile(foreach)(*lists_and_hyper),
}


def counts_on_device(variant: str) -> bool:
    """Tell if a variant needs step counts on the device; others read numbers."""
    return CATALOG["adam"].variants[variant].counts_on_device


def state(param: Tensor, variant: str, amsgrad: bool) -> dict[str, Tensor]:
    """Return a parameter's fresh state, with the names of torch.optim.AdamW."""
    names = ["exp_avg", "exp_avg_sq"]
    if amsgrad:
        names.append("max_exp_avg_sq")
    moments = {name: torch.zeros_like(param, memory_format=torch.preserve_format) for name in names}
    device = param.device if counts_on_device(variant) else "cpu"
    return {"step": torch.zeros((), device=device), **moments}


@torch.no_grad()
def step(variant: str, params: list[Tensor], grads: list[Tensor], states: list[dict], hyper: Hyper) -> None:
    """Run one step of the named variant on `params`, each with its `state`."""
    lists = {"exp_avg": [], "exp_avg_sq": [], "max_exp_avg_sq": [], "step": []}
    for param_state in states:
        for name, tensor in param_state.items():
            lists[name].append(tensor)
    VARIANTS[variant](params, grads, *lists.values(), hyper)


class AdamW(torch.optim.Optimizer):
    """Optimize by a variant of AdamW; states move to torch.optim.AdamW and back.

    Raises ValueError for an unknown variant or a hyper-parameter out of range."""

    def __init__(self, params, variant: str = "single_tensor", hyper: Hyper = Hyper()):
        validate.choice("variant", variant, VARIANTS)
        self.variant = variant
        defaults = {
            "lr": hyper.lr,
            "betas": (hyper.beta1, hyper.beta2),
            "eps": hyper.eps,
            "weight_decay": hyper.weight_decay,
            "amsgrad": hyper.amsgrad,
            # torch reads it when it loads a state, to choose the device of the step counts
            "fused": counts_on_device(variant),
        }
        super().__init__(params, defaults)

    def __getstate__(self) -> dict:
        """Return what copies and pickles keep."""
        return super().__getstate__() | {"variant": self.variant}

    def load_state_dict(self, state_dict: dict) -> None:
        """Load a state that any variant or torch.optim.AdamW saved."""
        own = {"fused": counts_on_device(self.variant)}
        groups = [group | own for group in state_dict["param_groups"]]
        super().load_state_dict({**state_dict, "param_groups": groups})

    def step(self, closure: Callable[[], float] | None = None) -> float | None:
        """Call `closure`, update what has a gradient, and return the closure's result.

        Compiled variants compile anew for another `lr` or other parameters with gradients, and after eight times
        run eagerly."""
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        for group in self.param_groups:
            params = [p for p in group["params"] if p.grad is not None]
            hyper = Hyper(group["lr"], *group["betas"], group["eps"], group["weight_decay"], group["amsgrad"])
            for p in params:
                if not self.state[p]:
                    self.state[p] = state(p, self.variant, hyper.amsgrad)
            if params:
                self._update(params, hyper)
        return loss

    # overridden in fast.MastersAdamW
    def _update(self, params: list[Tensor], hyper: Hyper) -> None:
        step(self.variant, params, [p.grad for p in params], [self.state[p] for p in params], hyper)
