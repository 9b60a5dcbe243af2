"""A device that is not here: tensors on it live on the CPU, and are followed as if they did not.

MPS has no double precision, which this refuses; what works differently on a real GPU goes unnoticed.
"""

import contextlib
import weakref

import pytest
import torch
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves, tree_map

from lib.instruments import device
from lib.timing import HostClock

NO_DOUBLE = "Cannot convert a MPS Tensor to float64 dtype as the MPS framework doesn't support float64"
HELD = 2**20  # bytes that the device says are taken
MOVES = (torch.Tensor.to, torch.Tensor.cpu, torch.Tensor.cuda)


@contextlib.contextmanager
def pretended(kind: str):
    """Let this process measure on "mps" or "cuda" as if it were here, eagerly and with a clock of the host."""
    real, autocast = type(device.KINDS[kind]), torch.autocast

    def on_cpu(device_type: str, **values):
        return autocast("cpu" if device_type == kind else device_type, **values)

    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(device.KINDS, kind, _device(kind, real))
        patch.setattr(torch, "autocast", on_cpu)
        followed = _Followed(kind)
        with followed, _Moved(kind, followed):
            yield


def _device(kind: str, real: type) -> device.Cpu:
    """A device of that kind with the memory and the clock of the processor."""

    class Pretended(device.Cpu):
        name, profiled = kind, real.profiled

        def lacks(self, precision):
            return None if kind == "cuda" else super().lacks(precision)

        def hardware(self):
            return f"Pretended {kind}"

        def clock(self):
            return HostClock()

        def cache_bytes(self):
            return 2**16

        def memory_bytes(self):
            counted = ("peak", "end", "reserved") if kind == "cuda" else ("end", "reserved")
            return dict.fromkeys(counted, HELD)

    return Pretended()


class _Followed(TorchDispatchMode):
    """Know what lives on the device: what was made there, and what operations make of it, in backward passes too."""

    def __init__(self, kind: str):
        super().__init__()
        self.kind, self.there = kind, set()

    def has(self, leaf) -> bool:
        return isinstance(leaf, torch.Tensor) and leaf.untyped_storage()._cdata in self.there

    def put(self, result, there: bool):
        """Note where the tensors of a result live, and return it; TypeError for doubles on MPS."""
        for leaf in [result] if isinstance(result, torch.Tensor) else tree_leaves(result):
            if isinstance(leaf, torch.Tensor):
                if there and self.kind == "mps" and leaf.dtype in (torch.float64, torch.complex128):
                    raise TypeError(NO_DOUBLE)
                storage = leaf.untyped_storage()
                if there and storage._cdata not in self.there:
                    # another may take its place in memory
                    weakref.finalize(storage, self.there.discard, storage._cdata).atexit = False
                (self.there.add if there else self.there.discard)(storage._cdata)
        return result

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        given = tree_leaves((args, kwargs))[: 1 if function is torch.ops.aten.copy_.default else None]
        there = any(map(self.has, given))
        return self.put(function(*args, **(kwargs or {})), there)


class _Moved(TorchFunctionMode):
    """Make on the CPU what is to be made on the device, and copy what moves between the two."""

    def __init__(self, kind: str, followed: _Followed):
        super().__init__()
        self.kind, self.followed = kind, followed

    def __torch_function__(self, function, types, args=(), kwargs=None):
        named = [leaf for leaf in tree_leaves((args, kwargs)) if isinstance(leaf, str | torch.device)]
        there = any(map(self._is_there, named))
        if there:
            args, kwargs = tree_map(lambda leaf: "cpu" if self._is_there(leaf) else leaf, (args, kwargs))
        result = function(*args, **(kwargs or {}))
        moves = function in MOVES and (named or function is torch.Tensor.cpu)
        if moves and self.followed.has(args[0]) != there:
            return self.followed.put(result.clone() if result is args[0] else result, there)
        return self.followed.put(result, there) if there else result

    def _is_there(self, leaf) -> bool:
        return isinstance(leaf, str | torch.device) and str(leaf).partition(":")[0] == self.kind
