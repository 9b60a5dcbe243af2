"""Predict the memory of an iteration by running it on tensors without contents."""

import re
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass

import torch
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.module_tracker import ModuleTracker

from lib.instruments.memory_timeline import follow
from lib.instruments.peak_memory import MIB


@dataclass(frozen=True)
class Prediction:
    """Hold the predicted peaks in MiB, and the bytes of each kind at the highest peak.

    `peaks` has the names of `peak_memory.peaks`. `kinds` are parameters, gradients, optimizer states, others (buffers
    and the batch) and temporaries (of the backward pass and the optimizer). `activations` were made before the backward
    pass; their keys are modules, with * for a layer's number and "Global" outside any. All add up to `total`."""

    peaks: dict[str, list[float]]
    kinds: dict[str, int]
    activations: dict[str, int]

    @property
    def total(self) -> int:
        """Return the bytes at the peak."""
        return sum(self.kinds.values()) + sum(self.activations.values())

    def table(self) -> dict[str, list]:
        """Tabulate the peak by `kind` and (for activations) `module`, in `part_mib`."""
        rows = [(kind, "", size) for kind, size in self.kinds.items()]
        rows += [("activations", module, size) for module, size in self.activations.items()]
        kind, module, size = (list(column) for column in zip(*rows, strict=True))
        return {"kind": kind, "module": module, "part_mib": [n / MIB for n in size]}


class _FixedScalars(TorchDispatchMode):
    """Read every number as 1 and every bool as False, since the tensors have no contents.

    Only the drawing of weights depends on a value: it is repeated while a bool says that any is out of bounds."""

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        if function is torch.ops.aten._local_scalar_dense.default:
            return args[0].dtype != torch.bool and 1
        return function(*args, **(kwargs or {}))


def predict(build) -> Prediction:
    """Predict the memory of a second iteration, when the optimizer has its states.

    `build` is called inside and returns an object with `module`, `optimizer`, `iteration`, and `before`, which frees
    what the last iteration left. The peaks equal those of `peak_memory.peaks` to the byte. On CUDA they lack cuBLAS's
    workspaces."""
    with FakeTensorMode(), _FixedScalars():
        training = build()
        training.iteration(lambda phase: None)
        training.before()
        parameters = _bytes(training.module.parameters())
        states = _bytes(tensor for state in training.optimizer.state.values() for tensor in state.values())
        with ModuleTracker() as modules:
            history = follow(training.iteration, lambda operator: _innermost(modules.parents))
    activations, gradients, temporaries = Counter(), 0, 0
    for allocation in history.at_peak():
        if allocation.phase == "forward":
            activations[allocation.function] += allocation.bytes
        elif allocation.phase == "backward" and allocation.freed is None:
            gradients += allocation.bytes
        else:
            temporaries += allocation.bytes
    peaks = history.peaks()
    return Prediction(
        peaks={f"{name}_mib": [n / MIB] for name, n in peaks.items()} | {"peak_mib": [max(peaks.values()) / MIB]},
        kinds={
            "parameters": parameters,
            "gradients": gradients,
            "optimizer states": states,
            "temporaries": temporaries,
            "others": history.older - parameters - states,
        },
        activations=dict(activations),
    )


def _bytes(tensors: Iterable[Tensor]) -> int:
    return sum(tensor.nbytes for tensor in tensors)


def _innermost(modules: set[str]) -> str:
    """Return the module that all others are around, with * for a layer's number; "Global" outside any."""
    name = max(modules - {"Global"}, key=lambda name: name.count("."), default="Global")
    return re.sub(r"\.\d+", ".*", name.partition(".")[2] or name)
