"""Tell what a training step keeps in memory: at its peak, for backward, by owner."""

import contextlib
import gc
import math
import re
from collections.abc import Callable, Iterable, Iterator, Mapping

import pandas as pd
from torch import Tensor, nn
from torch.autograd.graph import saved_tensors_hooks
from torch.nn.modules.module import register_module_forward_hook, register_module_forward_pre_hook
from torch.utils._python_dispatch import is_traceable_wrapper_subclass

from lib.instruments import peak_memory
from lib.instruments.device import on
from lib.instruments.peak_memory import MIB, History, identity
from lib.instruments.rounding import dtype_name

POINTS = 600  # points of a timeline in a record, or a few more: a figure cannot show more


def trace(training, device: str, count: int, level_bytes: int = 0) -> dict:
    """Return the peaks and tables that tell the memory of a training step.

    - `timeline`: the bytes alive, thinned.
    - `phases`: the begin and end of each phase.
    - `alive`: what is alive at the peak.
    - `largest`: the `count` largest allocations. Equal ones, such as the scores of all layers, share a row.

    `training` has a `module`, its `optimizer`, an `iteration`, and `before`, which frees what the last iteration left.
    An iteration must have run before, so that the optimizer has its states. A CPU is slow, and runs one iteration for
    all of it. A GPU runs a second one, whose peaks its allocator counts, less the `level_bytes` before the case.
    Operations in a compiled graph cannot be followed."""
    training.before()
    with _innermost_module(training.module) as module_name:
        history = peak_memory.follow(training.iteration, module_name)
    if device == "cpu":
        metrics = peak_memory.in_mib(history.peaks())
    else:
        training.before()
        metrics = peak_memory.peaks(training.iteration, device, level_bytes)
    tables = {
        "timeline": _timeline(history),
        "phases": _phases(history),
        "largest": _largest(history, count),
        "alive": _alive_at_peak(training, history),
    }
    return metrics | {name: table.to_dict("list") for name, table in tables.items()}


