"""Shard parameters, gradients and states; gather a layer when it computes.

This is FSDP (Zhao et al. 2023), or stage 3 of ZeRO (Rajbhandari et al. 2020). As with PyTorch's `fully_shard`, the
module's own parameters are the shards.

>>> sharded = FullySharded(network, compute_dtype=torch.bfloat16)  # doctest: +SKIP
>>> optimizer = torch.optim.AdamW(sharded.parameters())  # doctest: +SKIP
>>> loss(sharded(tokens), targets).backward()  # doctest: +SKIP
>>> sharded.finish_gradient_synchronization()  # doctest: +SKIP
>>> optimizer.step()  # doctest: +SKIP
"""

import functools
import weakref
from collections import Counter
from collections.abc import Iterator

import torch
from torch import Tensor, nn
from torch.autograd.graph import register_multi_grad_hook
from torch.utils import _pytree as pytree

from lib.parallel import collectives
from lib.parallel.shard import Shard


class FullySharded(nn.Module):
    """Keep a part of each parameter, and gather those of a layer while it computes.

    Layers are the children of `module`, and the items of children that only hold others, such as an `nn.ModuleList`. A
    layer is gathered before its forward and its backward pass, while the one before it computes, and freed after each:
    at most two are there. Its gradients are averaged and scattered after its backward pass. Parameters of no layer, or
    of several (tied weights), are there for the whole step. All ranks start with rank 0's weights and buffers.

    A parameter of two or more dimensions is sharded: `.data` is this rank's rows. Vectors, such as those of norms, are
    whole on every rank. After `finish_gradient_synchronization` every trained parameter has a `.grad` of the shape and
    type of its `.data`; those of vectors are equal on all ranks, and a parameter that had no gradient has zeros.
    Several backward passes add up. In a narrower `compute_dtype`, layers compute and travel in that type, as do
    gradients until they are averaged; inputs of layers are converted.

    On two ranks an fp32 step has the bits of one process that adds up the gradients of both halves of the batch. It
    agrees to rounding with one backward pass over the whole batch, with several backward passes, and on more ranks.

    The module must be on its device, its graph equal on all ranks, and a layer's weights read inside its own forward
    only."""

    def __init__(self, module: nn.Module, compute_dtype: torch.dtype | None = None):
        super().__init__()
        collectives.from_rank_0(module)
        self.module = module
        self.compute_dtype = compute_dtype
        self._layers = _layers(module, compute_dtype)
        self._order: list[_Layer] = []  # that of the last forward pass
        self._trace: list[_Layer] = []  # that of this one
        self._in_backward = False
        self._current: _Layer | None = None  # whose backward pass runs
        self._reducing: _Layer | None = None  # whose gradients are on their way
        for layer in self._layers:
            if layer.module is not module:
                before = functools.partial(self._before_forward, layer)
                layer.module.register_forward_pre_hook(before, with_kwargs=True)
                layer.module.register_forward_hook(functools.partial(self._after_forward, layer))

    def forward(self, *inputs, **named):
        if self._in_backward:
            self.finish_gradient_synchronization()
        # also what an interrupted step left
        self._free()
        self._order = self._trace
        self._trace = []
        # parameters of no single layer are there for the whole step
        for layer in self._layers:
            if layer.module is self.module:
                layer.gather()
                layer.wait()
        inputs, named = self._converted(inputs, named)
        output = self.module(*inputs, **named)
        if not torch.is_grad_enabled():
            self._free()
        for tensor in _differentiable(output):
            tensor.register_hook(functools.partial(FullySharded._begin_backward, weakref.proxy(self)))
        return output

    def finish_gradient_synchronization(self) -> None:
        """Average what is left, and give each parameter the gradient of its part."""
        if not self._in_backward:
            return
        # the first layer, those that got no gradient, and those that got more after they were left
        for layer in self._layers:
            if not layer.is_reduced or layer.has_gradients():
                self._reduce(layer)
        self._wait_for_gradients()
        self._free()
        for layer in self._layers:
            layer.is_reduced = False
            for shard in layer.shards:
                shard.show_average()
        self._in_backward = False
        self._current = None

    def gather_full_parameters(self) -> dict[str, Tensor]:
        """Return the plain module's state dict in its types; all ranks must call it."""
        whole = {shard.param: shard.gathered() for layer in self._layers for shard in layer.shards}
        state = {}
        for name, value in self.module.state_dict(keep_vars=True).items():
            # buffers have no shard
            state[name] = whole[value] if value in whole else value.detach().clone()
        return state

    def _converted(self, inputs: tuple, named: dict) -> tuple[tuple, dict]:
        """Return inputs in the type in which layers compute, however nested they are."""

        def convert(tensor: Tensor) -> Tensor:
            return tensor.to(self.compute_dtype) if tensor.is_floating_point() else tensor

        if self.compute_dtype is None:
            return inputs, named
        return pytree.tree_map_only(Tensor, convert, (inputs, named))

    def _free(self) -> None:
        for layer in self._layers:
            layer.free()

    def _before_forward(self, layer: "_Layer", module: nn.Module, inputs: tuple, named: dict) -> tuple[tuple, dict]:
        """Gather a layer and the next of the last forward pass; return its inputs."""
        layer.gather()
        if not self._in_backward:  # else a checkpoint computes it again
            place = len(self._trace)
            self._trace.append(layer)
            is_as_before = self._order[place : place + 1] == [layer]
            if is_as_before and place + 1 < len(self._order):
                self._order[place + 1].gather()
        layer.wait()
        return self._converted(inputs, named)

    def _after_forward(self, layer: "_Layer", module: nn.Module, inputs, output) -> None:
        """Free a layer, and prepare for its backward pass."""
        if self._in_backward:
            return
        tensors = _differentiable(output)
        if tensors:
            place = len(self._trace) - 1
            hook = functools.partial(FullySharded._before_backward, weakref.proxy(self), self._trace, place)
            register_multi_grad_hook(tensors, hook, mode="any")
        is_last = len(self._trace) == len(self._order)
        # the backward pass begins with the last layer, which can stay
        if not (tensors and is_last):
            layer.free()

    def _begin_backward(self, _: Tensor) -> None:
        """Set earlier gradients aside, since those to come are of whole parameters."""
        if not self._in_backward:
            self._in_backward = True
            for layer in self._layers:
                for shard in layer.shards:
                    shard.set_gradient_aside()

    def _before_backward(self, trace: list["_Layer"], place: int, gradient: Tensor) -> None:
        """Leave the layer whose backward pass ended, and gather this one and the next."""
        self._begin_backward(gradient)
        layer = trace[place]
        if self._current not in (None, layer):
            self._current.free()
            self._reduce(self._current)
        self._current = layer
        if layer.is_read_in_backward:
            layer.gather()
        if place > 0 and trace[place - 1].is_read_in_backward:
            trace[place - 1].gather()
        layer.wait()

    def _reduce(self, layer: "_Layer") -> None:
        """Begin to average a layer's gradients, once those before it are there."""
        self._wait_for_gradients()
        layer.is_reduced = True
        self._reducing = layer
        for shard in layer.shards:
            shard.reduce()

    def _wait_for_gradients(self) -> None:
        if self._reducing is not None:
            for shard in self._reducing.shards:
                shard.take_average()
        self._reducing = None


