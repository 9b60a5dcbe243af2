"""Shard parameters, gradients and states; gather a layer when it computes.

This is FSDP (Zhao et al. 2023), or stage 3 of ZeRO (Rajbhandari et al. 2020). As with PyTorch's `fully_shard`, the
module's own parameters are the shards.

>>> sharded = FullySharded(network, compute_dtype=torch.bfloat16)  # doctest: +SKIP
>>> optimizer = torch.optim.AdamW(sharded.parameters())  # doctest: +SKIP
>>> loss(sharded(tokens), targets).backward()  # doctest: +SKIP
>>> sharded.finish_gradient_synchronization()  # doctest: +SKIP
>>> optimizer.step()  # doctest: +SKIP
"""

import dataclasses
import functools
import itertools
import weakref
from collections import Counter
from collections.abc import Iterator

import torch
from torch import Tensor, nn
from torch.autograd import Variable
from torch.autograd.graph import register_multi_grad_hook
from torch.utils import _pytree as pytree

from lib.parallel import collectives
from lib.parallel.shard import Shard


class FullySharded(nn.Module):
    """Keep a part of each parameter, and gather those of a layer while it computes.

    Layers are the children of `module`, and the items of children that only hold others, such as an `nn.ModuleList`. A
    layer is gathered before its forward and its backward pass, while the one before it computes, and freed after each:
    at most two are there. Its gradients are averaged and scattered after its backward pass. If layers compute in
    another order than they are listed, the result is right, but fewer transfers overlap and more layers can be there.
    While a checkpoint of several layers computes them again, three are there. Layers may be compiled, not the wrapper.
    Parameters of no layer, or of several (tied weights), are there for the whole step. All ranks start with rank 0's
    weights and buffers.

    A parameter of two or more dimensions is sharded: `.data` is this rank's rows. Vectors, such as those of norms, are
    whole on every rank. After `backward` a parameter has a `.grad` of the shape and type of its `.data`; those of
    vectors are equal on all ranks. After `finish_gradient_synchronization` a parameter that had no gradient has zeros.
    Several passes add up, each a forward and a backward pass; one that fails half-way drops all gradients. All ranks
    must call `torch.nn.utils.clip_grad_norm_` or GradScaler together, which then treat all alike.

    In a narrower `compute_dtype`, layers compute and travel in that type, as do gradients of matrices until they are
    averaged; those of vectors are averaged in their own type. Inputs of layers are converted.

    On two ranks an fp32 step has the bits of one process that averages the gradients of both halves of the batch. It
    agrees to rounding with one backward pass over the whole batch, with several backward passes, and on more ranks.

    The module must be on its device, and its graph must be equal on all ranks. A layer's weights may be read inside its
    own forward pass only. With tied weights, no other forward pass may run between a forward pass and its backward.

    Raises ValueError for a module that is wrapped already, and TypeError for a layer that returns a dataclass. Raises
    RuntimeError for a parameter that its layer changes in place, and for a reentrant checkpoint of a layer, which would
    keep it gathered."""

    def __init__(self, module: nn.Module, compute_dtype: torch.dtype | None = None):
        super().__init__()
        if any(hasattr(part, "in_shards") for part in module.modules()):
            raise ValueError("module: got one whose parameters are shards, expected one that is wrapped once")
        for part in module.modules():
            part.in_shards = True
        collectives.from_rank_0(module)
        self.module = module
        self.compute_dtype = compute_dtype
        # during a backward pass, the layer whose gradient came last
        self._backward_place: int | None = None
        self._without_grad: set[int] = set()  # layers whose last forward pass kept no graph
        self._layers: list[list[Shard]] = []
        layers = list(dict.fromkeys(_computing(module)))
        users = Counter(param for layer in layers for param in layer.parameters())
        for layer in layers:
            own = [param for param in layer.parameters() if users[param] == 1]
            if own:
                place = len(self._layers)
                layer.register_forward_pre_hook(functools.partial(self._before_forward, place), with_kwargs=True)
                layer.register_forward_hook(functools.partial(self._after_forward, place))
                # an embedding's backward pass reads the tokens, not the weights
                self._layers.append(self._sharded(own, is_read_in_backward=not isinstance(layer, nn.Embedding)))
        # in no layer, or in several
        rest = [param for param in module.parameters() if users[param] != 1]
        self._rest = self._sharded(rest, is_read_in_backward=True)
        self._shards = list(itertools.chain(self._rest, *self._layers))

    def forward(self, *inputs, **named):
        if torch._C._current_graph_task_id() != -1:
            raise RuntimeError("checkpoint: got the wrapper inside a backward pass, expected its layers")
        if self._backward_place is not None:
            self._drop_backward()
        # an interrupted step may have left whole parameters
        self._free()
        for shard in self._rest:
            shard.gather()
        for shard in self._rest:
            shard.show_whole()
        inputs, named = self._converted(inputs, named)
        output = self.module(*inputs, **named)
        if not torch.is_grad_enabled():
            self._free()
        # what is changed in place from now on is this rank's rows
        for shard in self._shards:
            shard.show_own()
        self._watch(output, len(self._layers))
        return output

    def finish_gradient_synchronization(self) -> None:
        """Give zeros to parameters without a gradient, as `ddp` does."""
        for shard in self._shards:
            if shard.param.grad is None and shard.param.requires_grad:
                shard.gradient = torch.zeros_like(shard.param)
                shard.show_gradient()

    def clip_grad_norm_(self, max_norm: float, norm_type: float = 2.0) -> Tensor:
        """Clip gradients as torch's does; return the norm before."""
        return nn.utils.clip_grad_norm_(self.parameters(), max_norm, norm_type)

    def gather_full_parameters(self) -> dict[str, Tensor]:
        """Return the plain module's state dict in its types; all ranks must call it."""
        whole = {shard.param: shard.gathered() for shard in self._shards}
        state = {}
        for name, value in self.module.state_dict(keep_vars=True).items():
            # buffers have no shard
            state[name] = whole[value] if value in whole else value.detach().clone()
        return state

    def load_full_parameters(self, state: dict[str, Tensor]) -> None:
        """Load the plain module's state dict.

        Raises ValueError for names or shapes that differ."""
        shards = {shard.param: shard for shard in self._shards}
        own = self.module.state_dict(keep_vars=True)
        if different := own.keys() ^ state.keys():
            raise ValueError(f"state: got or lacks {', '.join(sorted(different))}, expected the names of the module")
        for name, value in own.items():
            whole = shards[value].whole if value in shards else value
            if state[name].shape != whole.shape:
                raise ValueError(f"{name}: got {tuple(state[name].shape)}, expected {tuple(whole.shape)}")
        for name, value in own.items():
            if value in shards:
                shards[value].load(state[name])
            else:
                value.data.copy_(state[name])

    def _sharded(self, params: list[nn.Parameter], is_read_in_backward: bool) -> list[Shard]:
        return [Shard(param, self.compute_dtype or param.dtype, is_read_in_backward) for param in params]

    def _converted(self, inputs: tuple, named: dict) -> tuple[tuple, dict]:
        """Return inputs in the type in which layers compute, however nested they are."""

        def convert(tensor: Tensor) -> Tensor:
            return tensor.to(self.compute_dtype) if tensor.is_floating_point() else tensor

        if self.compute_dtype is None:
            return inputs, named
        return pytree.tree_map_only(Tensor, convert, (inputs, named))

    def _free(self) -> None:
        for shard in self._shards:
            shard.free()

    def _reduce(self, shards: list[Shard]) -> None:
        """Begin to average gradients, once those on their way are there."""
        for shard in self._shards:
            shard.take_average()
        for shard in shards:
            shard.reduce()

    def _end_backward(self) -> None:
        """Average what is left, and give each parameter the gradient of its part."""
        self._backward_place = None
        self._reduce(self._shards)
        for shard in self._shards:
            shard.take_average()
            shard.free()
            shard.show_gradient()

    def _drop_backward(self) -> None:
        """Leave a backward pass that failed half-way, without any gradient."""
        self._backward_place = None
        for shard in self._shards:
            shard.take_average()
            shard.gradient = None
            shard.param.grad = None

    @torch.compiler.disable
    def _before_forward(self, place: int, module: nn.Module, inputs: tuple, named: dict) -> tuple[tuple, dict]:
        """Gather a layer and begin with the next; return its inputs."""
        near = self._layers[place : place + 2]
        if self._backward_place is not None:  # a checkpoint computes it again
            near = near[:1]
            if place in self._without_grad and torch.is_grad_enabled():
                # the graph would begin here, and no hook would free the layer
                raise RuntimeError("checkpoint: got use_reentrant=True, expected use_reentrant=False")
        elif torch.is_grad_enabled():
            self._without_grad.discard(place)
        else:
            self._without_grad.add(place)
        for shard in itertools.chain(*near):
            shard.gather()
        for shard in near[0]:
            shard.show_whole()
        return self._converted(inputs, named)

    @torch.compiler.disable
    def _after_forward(self, place: int, module: nn.Module, inputs, output) -> None:
        """Free a layer, unless its backward pass comes next."""
        if self._backward_place is None:
            # the backward pass begins with the last layer, which can stay
            is_next = self._watch(output, place) and place == len(self._layers) - 1
        else:
            is_next = place == self._backward_place
        if not is_next:
            for shard in self._layers[place]:
                shard.free()

    def _watch(self, output, place: int) -> bool:
        """Prepare for the backward pass of a layer; return False if there is none."""
        tensors = _differentiable(output)
        if tensors:
            # a proxy, as in `ddp`: the garbage collector cannot look into a hook
            hook = functools.partial(FullySharded._before_backward, weakref.proxy(self), place)
            register_multi_grad_hook(tensors, hook, mode="any")
        return bool(tensors)

    def _before_backward(self, place: int, gradient: Tensor) -> None:
        """Free the layer after this one, gather this one and the one before.

        The place after the last layer is that of the wrapper's output."""
        if self._backward_place is None:
            # as PyTorch's: gradients are there when `backward` returns
            Variable._execution_engine.queue_callback(self._end_backward)
            for shard in self._shards:
                shard.set_gradient_aside()
            for shard in self._rest:
                shard.gather()
                shard.show_whole()
        self._backward_place = place
        if place + 1 < len(self._layers):
            following = self._layers[place + 1]
            for shard in following:
                shard.free()
            self._reduce(following)
        near = self._layers[max(0, place - 1) : place + 1]
        for shard in itertools.chain(*reversed(near)):
            if shard.is_read_in_backward:
                shard.gather()
        if place < len(self._layers):
            for shard in self._layers[place]:
                shard.show_whole()


def _computing(module: nn.Module) -> Iterator[nn.Module]:
    """Yield the children; of those without a forward pass, their children."""
    for child in module.children():
        if type(child).forward is nn.Module.forward:
            yield from _computing(child)
        else:
            yield child


def _differentiable(output) -> list[Tensor]:
    """Return the tensors of an output, however nested, that a gradient can reach."""
    leaves = pytree.tree_leaves(output)
    for leaf in leaves:
        if dataclasses.is_dataclass(leaf):
            raise TypeError(f"output: got {type(leaf).__name__}, expected tensors in lists, tuples and dicts")
    tensors = [leaf for leaf in leaves if isinstance(leaf, Tensor)]
    # a view that is changed in place loses its hooks, and its base keeps them; a parameter would gather them
    tensors += [tensor._base for tensor in tensors if tensor._is_view() and not tensor._base.is_leaf]
    return [tensor for tensor in tensors if tensor.requires_grad]
