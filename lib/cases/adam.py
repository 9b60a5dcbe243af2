"""One AdamW step on a list of equally long parameters."""

from dataclasses import dataclass
from typing import ClassVar

import torch

from lib import adam, check, cost, environment, timing
from lib.measure import Work
from lib.timing import Mark

TOLERANCE = 2e-3  # of the update; a parameter near one holds an update of 1e-3 to about 3e-4


@dataclass(frozen=True)
class Adam:
    """An optimizer step, from `cold` caches or from those that the step before left; raises ValueError for a value
    that is unknown or impossible."""

    experiment: ClassVar[str] = "adam"
    variant: str
    num_params: int
    param_size: int
    amsgrad: bool
    cold: bool
    device: str

    def __post_init__(self):
        object.__setattr__(self, "device", environment.device(self.device))
        check.fields(self)
        check.choice("variant", self.variant, adam.VARIANTS)

    @property
    def compiles(self) -> bool:
        """Whether it goes through torch.compile."""
        return self.variant.startswith("compiled")

    def unavailable(self) -> str | None:
        """Why this machine cannot run the case, or None."""
        return environment.compiler_missing(self.device) if self.compiles else None

    def predicted_bytes(self) -> int:
        """Parameters, gradients and moments, the temporaries of all parameters at once (of one, for the
        variant that takes them in turn), and two parameters with their state in double precision."""
        lists = 5 if self.amsgrad else 4
        temporaries = 2 * (1 if self.variant == "single_tensor" else self.num_params)
        return self.param_size * (4 * (lists * self.num_params + temporaries) + 8 * 2 * (lists + 2))

    def setup(self) -> Work:
        """Draw parameters and gradients from a standard normal, with moments as if some steps had been made."""
        hyper = adam.Hyper(amsgrad=self.amsgrad)
        params, grads = (
            [torch.randn(self.param_size, device=self.device) for _ in range(self.num_params)] for _ in range(2)
        )
        states = [self._in_progress(p) for p in params]
        ends = (0, -1)  # the parameters that are checked, the first and the last
        old = torch.stack([params[i] for i in ends]).double()

        def iteration(mark: Mark) -> None:
            adam.step(self.variant, params, grads, states, hyper)
            mark("optimizer")

        def expected() -> dict[str, torch.Tensor]:
            new = [params[i].double() for i in ends]
            copies = [{name: tensor.double() for name, tensor in states[i].items()} for i in ends]
            adam.step("single_tensor", new, [grads[i].double() for i in ends], copies, hyper)
            return {"update": torch.stack(new) - old}

        def result() -> dict[str, torch.Tensor]:
            return {"update": torch.stack([params[i] for i in ends]).double() - old}

        elements = self.num_params * self.param_size
        facts = {"elements": elements, "moved_bytes": cost.adam_bytes(elements, self.amsgrad)}
        before = timing.flush(self.device) if self.cold else lambda: None
        return Work(self.device, iteration, expected, result, TOLERANCE, facts, self.compiles, before)

    def _in_progress(self, param: torch.Tensor) -> dict[str, torch.Tensor]:
        """A state in which the count of steps and the running maximum make a difference, as in fresh ones they
        do not."""
        state = adam.state(param, self.variant, self.amsgrad)
        state["step"].fill_(9)
        state["exp_avg"].normal_()
        for name in ("exp_avg_sq", "max_exp_avg_sq"):
            if name in state:
                state[name].uniform_(0.5, 1.5)
        return state
