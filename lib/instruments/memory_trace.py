"""Tell what a training step saves, and what is alive at its memory peak."""

import contextlib
import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator

import pandas as pd
import torch
from torch import Tensor, nn

from lib.instruments.memory_timeline import follow
from lib.instruments.rounding import dtype_name

MIB = 2**20


def alive_at_peak(training) -> dict[str, list]:
    """Run one iteration, and return a table of `kind`, `module` and `part_mib` at its highest peak.

    `training` has a `module`, its `optimizer`, an `iteration`, and `before`, which frees what the last iteration left;
    one must have run, so that the optimizer has its states. Kinds are parameters, gradients, optimizer states, others
    (buffers and the batch), temporaries (of the backward pass and the optimizer) and activations, which were made
    before the backward pass; what it recomputes is temporary. Only activations have a module, the innermost one, with *
    for a layer's number and "loss" outside any. The parts add up to the peak of `peak_memory.peaks` on a CPU; on CUDA
    they lack cuBLAS's workspaces. Operations in a compiled graph cannot be followed."""
    training.before()
    parameters_bytes = _bytes(training.module.parameters())
    states_bytes = 0
    for state in training.optimizer.state.values():
        states_bytes += _bytes(state.values())
    with _innermost_module(training.module) as name_module:
        history = follow(training.iteration, lambda operator: name_module())

    activations: Counter[str] = Counter()
    gradients_bytes = 0
    temporaries_bytes = 0
    for allocation in history.at_peak():
        if allocation.phase == "forward":
            activations[allocation.function] += allocation.bytes
        elif allocation.phase == "backward" and allocation.freed is None:
            gradients_bytes += allocation.bytes
        else:
            temporaries_bytes += allocation.bytes
    rows = [
        ("parameters", "", parameters_bytes),
        ("gradients", "", gradients_bytes),
        ("optimizer states", "", states_bytes),
        ("temporaries", "", temporaries_bytes),
        # all other tensors that were there before, and that the iteration used
        ("others", "", history.bytes_before - parameters_bytes - states_bytes),
    ]
    for module, size in activations.items():
        rows.append(("activations", module, size))
    parts = pd.DataFrame(rows, columns=["kind", "module", "part_mib"])
    parts["part_mib"] /= MIB
    return parts.to_dict("list")


@contextlib.contextmanager
def saved_for_backward(model: nn.Module) -> Iterator[dict[str, dict[str, list]]]:
    """Yield a dict that gets `saved`: a table of the tensors that the block saves for a backward pass.

    A row has the `tensors` of one `module`, `shape` and `dtype` and their `saved_mib` together. A storage counts once,
    for the module that saves it first; parameters, which are there anyway, do not count."""
    metrics: dict[str, dict[str, list]] = {}
    rows: list[tuple[str, str, str, int]] = []
    seen = {parameter.untyped_storage()._cdata for parameter in model.parameters()}
    with _innermost_module(model) as name_module:

        def pack(tensor: Tensor) -> Tensor:
            storage = tensor.untyped_storage()
            if storage._cdata not in seen:
                seen.add(storage._cdata)
                shape = " × ".join(str(length) for length in tensor.shape)
                rows.append((name_module(), shape, dtype_name(tensor.dtype), storage.nbytes()))
            return tensor

        with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
            yield metrics
    saved = pd.DataFrame(rows, columns=["module", "shape", "dtype", "saved_mib"])
    saved["saved_mib"] /= MIB
    sums = saved.groupby(["module", "shape", "dtype"], sort=False)["saved_mib"].agg(tensors="count", saved_mib="sum")
    metrics["saved"] = sums.reset_index().to_dict("list")


def _bytes(tensors: Iterable[Tensor]) -> int:
    return sum(tensor.nbytes for tensor in tensors)


@contextlib.contextmanager
def _innermost_module(model: nn.Module) -> Iterator[Callable[[], str]]:
    """Yield a function that names the module whose forward pass runs, or returns "loss"."""
    running: list[str] = []
    hooks = []

    def leave(*_) -> None:
        running.pop()

    for name, module in model.named_modules():
        shown = re.sub(r"\.\d+", ".*", name) or type(model).__name__
        hooks.append(module.register_forward_pre_hook(lambda module, inputs, shown=shown: running.append(shown)))
        hooks.append(module.register_forward_hook(leave))
    try:
        yield lambda: running[-1] if running else "loss"
    finally:
        for hook in hooks:
            hook.remove()
