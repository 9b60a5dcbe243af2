"""Tell what a training step saves, and what is alive at its memory peak."""

import contextlib
import math
import re
from collections.abc import Callable, Iterable, Iterator

import pandas as pd
from torch import Tensor, nn
from torch.autograd.graph import saved_tensors_hooks

from lib.instruments import peak_memory
from lib.instruments.live_memory import identity
from lib.instruments.memory_timeline import History, follow
from lib.instruments.peak_memory import MIB
from lib.instruments.rounding import dtype_name


def trace(training, device: str, count: int) -> dict:
    """Return the peaks and tables that tell the memory of a training step.

    They are those of `peak_memory.peaks` and `History.record_tables`, and a table `alive` of what is alive at the peak.
    `training` has a `module`, its `optimizer`, an `iteration`, and `before`, which frees what the last iteration left;
    one must have run, so that the optimizer has its states. A CPU runs one iteration for all of it, since it is slow; a
    GPU runs a second one, whose peaks its allocator counts. Operations in a compiled graph cannot be followed."""
    training.before()
    with _innermost_module(training.module) as module_name:
        history = follow(training.iteration, module_name)
    if device == "cpu":
        metrics = peak_memory.in_mib(history.peaks())
    else:
        training.before()
        metrics = peak_memory.peaks(training.iteration, device)
    return metrics | history.record_tables(count) | {"alive": _alive_at_peak(training, history)}


def _alive_at_peak(training, history: History) -> dict[str, list]:
    """Return a table of `kind`, `module` and `part_mib` at an iteration's peak.

    Kinds are parameters, gradients, optimizer states, others (buffers and the batch), temporaries (of the backward pass
    and the optimizer) and activations, which were made before the backward pass; what it recomputes is temporary. Only
    activations have a module. The parts add up to the peak on a CPU; on CUDA they lack cuBLAS's workspaces."""
    parameters_bytes = _bytes(training.module.parameters())
    states_bytes = 0
    for state in training.optimizer.state.values():
        states_bytes += _bytes(state.values())
    made = history.at_peak()
    activations = made[made["phase"] == "forward"].groupby("module", sort=False)["bytes"].sum()
    # of all that the backward pass makes, the gradients alone stay
    gradients_bytes = made.loc[(made["phase"] == "backward") & (made["freed"] == math.inf), "bytes"].sum()
    rows = [
        ("parameters", "", parameters_bytes),
        ("gradients", "", gradients_bytes),
        ("optimizer states", "", states_bytes),
        ("temporaries", "", made["bytes"].sum() - activations.sum() - gradients_bytes),
        # all other tensors that were there before, and that the iteration used
        ("others", "", history.bytes_before - parameters_bytes - states_bytes),
    ]
    for module, size in activations.items():
        rows.append(("activations", module, size))
    parts = pd.DataFrame(rows, columns=["kind", "module", "part_mib"])
    parts["part_mib"] /= MIB
    return parts.to_dict("list")


def _bytes(tensors: Iterable[Tensor]) -> int:
    return sum(tensor.nbytes for tensor in tensors)


@contextlib.contextmanager
def saved_for_backward(model: nn.Module) -> Iterator[dict[str, dict[str, list]]]:
    """Yield a dict that gets `saved`, a table of what the block saves for backward.

    A row has the `tensors` of one `module`, `shape` and `dtype` and their `saved_mib` together. A storage counts once,
    for the module that saves it first; parameters, which are there anyway, do not count."""
    metrics: dict[str, dict[str, list]] = {}
    rows: list[tuple[str, str, str, float]] = []
    seen = {identity(parameter.untyped_storage()) for parameter in model.parameters()}
    with _innermost_module(model) as module_name:

        def pack(tensor: Tensor) -> Tensor:
            storage = tensor.untyped_storage()
            if identity(storage) not in seen:
                seen.add(identity(storage))
                shape = " × ".join(str(length) for length in tensor.shape)
                rows.append((module_name(), shape, dtype_name(tensor.dtype), storage.nbytes() / MIB))
            return tensor

        with saved_tensors_hooks(pack, lambda tensor: tensor):
            yield metrics
    saved = pd.DataFrame(rows, columns=["module", "shape", "dtype", "saved_mib"])
    sums = saved.groupby(["module", "shape", "dtype"], sort=False)["saved_mib"].agg(tensors="count", saved_mib="sum")
    metrics["saved"] = sums.reset_index().to_dict("list")


@contextlib.contextmanager
def _innermost_module(model: nn.Module) -> Iterator[Callable[[], str]]:
    """Yield a function that names the innermost module that runs, or "loss"."""
    running = ["loss"]
    hooks = []

    def leave(*_) -> None:
        running.pop()

    for name, module in model.named_modules():
        # layers are told together
        shown = re.sub(r"\.\d+", ".*", name) or type(model).__name__
        hooks.append(module.register_forward_pre_hook(lambda *_, shown=shown: running.append(shown)))
        hooks.append(module.register_forward_hook(leave))
    try:
        yield lambda: running[-1]
    finally:
        for hook in hooks:
            hook.remove()
