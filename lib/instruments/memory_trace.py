"""Predict the memory of an iteration by running it on tensors without contents.

Import this only where it is needed, since MemTracker imports torch.distributed.
"""

import re
from dataclasses import dataclass

import torch
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.distributed._tools.mem_tracker import MemTracker
from torch.utils._python_dispatch import TorchDispatchMode

from lib.instruments.memory_timeline import follow
from lib.instruments.peak_memory import MIB


@dataclass(frozen=True)
class Prediction:
    """Hold the predicted peaks in MiB, and the bytes of each kind at the highest peak.

    `peaks` has the names of `peak_memory.peaks`. `activations` were made before the backward pass; their keys are
    modules, with * for a layer's number and "Global" outside any. `temporaries` are those of the backward pass and the
    optimizer, `others` buffers and the batch. The kinds add up to `total`."""

    peaks: dict[str, list[float]]
    parameters: int
    gradients: int
    optimizer_states: int
    activations: dict[str, int]
    temporaries: int
    others: int

    @property
    def total(self) -> int:
        """Return the bytes at the peak."""
        fixed = self.parameters + self.gradients + self.optimizer_states + self.temporaries + self.others
        return fixed + sum(self.activations.values())

    def table(self) -> dict[str, list]:
        """Tabulate the peak by `kind` and (for activations) `module`, in `part_mib`."""
        kinds = ("parameters", "gradients", "optimizer_states", "temporaries", "others")
        rows = [(kind.replace("_", " "), "", getattr(self, kind)) for kind in kinds]
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


class _KindTracker(MemTracker):
    """Track memory by kind, without MemTracker's slow peaks of every module."""

    def _update_peak_stats(self, peak_state) -> None:
        for device, kinds in self._curr_mem_snap.items():
            if kinds["Total"] > self._peak_mem.get(device, 0):
                self._peak_mem[device], self._peak_mem_snap[device] = kinds["Total"], dict(kinds)

    def module(self, operator: str) -> str:
        """Return the innermost module of the forward pass, "Global" outside any; "" afterwards."""
        if self._mod_tracker.is_bw or self._in_opt:
            return ""
        name = max(self._mod_tracker.parents, key=lambda name: name.count("."))
        return re.sub(r"\.\d+", ".*", name.partition(".")[2] or name)


def predict(build) -> Prediction:
    """Predict the memory of a second iteration, when the optimizer has its states.

    `build` is called inside and returns an object with `module`, `optimizer`, `batch` (a tensor), `iteration`, and
    `before`, which frees what the last iteration left. The peaks equal those of `peak_memory.peaks` to the byte. The
    kinds are MemTracker's, with the same total at the peak. On CUDA both round up as its allocator does, and both lack
    cuBLAS's workspaces."""
    with FakeTensorMode(), _FixedScalars():
        training = build()
        training.iteration(lambda phase: None)
        training.before()
        kinds = _KindTracker()
        kinds.track_external(training.module, training.optimizer, training.batch)
        states = _bytes(kinds, "current", "Optstate")
        with kinds:
            history = follow(training.iteration, kinds.module)
    activations = {}
    for allocation in history.at_peak():
        if module := allocation.function:
            activations[module] = activations.get(module, 0) + allocation.bytes
    peaks = history.peaks()
    return Prediction(
        peaks={f"{name}_mib": [n / MIB] for name, n in peaks.items()} | {"peak_mib": [max(peaks.values()) / MIB]},
        parameters=_bytes(kinds, "peak", "Parameter"),
        gradients=_bytes(kinds, "peak", "Gradient"),
        optimizer_states=states,
        activations=activations,
        temporaries=_bytes(kinds, "peak", "Temp") + _bytes(kinds, "peak", "Optstate") - states,
        others=_bytes(kinds, "peak", "Buffer") + _bytes(kinds, "peak", "Other"),
    )


def _bytes(kinds: MemTracker, when: str, kind: str) -> int:
    """Sum the bytes of a kind over all devices, now ("current") or at the peak ("peak")."""
    devices = kinds.get_tracker_snapshot(when).values()
    return sum(n for device in devices for name, n in device.items() if getattr(name, "value", name) == kind)
