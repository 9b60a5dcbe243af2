"""Share an optimizer among ranks (ZeRO stage 1, Rajbhandari et al. 2020).

>>> optimizer = ShardedOptimizer(network.parameters(), torch.optim.AdamW, lr=1e-3)  # doctest: +SKIP
"""

from collections.abc import Callable

import torch
import torch.distributed as dist
from torch import Tensor, nn

from lib.parallel import collectives


class ShardedOptimizer(torch.optim.Optimizer):
    """Run an optimizer on this rank's share of the parameters, then send them.

    Gradients must be averaged before. Each parameter belongs to one rank: the largest first, to the rank with the
    fewest elements. Every number is computed as one process would, to the same bits. `state` and `state_dict`
    hold this rank's share, which a run on as many ranks can load again."""

    def __init__(self, params, optimizer_cls: type[torch.optim.Optimizer], **kwargs):
        # `super().__init__` calls add_param_group, which needs these two
        self.owners: dict[nn.Parameter, int] = {}  # the rank that updates each parameter
        self._elements = [0] * dist.get_world_size()  # of each rank's parameters
        # a throw-away optimizer of one number, which has the defaults of what `kwargs` leave out
        defaults = optimizer_cls([torch.zeros(1)], **kwargs).defaults
        super().__init__(params, defaults)
        self.inner = optimizer_cls(self._own_groups(), **kwargs)
        self.state = self.inner.state

    def add_param_group(self, param_group: dict) -> None:
        """Add a group; its missing settings are those of the constructor, or defaults."""
        super().add_param_group(param_group)
        # an owner for each parameter, the same on all ranks
        for param in sorted(self.param_groups[-1]["params"], key=Tensor.numel, reverse=True):
            owner = self._elements.index(min(self._elements))
            self.owners[param] = owner
            self._elements[owner] += param.numel()

    def step(self, closure: Callable[[], float] | None = None) -> float | None:
        """Call `closure`, if given, then update all parameters; return what it returned."""
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        # there may be new groups, and a schedule changes their settings
        self.inner.param_groups = self._own_groups()
        self.inner.step()
        started = [collectives.broadcast(param.detach(), owner) for param, owner in self.owners.items()]
        for work in started:
            work.wait()
        return loss

    def load_state_dict(self, state_dict: dict) -> None:
        """Load this rank's share. Raises ValueError if the groups differ."""
        super().load_state_dict(state_dict)
        self.inner.state = self.state

    def _own_groups(self) -> list[dict]:
        """Return the groups' settings with this rank's parameters."""
        groups = []
        for group in self.param_groups:
            own = [param for param in group["params"] if self.owners[param] == dist.get_rank()]
            groups.append({**group, "params": own})
        return groups