class _Layer:
    """Hold the shards of a module that computes at once."""

    def __init__(self, module: nn.Module, params: list[nn.Parameter], compute_dtype: torch.dtype | None):
        self.module = module
        self.shards = [Shard(param, compute_dtype or param.dtype) for param in params]
        self.is_read_in_backward = not isinstance(module, nn.Embedding)  # its gradient depends on the tokens alone
        self.is_reduced = False  # in this step

    def gather(self) -> None:
        for shard in self.shards:
            shard.gather()

    def wait(self) -> None:
        for shard in self.shards:
            shard.show_whole()

    def free(self) -> None:
        for shard in self.shards:
            shard.free()

    def has_gradients(self) -> bool:
        return any(shard.gradient is not None for shard in self.shards)


def _layers(module: nn.Module, compute_dtype: torch.dtype | None) -> list[_Layer]:
    """Return the layers, the whole module last, with parameters of no single layer."""
    modules = list(dict.fromkeys(_computing(module)))
    owners = Counter(param for layer in modules for param in layer.parameters())
    layers = []
    for layer in modules:
        own = [param for param in layer.parameters() if owners[param] == 1]
        layers.append(_Layer(layer, own, compute_dtype))
    rest = [param for param in module.parameters() if owners[param] != 1]
    layers.append(_Layer(module, rest, compute_dtype))
    return [layer for layer in layers if layer.shards]


def _computing(module: nn.Module) -> Iterator[nn.Module]:
    """Yield the children; of those without a forward pass, their children."""
    for child in module.children():
        if type(child).forward is nn.Module.forward:
            yield from _computing(child)
        else:
            yield child


def _differentiable(output) -> list[Tensor]:
    """Return the tensors of an output, however nested, that a gradient can reach."""
    tensors = [leaf for leaf in pytree.tree_leaves(output) if isinstance(leaf, Tensor)]
    return [tensor for tensor in tensors if tensor.requires_grad]
