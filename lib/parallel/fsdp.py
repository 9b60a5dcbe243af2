"""Shard parameters, gradients and optimizer state, and gather a layer when it computes.

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
import torch.distributed as dist
from torch import Tensor, nn
from torch.autograd.graph import register_multi_grad_hook
from torch.utils import _pytree as pytree

from lib.parallel import collectives


class FullySharded(nn.Module):
    """Keep a part of each parameter, and gather those of a layer while it computes.

    Layers are the children of `module`, and the items of children that only hold others, such as an `nn.ModuleList`. A
    layer is gathered before its forward and its backward pass, while the one before it computes, and freed after each:
    at most two are there. Its gradients are averaged and scattered after its backward pass. Parameters of no layer, or
    of several (tied weights), are there for the whole step. All ranks start with rank 0's weights and buffers.

    A parameter of two or more dimensions is sharded: `.data` is this rank's rows. Vectors, such as those of norms, are
    whole on every rank. After `finish_gradient_synchronization` every trained parameter has a `.grad` of the shape and
    type of its `.data`; those of vectors are equal on all ranks, and a parameter that had no gradient has zeros.
    Several backward passes add up, each finished here or by the next forward pass. In a narrower `compute_dtype`,
    layers compute and travel in that type, as do gradients until they are averaged; inputs are converted.

    On two ranks an fp32 step has the bits of one process that adds up the gradients of both halves of the batch, each
    of one backward pass. It agrees to rounding only where sums have another order: with one backward pass over the
    whole batch, whose products add up over all tokens; with several backward passes a step; on more ranks.

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
                layer.module.register_forward_pre_hook(functools.partial(self._before_forward, layer))
                layer.module.register_forward_hook(functools.partial(self._after_forward, layer))

    def forward(self, *inputs, **named):
        if self._in_backward:
            self.finish_gradient_synchronization()
        self._free()  # also what an interrupted step left
        self._order = self._trace
        self._trace = []
        for layer in self._layers:
            if layer.module is self.module:
                layer.gather()
                layer.wait()
        if self.compute_dtype is not None:
            inputs, named = pytree.tree_map_only(Tensor, self._converted, (inputs, named))
        output = self.module(*inputs, **named)
        if not torch.is_grad_enabled():
            self._free()
        for tensor in _differentiable(output):
            tensor.register_hook(functools.partial(FullySharded._begin_backward, weakref.proxy(self)))
        return output

    def finish_gradient_synchronization(self) -> None:
        """Wait until each gradient is the average over the ranks; leave the shards with their gradients."""
        if not self._in_backward:
            return
        for layer in self._layers:
            if not layer.is_reduced or layer.has_gradients():
                self._reduce(layer)
        self._wait_for_gradients()
        self._free()
        for layer in self._layers:
            layer.uses = 0
            layer.is_reduced = False
            for shard in layer.shards:
                shard.show_gradient()
        self._in_backward = False
        self._current = None

    def gather_full_parameters(self) -> dict[str, Tensor]:
        """Return the state dict of the plain module, in its own types. Every rank must call it."""
        whole = {}
        for layer in self._layers:
            for shard in layer.shards:
                whole[shard.param] = shard.gathered()
        state = {}
        for name, value in self.module.state_dict(keep_vars=True).items():
            state[name] = whole[value] if value in whole else value.detach().clone()
        return state

    def _apply(self, fn, recurse=True):
        raise RuntimeError("a sharded module cannot be moved or converted; do so before it is sharded")

    def _converted(self, tensor: Tensor) -> Tensor:
        return tensor.to(self.compute_dtype) if tensor.is_floating_point() else tensor

    def _free(self) -> None:
        for layer in self._layers:
            layer.free()

    def _before_forward(self, layer: "_Layer", *_) -> None:
        """Gather a layer, and the one that came after it in the last forward pass."""
        layer.gather()
        if not self._in_backward:  # else a checkpoint computes it again
            place = len(self._trace)
            self._trace.append(layer)
            is_as_before = self._order[place : place + 1] == [layer]
            if is_as_before and place + 1 < len(self._order):
                self._order[place + 1].gather()
        layer.wait()

    def _after_forward(self, layer: "_Layer", module: nn.Module, inputs, output) -> None:
        """Free a layer, and prepare for its backward pass."""
        if self._in_backward:
            return
        tensors = _differentiable(output)
        if tensors:
            layer.uses += 1
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
            self._leave(self._current)
        self._current = layer
        layer.uses -= 1
        if layer.is_read_in_backward:
            layer.gather()
        if place > 0 and trace[place - 1].is_read_in_backward:
            trace[place - 1].gather()
        layer.wait()

    def _leave(self, layer: "_Layer") -> None:
        layer.free()
        if layer.uses == 0:  # a layer may be used several times
            self._reduce(layer)

    def _reduce(self, layer: "_Layer") -> None:
        """Average and scatter the gradients of a layer, once those of the layer before it are there."""
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

    def __init__(self, module: nn.Module, shards: list["_Shard"]):
        self.module = module
        self.shards = shards
        self.is_read_in_backward = not isinstance(module, nn.Embedding)  # its gradient depends on the tokens alone
        self.uses = 0  # in forward passes whose backward passes are to come
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


