"""Share the work and the state of an optimizer among ranks (ZeRO stage 1, Rajbhandari et al. 2020).

>>> optimizer = ShardedOptimizer(network.parameters(), AdamW, hyper=Hyper(lr=1e-3))  # doctest: +SKIP
"""

import copy
from collections.abc import Callable

import torch
import torch.distributed as dist
from torch import Tensor, nn

from lib.parallel import transfers


class ShardedOptimizer(torch.optim.Optimizer):
    """Run an optimizer on this rank's share of the parameters, then send them to all ranks.

    Gradients must be averaged before. Each parameter belongs to one rank: the largest first, to the rank with the
    fewest elements. Those of a rank move into one flat tensor, which takes one broadcast; a parameter that shares its
    memory with another tensor stays in place and is sent by itself. Parameters that require gradients only later join
    at the next step. `state` holds this rank's share."""

    def __init__(self, params, optimizer_cls: type[torch.optim.Optimizer], **kwargs):
        self.owners, self.inner = {}, None
        self._numel = [0] * dist.get_world_size()
        self._sent: list[tuple[int, Tensor]] = []  # each tensor to send, and its owner
        super().__init__(params, {})
        self.inner = optimizer_cls([self._own(group, []) for group in self.param_groups], **kwargs)
        self.defaults = self.inner.defaults
        self._complete_groups()
        self._join()

    def add_param_group(self, param_group: dict) -> None:
        """Add a group; its missing settings are those of the first construction."""
        super().add_param_group(param_group)
        if self.inner is not None:
            self.inner.add_param_group(self._own(self.param_groups[-1], []))
            self._complete_groups()
            self._join()

    def step(self, closure: Callable[[], float] | None = None) -> float | None:
        """Update this rank's parameters and receive the others'. Returns what `closure` returns, called first."""
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        self._join()
        for group, inner in zip(self.param_groups, self.inner.param_groups, strict=True):
            inner.update(self._own(group, inner["params"]))
        self.inner.step()
        for pending in [transfers.broadcast(tensor, owner) for owner, tensor in self._sent]:
            pending.wait()
        return loss

    def state_dict(self) -> dict:
        """Return the state of all ranks, as an optimizer that is not sharded would.

        Every rank must call it, and gets all of it in the memory of its CPU."""
        params = self._params()
        own = {index: self.state[param] for index, param in enumerate(params) if param in self.state}
        shapes: list = [None] * dist.get_world_size()
        dist.all_gather_object(
            shapes,
            {index: {name: _as_shape(value) for name, value in state.items()} for index, state in own.items()},
        )
        state = {}
        for owner, others in enumerate(shapes):
            for index, entries in others.items():
                state[index] = {}
                for name, value in entries.items():
                    if _is_meta(value):
                        mine = owner == dist.get_rank()
                        tensor = own[index][name] if mine else torch.empty_like(value, device=params[index].device)
                        transfers.broadcast(tensor, owner).wait()
                        value = tensor.to("cpu", copy=True)
                    state[index][name] = value
        packed = super().state_dict()["param_groups"]
        return {"state": dict(sorted(state.items())), "param_groups": packed}

    def load_state_dict(self, state_dict: dict) -> None:
        """Load a state of any number of ranks, or of an optimizer that is not sharded."""
        saved = state_dict["param_groups"]
        if (got := [len(group["params"]) for group in saved]) != (
            expected := [len(group["params"]) for group in self.param_groups]
        ):
            raise ValueError(f"param_groups: got {got} parameters, expected {expected}")
        self._join()
        indices = [index for group in saved for index in group["params"]]
        at = dict(zip(self._params(), indices, strict=True))
        groups = [
            self._own(group, [at[param] for param in inner["params"]])
            for group, inner in zip(saved, self.inner.param_groups, strict=True)
        ]
        own = {index for group in groups for index in group["params"]}
        state = {index: copy.deepcopy(value) for index, value in state_dict["state"].items() if index in own}
        self.inner.load_state_dict({"state": state, "param_groups": groups})
        self.state = self.inner.state
        for group, inner in zip(self.param_groups, self.inner.param_groups, strict=True):
            group.update({name: value for name, value in inner.items() if name != "params"})

    def _params(self) -> list[nn.Parameter]:
        return [param for group in self.param_groups for param in group["params"]]

    def _own(self, group: dict, params: list) -> dict:
        """Return a group's settings with other parameters."""
        return {name: value for name, value in group.items() if name != "param_names"} | {"params": params}

    def _complete_groups(self) -> None:
        """Show the settings that the inner optimizer added, for schedulers of the learning rate."""
        for group, inner in zip(self.param_groups, self.inner.param_groups, strict=True):
            for name, value in inner.items():
                group.setdefault(name, value)
        self.state = self.inner.state

    @torch.no_grad()
    def _join(self) -> None:
        """Give each parameter that requires gradients and has no owner to a rank."""
        new = [param for param in self._params() if param.requires_grad and param not in self.owners]
        if not new:
            return
        for param in sorted(new, key=torch.numel, reverse=True):  # sorting keeps the order of equals on all ranks
            owner = self._numel.index(min(self._numel))
            self.owners[param] = owner
            self._numel[owner] += param.numel()
        for group, inner in zip(self.param_groups, self.inner.param_groups, strict=True):
            inner["params"] = [param for param in group["params"] if self.owners.get(param) == dist.get_rank()]
        flat: dict[tuple, list[nn.Parameter]] = {}
        for param in new:
            key = (self.owners[param], param.dtype, param.device)
            if param.is_contiguous() and param.untyped_storage().nbytes() == param.nbytes:
                flat.setdefault(key, []).append(param)
            else:
                self._sent.append((self.owners[param], param.detach()))
        for (owner, dtype, device), params in flat.items():
            numels = [param.numel() for param in params]
            buffer = torch.empty(sum(numels), dtype=dtype, device=device)
            for param, part in zip(params, buffer.split(numels), strict=True):
                part.copy_(param.view(-1))
                param.data = part.view(param.shape)
            self._sent.append((owner, buffer))


def _as_shape(value):
    """Return a tensor without its values, which travel by themselves; a single number as it is."""
    if not isinstance(value, Tensor):
        return value
    return value.to("meta") if value.dim() else value.cpu()


def _is_meta(value) -> bool:
    return isinstance(value, Tensor) and value.is_meta
