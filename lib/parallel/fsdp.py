"""Shard parameters, gradients and optimizer state, and gather a layer when it computes.

This is FSDP (Zhao et al. 2023), or stage 3 of ZeRO (Rajbhandari et al. 2020).

>>> sharded = FullySharded(network, compute_dtype=torch.bfloat16)  # doctest: +SKIP
>>> optimizer = torch.optim.AdamW(sharded.parameters())  # doctest: +SKIP
>>> loss(sharded(tokens), targets).backward()  # doctest: +SKIP
>>> sharded.finish_gradient_synchronization()  # doctest: +SKIP
>>> optimizer.step()  # doctest: +SKIP
"""

import functools
import weakref
from collections import Counter
from collections.abc import Iterator, Mapping

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.autograd.graph import register_multi_grad_hook
from torch.utils import _pytree as pytree

from lib.parallel import transfers


class FullySharded(nn.Module):
    """Keep a part of each layer as a flat fp32 tensor, and gather the layer while it computes.

    Layers are the children of `module`, and the items of those that are an `nn.ModuleList`. A layer is gathered before
    its forward and its backward pass, while the one before it computes, and freed after each: at most two are there.
    Its gradients are averaged and scattered after its backward pass. Parameters of no layer, or of several (tied
    weights), are gathered for the whole step. Rank 0's weights and buffers are the first of every rank.

    `parameters()` yields the shards, whose gradients are ready after `finish_gradient_synchronization`; a parameter
    without a gradient counts as zero. In a narrower `compute_dtype`, layers compute and travel in that type, as do
    gradients; inputs are converted. The module must be on its device, and its graph equal on all ranks."""

    def __init__(self, module: nn.Module, compute_dtype: torch.dtype | None = None):
        super().__init__()
        transfers.from_rank_0(module)
        self.module, self.compute_dtype = module, compute_dtype
        self._layers = _layers(module, compute_dtype or torch.float32)
        self._order: list[_Layer] = []  # that of the last forward pass
        self._trace: list[_Layer] = []  # that of this one
        self._backward, self._current, self._reducing = False, None, None
        for layer in self._layers:
            if layer.module is not module:
                layer.module.register_forward_pre_hook(functools.partial(self._before_forward, layer))
                layer.module.register_forward_hook(functools.partial(self._after_forward, layer))

    def forward(self, *inputs, **named):
        if self._backward:
            self.finish_gradient_synchronization()
        self._order, self._trace = self._trace, []
        for layer in self._throughout():
            layer.gather()
            layer.wait()
        if self.compute_dtype is not None:
            inputs, named = pytree.tree_map_only(Tensor, self._converted, (inputs, named))
        output = self.module(*inputs, **named)
        if not torch.is_grad_enabled():
            self._free()
        for tensor in _differentiable(output):
            tensor.register_hook(self._start_backward)
        return output

    def finish_gradient_synchronization(self) -> None:
        """Wait until each shard's gradient is the average over the ranks; free what is gathered."""
        if self._backward:
            for layer in self._layers:
                if not layer.reduced or any(shard.gradients is not None for shard in layer.shards):
                    self._reduce(layer)
            self._wait_for_gradients()
        self._backward, self._current = False, None
        self._free()

    def named_parameters(self, prefix: str = "", recurse: bool = True, remove_duplicate: bool = True) -> Iterator:
        """Yield the shards, by the names of their layers."""
        for shard in self._shards():
            yield f"{prefix}{'.' if prefix else ''}{shard.name}", shard.master

    def gather_full_parameters(self) -> dict[str, Tensor]:
        """Return the state dict of the plain module, in fp32. Every rank must call it."""
        whole = {}
        for shard in self._shards():
            whole |= dict(zip(map(id, shard.params), shard.gathered_master(), strict=True))
        state = self.module.state_dict(keep_vars=True)
        return {name: whole[id(value)] if id(value) in whole else value.clone() for name, value in state.items()}

    def state_dict(self, *_, **__) -> dict[str, Tensor]:
        return self.gather_full_parameters()

    @torch.no_grad()
    def load_state_dict(self, state_dict: Mapping[str, Tensor]) -> None:
        """Load the state dict of the plain module. Raises KeyError for a missing name."""
        self._free()
        names = {id(value): name for name, value in self.module.state_dict(keep_vars=True).items()}
        for shard in self._shards():
            shard.load([state_dict[names[id(param)]] for param in shard.params])
        for name, value in self.module.named_buffers():
            if name in state_dict:
                value.copy_(state_dict[name])

    def _apply(self, fn, recurse=True):
        raise RuntimeError("a sharded module cannot be moved or converted; do so before it is sharded")

    def _shards(self) -> list["_Shard"]:
        return [shard for layer in self._layers for shard in layer.shards]

    def _throughout(self) -> list["_Layer"]:
        return [layer for layer in self._layers if layer.module is self.module]

    def _converted(self, tensor: Tensor) -> Tensor:
        return tensor.to(self.compute_dtype) if tensor.is_floating_point() else tensor

    def _before_forward(self, layer: "_Layer", *_) -> None:
        layer.gather()
        if not self._backward:  # else it is computed again, for the backward pass
            place = len(self._trace)
            self._trace.append(layer)
            if self._order[place : place + 1] == [layer] and place + 1 < len(self._order):
                self._order[place + 1].gather()
        layer.wait()

    def _after_forward(self, layer: "_Layer", module: nn.Module, inputs, output) -> None:
        if self._backward:
            return
        tensors = _differentiable(output)
        if tensors:
            layer.uses += 1
            before = functools.partial(self._before_backward, self._trace, len(self._trace) - 1)
            register_multi_grad_hook(tensors, before, mode="any")
        if not tensors or len(self._trace) != len(self._order):  # the last layer is about to compute again
            layer.free()

    def _start_backward(self, _) -> None:
        self._backward = True

    def _before_backward(self, trace: list["_Layer"], place: int, _) -> None:
        """Leave the layer whose backward pass ended, and gather this one and the next."""
        self._backward, layer = True, trace[place]
        if self._current not in (None, layer):
            self._leave(self._current)
        self._current = layer
        layer.uses -= 1
        for each in trace[place], *trace[place - 1 : place]:
            if each.read_in_backward:
                each.gather()
        layer.wait()

    def _leave(self, layer: "_Layer") -> None:
        layer.free()
        if layer.uses == 0:  # a layer may be used several times
            self._reduce(layer)

    def _reduce(self, layer: "_Layer") -> None:
        """Average and scatter the gradients of a layer, once those of the layer before it are there."""
        self._wait_for_gradients()
        layer.reduced, self._reducing = True, layer
        for shard in layer.shards:
            shard.reduce()

    def _wait_for_gradients(self) -> None:
        if self._reducing is not None:
            for shard in self._reducing.shards:
                shard.take_gradient()
        self._reducing = None

    def _free(self) -> None:
        for layer in self._layers:
            layer.free()
            layer.uses, layer.reduced = 0, False


