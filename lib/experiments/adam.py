"""Measure one AdamW step on parameters of equal size, or on those of a model."""

from dataclasses import dataclass, field
from typing import ClassVar

import torch

from lib import adam, model, timing, validate
from lib.catalog import CATALOG
from lib.cost import flops
from lib.experiments.case import Case, Work
from lib.experiments.reference import double
from lib.instruments import device
from lib.validate import one_of

# random values of a tensor; a larger one repeats them, since drawing takes longer than measuring
DRAWN = 2**18
CHECKED = 2**16  # elements at the end of the last parameter that are compared, since all are computed alike
EQUAL = "equal"  # parameters of one size
# of the update, by norms. It is near 1e-4, the parameters are near 1, and fp32 rounds their sum by some 3e-4 of it.
TOLERANCE = 2e-3


@dataclass(frozen=True)
class Adam(Case):
    """Step AdamW on `num_params` parameters of `param_size` elements each.

    If `shapes` is a size of model, its parameters are used and the two numbers are 0. `cold` flushes the caches before
    each step. Raises ValueError for an unknown or impossible value."""

    experiment: ClassVar[str] = "adam"
    variant: str = one_of(adam.VARIANTS, "single_tensor")
    shapes: str = one_of((EQUAL, *model.SIZES), EQUAL)
    # the overhead of a tensor can far exceed its data
    num_params: int = field(default=1, metadata={"least": 0, "most": 100_000})
    param_size: int = field(default=16384, metadata={"least": 0})
    amsgrad: bool = False
    cold: bool = False
    device: str = "auto"

    def __post_init__(self):
        super().__post_init__()
        for name in ("num_params", "param_size"):
            if self.shapes == EQUAL:
                validate.at_least(name, getattr(self, name), 1)
            elif getattr(self, name) != 0:
                raise ValueError(f"{name}: got {getattr(self, name)}, expected 0 for shapes {self.shapes}")

    @property
    def compiles(self) -> bool:
        return CATALOG["adam"].variants[self.variant].compiles

    @property
    def parameter_shapes(self) -> list[tuple[int, ...]]:
        """Return the shape of each parameter."""
        if self.shapes == EQUAL:
            return [(self.param_size,)] * self.num_params
        with torch.device("meta"):
            network = model.TransformerLM(model.SIZES[self.shapes])
        return [tuple(parameter.shape) for parameter in network.parameters()]

    def setup(self) -> Work:
        """Draw parameters and gradients, standard normal, and states after some steps."""
        hyper = adam.Hyper(amsgrad=self.amsgrad)
        params = [_fill_normal(torch.empty(shape, device=self.device)) for shape in self.parameter_shapes]
        grads = [_fill_normal(torch.empty_like(param)) for param in params]
        states = [self._state_in_progress(param) for param in params]

        def checked(tensors: list[torch.Tensor]) -> torch.Tensor:
            return double(tensors[-1].flatten()[-CHECKED:])

        old = checked(params)

        def iteration(mark: timing.Mark) -> None:
            adam.step(self.variant, params, grads, states, hyper)
            mark("optimizer")

        def expected() -> dict[str, torch.Tensor]:
            new = old.clone()
            state = {name: checked([tensor]) for name, tensor in states[-1].items()}
            adam.step("single_tensor", [new], [checked(grads)], [state], hyper)
            return {"update": new - old}

        def result() -> dict[str, torch.Tensor]:
            return {"update": checked(params) - old}

        elements = sum(param.numel() for param in params)
        facts = {
            "tensors": len(params), "elements": elements,
            "moved_bytes": flops.adam_bytes(elements, self.amsgrad),
        }  # fmt: skip
        before = timing.nothing
        if self.cold:
            before = device.flush(self.device)
        return Work(self.device, iteration, expected, result, TOLERANCE, facts, before=before)

    def _state_in_progress(self, param: torch.Tensor) -> dict[str, torch.Tensor]:
        """Return a state after 9 steps, in which count and running maximum matter."""
        state = adam.state(param, self.variant, self.amsgrad)
        state["step"].fill_(9)
        _fill_normal(state["exp_avg"])
        for name in ("exp_avg_sq", "max_exp_avg_sq"):
            if name in state:
                _fill_normal(state[name]).abs_().add_(0.5)
        return state


def _fill_normal(tensor: torch.Tensor) -> torch.Tensor:
    """Fill a contiguous tensor, and return it.

    Its first DRAWN values are from a standard normal; the others repeat them."""
    parts = tensor.flatten().split(DRAWN)
    parts[0].normal_()
    for part in parts[1:]:
        part.copy_(parts[0][: part.numel()])
    return tensor