class _Shard:
    """Hold this rank's rows of a parameter, and all of them while they are gathered.

    `param.data` is one or the other. Ranks hold equal blocks of rows; the last ones may have fewer, or none. A vector is
    one block that all ranks hold."""

    def __init__(self, param: nn.Parameter, dtype: torch.dtype):
        self.param = param
        self.shape = param.shape
        self.is_divided = param.dim() > 1
        values = param.data
        if param.dim() == 0:
            values = values.view(1)
        self.rows = len(values)
        blocks = 1
        rank = 0
        if self.is_divided:
            blocks = dist.get_world_size()
            rank = dist.get_rank()
        self.block = -(-self.rows // blocks)
        self.start = rank * self.block
        # a copy, so that the memory of the whole parameter can go
        own = values[self.start : self.start + self.block].clone(memory_format=torch.contiguous_format)
        self.own_rows = len(own)
        self.local = own.view(self.shape if param.dim() == 0 else own.shape)
        # its memory goes and comes back at the same tensor: views of it that the graph has saved stay good
        self.whole = values.new_empty((blocks * self.block, *self.shape[1:]), dtype=dtype)
        self.whole_bytes = self.whole.untyped_storage().nbytes()
        self.whole.untyped_storage().resize_(0)
        param.data = self.local
        self.gathering: collectives.Pending | None = None
        self.gradient: Tensor | None = None  # of the whole parameter, on this rank
        self.reducing: tuple[collectives.Pending, Tensor] | None = None
        self.average: Tensor | None = None  # of the ranks' gradients, of this rank's rows
        if param.requires_grad:
            # the collector does not see hooks of parameters: one that held this shard would keep it for ever
            param.register_post_accumulate_grad_hook(functools.partial(_Shard._collect, weakref.proxy(self)))

    def gather(self) -> None:
        """Begin to gather the parameter, unless it is there."""
        storage = self.whole.untyped_storage()
        if storage.nbytes() == 0:
            storage.resize_(self.whole_bytes)
            self.gathering = self._gather_into(self.whole)

    def show_whole(self) -> None:
        """Let the parameter be the whole one, once it is gathered; its memory may be missing, where nobody reads it."""
        if self.gathering is not None:
            self.gathering.wait()
            self.gathering = None
        self.param.data = self._without_padding(self.whole)

    def free(self) -> None:
        """Let the parameter be this rank's rows."""
        if self.gathering is not None:
            self.gathering.wait()
            self.gathering = None
        self.param.data = self.local
        self.whole.untyped_storage().resize_(0)

    def gathered(self) -> Tensor:
        """Return the whole parameter in its own type."""
        whole = torch.empty_like(self.whole, dtype=self.local.dtype)
        self._gather_into(whole).wait()
        return self._without_padding(whole)

    def set_gradient_aside(self) -> None:
        """Keep the gradient of earlier backward passes, to which this one adds."""
        self.average = self.param.grad
        self.param.grad = None

    def show_gradient(self) -> None:
        """Give the parameter, now this rank's rows, their gradient."""
        self.param.grad = self.average
        self.average = None

    def reduce(self) -> None:
        """Begin to average the gradient; a parameter without one counts as zero."""
        if not self.param.requires_grad:
            return
        if self.gradient is None:
            self.gradient = torch.zeros(self.shape, dtype=self.whole.dtype, device=self.whole.device)
        if self.is_divided:
            part = torch.empty((self.block, *self.shape[1:]), dtype=self.local.dtype, device=self.local.device)
            pending = collectives.scatter(part, self._with_padding(self.gradient))
            part = part[: self.own_rows]
        else:
            part = self.gradient.to(self.local.dtype).contiguous()
            pending = collectives.average(part)
        self.reducing = (pending, part)
        self.gradient = None

    def take_average(self) -> None:
        """Wait for the average, and add it to that of earlier backward passes."""
        if self.reducing is None:
            return
        pending, part = self.reducing
        self.reducing = None
        pending.wait()
        self.average = part if self.average is None else self.average + part

    @torch.no_grad()
    def _collect(self, param: nn.Parameter) -> None:
        """Take the gradient of the whole parameter from where that of this rank's rows will be."""
        if self.gradient is None:
            self.gradient = param.grad
        else:
            self.gradient += param.grad
        param.grad = None

    def _gather_into(self, whole: Tensor) -> collectives.Pending:
        """Write this rank's rows into `whole`, and begin to receive the others'."""
        whole[self.start : self.start + self.own_rows].view(self.local.shape).copy_(self.local)
        if self.is_divided:
            return collectives.gather(whole)
        return collectives.Pending([])

    def _without_padding(self, whole: Tensor) -> Tensor:
        return whole[: self.rows].view(self.shape)

    def _with_padding(self, gradient: Tensor) -> Tensor:
        if self.rows == len(self.whole):
            return gradient.contiguous()
        padded = gradient.new_zeros(self.whole.shape)
        padded[: self.rows] = gradient
        return padded


def _layers(module: nn.Module, compute_dtype: torch.dtype | None) -> list[_Layer]:
    """Return the layers, and one of the parameters that no layer has alone, whose module is the whole."""
    modules = list(dict.fromkeys(_computing(module)))
    owners = Counter(param for layer in modules for param in layer.parameters())
    layers = []
    for layer in modules:
        own = [param for param in layer.parameters() if owners[param] == 1]
        layers.append(_Layer(layer, _shards(own, compute_dtype)))
    rest = [param for param in module.parameters() if owners[param] != 1]
    layers.append(_Layer(module, _shards(rest, compute_dtype)))
    return [layer for layer in layers if layer.shards]


def _shards(params: list[nn.Parameter], compute_dtype: torch.dtype | None) -> list[_Shard]:
    return [_Shard(param, compute_dtype or param.dtype) for param in params]


def _computing(module: nn.Module) -> Iterator[nn.Module]:
    """Yield the children, and in place of those that have no forward pass of their own theirs."""
    for child in module.children():
        if type(child).forward is nn.Module.forward:
            yield from _computing(child)
        else:
            yield child


def _differentiable(output) -> list[Tensor]:
    """Return the tensors of an output, however nested, that a gradient can reach."""
    tensors = [leaf for leaf in pytree.tree_leaves(output) if isinstance(leaf, Tensor)]
    return [tensor for tensor in tensors if tensor.requires_grad]