class _Layer:
    """Hold the shards of a module: one of what is trained, and one of what is frozen."""

    def __init__(self, name: str, module: nn.Module, shards: list["_Shard"]):
        self.name, self.module, self.shards = name, module, shards
        self.read_in_backward = not isinstance(module, nn.Embedding)  # its gradient depends on the tokens alone
        self.uses, self.reduced = 0, False

    def gather(self) -> None:
        for shard in self.shards:
            shard.gather()

    def wait(self) -> None:
        for shard in self.shards:
            shard.wait()

    def free(self) -> None:
        for shard in self.shards:
            shard.free()


class _Shard:
    """Hold this rank's part of some parameters, and all of them while they are gathered.

    The parameters are views of `whole`, whose memory is there only then."""

    def __init__(self, name: str, params: list[nn.Parameter], dtype: torch.dtype):
        self.name, self.params = name, params
        self.rank, self.world = dist.get_rank(), dist.get_world_size()
        self.numels = [param.numel() for param in params]
        self.numel = sum(self.numels)
        self.whole = torch.empty(-(-self.numel // self.world) * self.world, dtype=dtype, device=params[0].device)
        part = torch.empty(len(self.whole) // self.world, device=self.whole.device)
        self.master = nn.Parameter(part, requires_grad=params[0].requires_grad)
        self.load(params)
        # a hook that held this shard would be a cycle that no collector sees
        collect = functools.partial(type(self)._collect, weakref.proxy(self))
        for param, part in zip(params, self._views(self.whole), strict=True):
            param.data = part
            if param.requires_grad:
                param.register_post_accumulate_grad_hook(collect)
        self.places = {param: place for place, param in enumerate(params)}
        self.whole_bytes = self.whole.nbytes
        self.pending, self.reducing, self.gradients, self.seen = None, None, None, set()
        self.whole.untyped_storage().resize_(0)

    def gather(self) -> None:
        """Begin to gather the parameters, unless they are there."""
        storage = self.whole.untyped_storage()
        if storage.nbytes():
            return
        storage.resize_(self.whole_bytes)
        self._own(self.whole).copy_(self.master.detach())
        self.pending = transfers.gather(self.whole)

    def wait(self) -> None:
        if self.pending is not None:
            self.pending.wait()
            self.pending = None

    def free(self) -> None:
        self.wait()
        self.whole.untyped_storage().resize_(0)

    def reduce(self) -> None:
        """Begin to average the gradients and to scatter them; a parameter without one counts as zero."""
        if not self.master.requires_grad:
            return
        if self.gradients is None:
            self.gradients = torch.zeros_like(self.whole)
        else:
            self.gradients[self.numel :] = 0
            for place, view in enumerate(self._views(self.gradients)):
                if place not in self.seen:
                    view.zero_()
        part = torch.empty_like(self.master, requires_grad=False)
        pending = transfers.scatter(part, self.gradients)
        self.reducing, self.gradients, self.seen = (pending, part), None, set()

    @torch.no_grad()
    def take_gradient(self) -> None:
        """Wait for the average and add it to the gradient of the shard."""
        if self.reducing is not None:
            pending, part = self.reducing
            pending.wait()
            self.master.grad = part if self.master.grad is None else self.master.grad.add_(part)
            self.reducing = None

    def gathered_master(self) -> list[Tensor]:
        """Return all parameters in fp32."""
        whole = torch.empty(self.whole.numel(), device=self.master.device)
        self._own(whole).copy_(self.master.detach())
        transfers.gather(whole).wait()
        return [part.clone() for part in self._views(whole)]

    @torch.no_grad()
    def load(self, params: list[Tensor]) -> None:
        """Copy this rank's part of some values."""
        flat = torch.cat([param.detach().reshape(-1).to(self.master) for param in params])
        own = flat[self.rank * len(self.master) : (self.rank + 1) * len(self.master)]
        self.master.zero_()
        self.master[: len(own)] = own

    @torch.no_grad()
    def _collect(self, param: nn.Parameter) -> None:
        """Move a parameter's gradient to the others'."""
        if self.gradients is None:
            self.gradients = torch.empty_like(self.whole)
        place = self.places[param]
        view = self._views(self.gradients)[place]
        view.add_(param.grad) if place in self.seen else view.copy_(param.grad)
        self.seen.add(place)
        param.grad = None

    def _own(self, whole: Tensor) -> Tensor:
        return whole.view(self.world, -1)[self.rank]

    def _views(self, whole: Tensor) -> list[Tensor]:
        parts = whole[: self.numel].split(self.numels)
        return [part.view(param.shape) for part, param in zip(parts, self.params, strict=True)]


def _layers(module: nn.Module, dtype: torch.dtype) -> list[_Layer]:
    """Return the layers, and one of the parameters that no layer has alone."""
    children = {}
    for name, child in module.named_children():
        inner = child.named_children() if isinstance(child, nn.ModuleList) else [("", child)]
        children |= {f"{name}.{place}".rstrip("."): layer for place, layer in inner}
    owners = Counter(param for child in children.values() for param in child.parameters())
    found = {name: [param for param in child.parameters() if owners[param] == 1] for name, child in children.items()}
    found["rest"] = [param for param in module.parameters() if owners[param] != 1]
    layers = []
    for name, params in found.items():
        trained, frozen = ([param for param in params if param.requires_grad is kind] for kind in (True, False))
        kinds = {name: trained, f"{name}.frozen": frozen}
        shards = [_Shard(full_name, kind, dtype) for full_name, kind in kinds.items() if kind]
        if shards:
            layers.append(_Layer(name, children.get(name, module), shards))
    return layers


def _differentiable(output) -> list[Tensor]:
    return [tensor for tensor in pytree.tree_leaves(output) if isinstance(tensor, Tensor) and tensor.requires_grad]
