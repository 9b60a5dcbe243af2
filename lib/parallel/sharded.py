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
    fewest elements. Every number is computed as in one process, so the weights have its bits. `state` and `state_dict`
    hold this rank's share, which a run on as many ranks can load again."""

    def __init__(self, params, optimizer_cls: type[torch.optim.Optimizer], **kwargs):
        self.owners: dict[nn.Parameter, int] = {}  # the rank that updates each parameter
        self.inner: torch.optim.Optimizer | None = None
        self._elements = [0] * dist.get_world_size()  # of each rank's parameters
        super().__init__(params, {})
        own_groups = [self._own_part(group) for group in self.param_groups]
        self.inner = optimizer_cls(own_groups, **kwargs)
        self.defaults = self.inner.defaults
        self.state = self.inner.state
        self._show_settings()

    def add_param_group(self, param_group: dict) -> None:
        """Add a group; its missing settings are those given to the constructor."""
        super().add_param_group(param_group)
        group = self.param_groups[-1]
        self._assign(group["params"])
        # `super().__init__` calls this before the inner optimizer exists
        if self.inner is not None:
            self.inner.add_param_group(self._own_part(group))
            self._show_settings()

    def step(self, closure: Callable[[], float] | None = None) -> float | None:
        """Update all parameters, and return what `closure` returns, called first."""
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        # a schedule changes the settings of this optimizer's groups
        for group, inner_group in zip(self.param_groups, self.inner.param_groups, strict=True):
            inner_group.update(self._own_part(group))
        self.inner.step()
        started = [collectives.broadcast(param.detach(), owner) for param, owner in self.owners.items()]
        for pending in started:
            pending.wait()
        return loss

    def load_state_dict(self, state_dict: dict) -> None:
        """Load this rank's share. Raises ValueError if the groups differ."""
        super().load_state_dict(state_dict)
        self.inner.state = self.state

    def _assign(self, params: list[nn.Parameter]) -> None:
        """Give each parameter an owner, the same on all ranks."""
        for param in sorted(params, key=Tensor.numel, reverse=True):
            owner = self._elements.index(min(self._elements))
            self.owners[param] = owner
            self._elements[owner] += param.numel()

    def _own_part(self, group: dict) -> dict:
        """Return a group's settings with this rank's parameters."""
        own = [param for param in group["params"] if self.owners[param] == dist.get_rank()]
        return {**group, "params": own}

    def _show_settings(self) -> None:
        """Copy the settings that the inner optimizer added, for schedules."""
        for group, inner_group in zip(self.param_groups, self.inner.param_groups, strict=True):
            for name, value in inner_group.items():
                group.setdefault(name, value)