def _timeline(history: History) -> pd.DataFrame:
    instants_us = [0.0] + [instant_us for instant_us, _ in history.events]
    timeline = pd.DataFrame({"instant_us": instants_us, "live_mib": history.levels()})
    timeline["live_mib"] /= MIB
    # keeps both ends, and the extremes of each stretch
    stretches = timeline["live_mib"].groupby(timeline.index // math.ceil(2 * len(timeline) / POINTS))
    return timeline.loc[sorted({0, len(timeline) - 1, *stretches.idxmax(), *stretches.idxmin()})]


def _phases(history: History) -> pd.DataFrame:
    marks = pd.DataFrame(history.marks, columns=["phase", "end_us", "events"])
    return marks.assign(begin_us=marks["end_us"].shift())[1:][["phase", "begin_us", "end_us"]]


def _allocations(history: History) -> pd.DataFrame:
    """Tabulate the allocations, with the name of the phase for its index."""
    allocations = pd.DataFrame(history.allocations)
    names = [phase for phase, _, _ in history.marks]
    allocations["phase"] = allocations["phase"].map(dict(enumerate(names)))
    # no module runs in this phase
    allocations.loc[allocations["phase"] == "optimizer", "module"] = ""
    return allocations


def _largest(history: History, count: int) -> pd.DataFrame:
    allocations = _allocations(history).rename(columns={"bytes": "each_mib"})
    allocations["each_mib"] /= MIB
    # a stable sort keeps equal ones in the order in which they were made
    largest = allocations.sort_values("each_mib", ascending=False, kind="stable").head(count)
    return largest.groupby(["each_mib", "module", "operator", "phase"], sort=False).size().reset_index(name="count")


def _alive_at_peak(training, history: History) -> pd.DataFrame:
    """Return a table of `kind`, `module` and `part_mib` at an iteration's peak.

    Kinds are parameters, gradients, optimizer states, activations, temporaries and others. Activations were made before
    the backward pass, and only they have a module. Temporaries are those of the backward pass, with what it recomputes,
    and of the optimizer. Others are buffers and the batch. The parts add up to the peak on a CPU; on CUDA they lack
    cuBLAS's workspaces."""
    parameters_bytes = sum(parameter.nbytes for parameter in training.module.parameters())
    states_bytes = 0
    for state in training.optimizer.state.values():
        states_bytes += sum(value.nbytes for value in state.values())
    # levels[0] is before the first event, and levels[i + 1] after event i
    levels = history.levels()
    peak_event = levels.index(max(levels)) - 1
    allocations = _allocations(history)
    made = allocations[(allocations["born"] <= peak_event) & (allocations["freed"] > peak_event)]
    activations = made[made["phase"] == "forward"].groupby("module", sort=False)["bytes"].sum()
    # all that the backward pass makes is freed, except the gradients
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
    return parts


@contextlib.contextmanager
def saved_for_backward(model: nn.Module) -> Iterator[dict[str, dict[str, list]]]:
    """Yield a dict that gets `saved`, a table of what the block saves for backward.

    A row has the number of `tensors` of one `module`, `shape` and `dtype`, and the MiB of their whole storages,
    `saved_mib`. A storage counts once, for the module that saves it first. Parameters do not count. RoPE's angles and
    the ids of the batch do, although they are there anyway."""
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
            # an operator that saves its own output would hold itself, and no backward pass may come to free it
            return tensor.detach()

        with saved_tensors_hooks(pack, lambda tensor: tensor):
            yield metrics
    saved = pd.DataFrame(rows, columns=["module", "shape", "dtype", "saved_mib"])
    sums = saved.groupby(["module", "shape", "dtype"], sort=False)["saved_mib"].agg(tensors="count", saved_mib="sum")
    metrics["saved"] = sums.reset_index().to_dict("list")


@contextlib.contextmanager
def _innermost_module(model: nn.Module) -> Iterator[Callable[[], str]]:
    """Yield a function that names the innermost module that runs, or "loss"."""
    # layers.0 and layers.1 share one name, layers.*
    names = {module: re.sub(r"\.\d+", ".*", name) or type(model).__name__ for name, module in model.named_modules()}
    running = ["loss"]

    def enter(module: nn.Module, _) -> None:
        running.append(names[module])

    def leave(*_) -> None:
        running.pop()

    with register_module_forward_pre_hook(enter), register_module_forward_hook(leave):
        yield lambda: running[-1]


def count_bytes(owners: Mapping[str, Iterable[Tensor]], device: str) -> dict[str, int]:
    """Return the bytes of each owner's tensors, and of `all` tensors.

    Each storage counts once, for the first owner. On a GPU the allocator counts `all`; on a CPU these are the owners'
    tensors and those that Python has made since the last `gc.freeze`, which runs when a case starts."""
    gc.collect()
    tensors_of = dict(owners)
    if device == "cpu":
        # not isinstance, which asks an object for its class: some lazy ones import a module then
        tensors_of["other"] = [thing for thing in gc.get_objects() if issubclass(type(thing), Tensor)]
    seen: set[int] = set()
    sizes = dict.fromkeys(tensors_of, 0)
    for owner, tensors in tensors_of.items():
        for tensor in map(_local, tensors):
            storage = tensor.untyped_storage()
            if storage.device.type == device and identity(storage) not in seen:
                seen.add(identity(storage))
                sizes[owner] += storage.nbytes()
    all_bytes = on(device).memory_bytes().get("end", sum(sizes.values()))
    return {owner: sizes[owner] for owner in owners} | {"all": all_bytes}


def _local(tensor: Tensor) -> Tensor:
    """Return the tensor, or the one that it wraps, as a distributed tensor does."""
    while is_traceable_wrapper_subclass(tensor):
        tensor = getattr(tensor, tensor.__tensor_flatten__()[0][0])
    return tensor
