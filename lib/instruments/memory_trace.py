"""Predicts the memory of an iteration by running it on tensors without contents.

MemTracker brings torch.distributed along, so this is imported where it is needed.
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
    """`peaks` of each phase under the names that `peak_memory.peaks` gives them, in MiB. At the highest, in bytes:
    `parameters`, `gradients`, `optimizer_states`; `activations`, what was made before the backward pass, by the
    module that made it (a layer's number as *, "Global" outside any); `temporaries` of the backward pass and of the
    optimizer; `others`, which are buffers and the batch. They add up to `total`."""

    peaks: dict[str, list[float]]
    parameters: int
    gradients: int
    optimizer_states: int
    activations: dict[str, int]
    temporaries: int
    others: int

    @property
    def total(self) -> int:
        """The bytes at the peak."""
        fixed = self.parameters + self.gradients + self.optimizer_states + self.temporaries + self.others
        return fixed + sum(self.activations.values())

    def table(self) -> dict[str, list]:
        """The bytes at the peak as a record holds them: `kind`, `module` (of activations), `part_mib`."""
        kinds = ("parameters", "gradients", "optimizer_states", "temporaries", "others")
        rows = [(kind.replace("_", " "), "", getattr(self, kind)) for kind in kinds]
        rows += [("activations", module, size) for module, size in self.activations.items()]
        kind, module, size = (list(column) for column in zip(*rows, strict=True))
        return {"kind": kind, "module": module, "part_mib": [n / MIB for n in size]}


class _Numbers(TorchDispatchMode):
    """Reads every number as 1 and every truth as False: without contents there is none to read, and how much is
    allocated depends on none, but for the drawing of weights, which is repeated while it is true that any is out
    of its bounds."""

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        if function is torch.ops.aten._local_scalar_dense.default:
            return args[0].dtype != torch.bool and 1
        return function(*args, **(kwargs or {}))


class _Kinds(MemTracker):
    """MemTracker without the peak of every module, whose upkeep takes most of its time, and with the module that
    is at work."""

    def _update_peak_stats(self, peak_state) -> None:
        for device, kinds in self._curr_mem_snap.items():
            if kinds["Total"] > self._peak_mem.get(device, 0):
                self._peak_mem[device], self._peak_mem_snap[device] = kinds["Total"], dict(kinds)

    def module(self, operator: str) -> str:
        """The innermost module whose forward pass runs the operator ("Global" outside any), or "" afterwards."""
        if self._mod_tracker.is_bw or self._in_opt:
            return ""
        name = max(self._mod_tracker.parents, key=lambda name: name.count("."))
        return re.sub(r"\.\d+", ".*", name.partition(".")[2] or name)


def predicted(build) -> Prediction:
    """The memory of a second iteration, when the optimizer has its states.

    `build` is called inside and returns what has `module`, `optimizer`, `batch` (a tensor), `iteration`, and
    `before`, which frees what the last iteration left. The peaks are counted as `peak_memory.peaks` counts them, and so
    equal them to the byte; the kinds are MemTracker's, whose total at the peak is the same. On a CUDA device both
    round up as its allocator does, and know nothing of cuBLAS's workspaces."""
    with FakeTensorMode(), _Numbers():
        training = build()
        training.iteration(lambda phase: None)
        training.before()
        kinds = _Kinds()
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
    """The bytes of a kind on all devices, now ("current") or at the peak ("peak")."""
    found = kinds.get_tracker_snapshot(when).values()
    return sum(n for device in found for name, n in device.items() if getattr(name, "value", name) == kind)
