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

    Gradients must be averaged before. Each parameter belongs to one rank. They are dealt out from the largest to the
    smallest, each to the rank with the fewest elements. Every number has the bits that one process would compute.
    `state` and `state_dict` hold this rank's share, which the same rank of as many can load again."""

    def __init__(self, params, optimizer_cls: type[torch.optim.Optimizer], **kwargs):
        # `super().__init__` calls add_param_group, which needs these two
        self.owners: dict[nn.Parameter, int] = {}  # the rank that updates each parameter
        self._elements = [0] * dist.get_world_size()  # the number of elements that each rank owns
        # it is made with all parameters, since some optimizers look at shapes; it has defaults for what `kwargs` lack
        self.inner = optimizer_cls(params, **kwargs)
        super().__init__([dict(group) for group in self.inner.param_groups], self.inner.defaults)
        self.inner.param_groups = self._own_groups()
        self.state = self.inner.state

    def __getstate__(self) -> dict:
        """Return what copies keep."""
        own = {name: getattr(self, name) for name in ("owners", "_elements", "inner")}
        return super().__getstate__() | own

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
        # an optimizer may keep a state in its groups
        for group, own_group in zip(self.param_groups, self.inner.param_groups, strict=True):
            group.update(own_group | {"params": group["params"]})
        started = [collectives.broadcast(param.detach(), owner) for param, owner in self.owners.items()]
        for work in started:
            work.wait()
        return loss

    def state_dict(self) -> dict:
        """Return this rank's share, marked by the rank and the number of ranks."""
        return super().state_dict() | {"rank": dist.get_rank(), "world": dist.get_world_size()}

    def load_state_dict(self, state_dict: dict) -> None:
        """Load this rank's share, or the state of one process.

        Raises ValueError if the groups differ, or for another rank's share."""
        rank = state_dict.get("rank", dist.get_rank())
        world = state_dict.get("world", dist.get_world_size())
        if (rank, world) != (dist.get_rank(), dist.get_world_size()):
            own = f"rank {dist.get_rank()} of {dist.get_world_size()}"
            raise ValueError(f"state_dict: got the share of rank {rank} of {world}, expected that of {own}")
        # some optimizers keep states of another type than the parameter's
        self.inner.param_groups = [dict(group) for group in self.param_groups]
        self.inner.load_state_dict(state_dict)
        self.param_groups = self.inner.param_groups
        self.state = self.inner.state
        for param, owner in self.owners.items():
            if owner != dist.get_rank():
                self.state.pop(param, None)
        self.inner.param_groups = self._own_groups()

    def _own_groups(self) -> list[dict]:
        """Return the groups' settings with this rank's parameters."""
        groups = []
        for group in self.param_groups:
            own = [param for param in group["params"] if self.owners[param] == dist.get_rank()]
            groups.append({**group, "params": own})
        return groups
