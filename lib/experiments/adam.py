"""One AdamW step on a list of equally long parameters, or on those of a model."""

import functools
import math
from dataclasses import dataclass, field
from typing import ClassVar

import torch

from lib import adam, model, validate
from lib.cost import flops
from lib.experiments.measure import Work
from lib.instruments import cache, environment
from lib.timing import Mark

DRAWN = 2**18  # values
EQUAL = "equal"  # parameters of one size
TOLERANCE = 2e-3  # of the update; a parameter near one holds an update of 1e-3 to about 3e-4


@dataclass(frozen=True)
class Adam:
    """An optimizer step, from `cold` caches or from those that the step before left, on `num_params` parameters of
    `param_size` elements each where `shapes` is "equal", else on those of the model of that size, whose number and
    sizes are its own: the two are 0. Raises ValueError for a value that is unknown or impossible."""

    experiment: ClassVar[str] = "adam"
    variant: str
    shapes: str
    num_params: int = field(metadata={"least": 0, "most": 100_000})  # each costs Python far more than its bytes
    param_size: int = field(metadata={"least": 0})
    amsgrad: bool
    cold: bool
    device: str

    def __post_init__(self):
        object.__setattr__(self, "device", environment.device(self.device))
        own = ("num_params", "param_size")
        validate.fields(self)
        validate.choice("variant", self.variant, adam.VARIANTS)
        validate.choice("shapes", self.shapes, (EQUAL, *model.SIZES))
        for name in own:
            if self.shapes == EQUAL:
                validate.at_least(name, getattr(self, name), 1)
            elif getattr(self, name) != 0:
                raise ValueError(f"{name}: {getattr(self, name)} must be 0 for {self.shapes}, which has its own")

    @property
    def compiles(self) -> bool:
        """Whether it goes through torch.compile."""
        return self.variant in adam.COMPILING

    @property
    def parameter_shapes(self) -> list[tuple[int, ...]]:
        """The shape of each parameter."""
        return [(self.param_size,)] * self.num_params if self.shapes == EQUAL else _model_shapes(self.shapes)

    def unavailable(self) -> str | None:
        """Why this machine cannot run the case, or None."""
        return environment.compiler_missing(self.device) if self.compiles else None

    def predicted_bytes(self) -> int:
        """Parameters, gradients and moments, the temporaries of all parameters at once (of the largest, for the
        variant that takes them in turn), and the first and last parameter with their state in double precision."""
        sizes = [math.prod(shape) for shape in self.parameter_shapes]
        lists = 5 if self.amsgrad else 4
        temporaries = 2 * (max(sizes) if self.variant == "single_tensor" else sum(sizes))
        return 4 * (lists * sum(sizes) + temporaries) + 8 * (lists + 2) * (sizes[0] + sizes[-1])

    def setup(self) -> Work:
        """Draw parameters and gradients from a standard normal, with moments as if some steps had been made. Of a
        large tensor as many values are drawn as `DRAWN` says, and repeated: more would take longer than to measure."""
        hyper = adam.Hyper(amsgrad=self.amsgrad)
        shapes = self.parameter_shapes
        params, grads = ([_drawn(torch.empty(shape, device=self.device)) for shape in shapes] for _ in range(2))
        states = [self._in_progress(p) for p in params]
        ends = {"update": 0, "last_update": -1}  # the parameters that are checked, each as one row
        old = {name: params[i].double() for name, i in ends.items()}

        def iteration(mark: Mark) -> None:
            adam.step(self.variant, params, grads, states, hyper)
            mark("optimizer")

        def expected() -> dict[str, torch.Tensor]:
            new = {name: tensor.clone() for name, tensor in old.items()}
            copies = [{name: tensor.double() for name, tensor in states[i].items()} for i in ends.values()]
            doubles = [grads[i].double() for i in ends.values()]
            adam.step("single_tensor", list(new.values()), doubles, copies, hyper)
            return {name: (new[name] - old[name]).flatten() for name in ends}

        def result() -> dict[str, torch.Tensor]:
            return {name: (params[i].double() - old[name]).flatten() for name, i in ends.items()}

        elements = sum(math.prod(shape) for shape in shapes)
        facts = {"elements": elements, "moved_bytes": flops.adam_bytes(elements, self.amsgrad)}
        before = cache.flush(self.device) if self.cold else lambda: None
        return Work(self.device, iteration, expected, result, TOLERANCE, facts, self.compiles, before)

    def _in_progress(self, param: torch.Tensor) -> dict[str, torch.Tensor]:
        """A state in which the count of steps and the running maximum make a difference, as in fresh ones they
        do not."""
        state = adam.state(param, self.variant, self.amsgrad)
        state["step"].fill_(9)
        _drawn(state["exp_avg"])
        for name in ("exp_avg_sq", "max_exp_avg_sq"):
            if name in state:
                _drawn(state[name]).abs_().add_(0.5)
        return state


@functools.cache
def _model_shapes(size: str) -> list[tuple[int, ...]]:
    with torch.device("meta"):
        network = model.TransformerLM(model.SIZES[size])
    return [tuple(parameter.shape) for parameter in network.parameters()]


def _drawn(tensor: torch.Tensor) -> torch.Tensor:
    """The tensor, filled."""
    parts = tensor.flatten().split(DRAWN)
    parts[0].normal_()
    for part in parts[1:]:
        part.copy_(parts[0][: part.numel()])
    return tensor
