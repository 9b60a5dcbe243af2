"""A device that is not here: tensors on it live on the CPU, and are followed as if they did not.

MPS has no double precision, which this refuses; what works differently on a real GPU goes unnoticed.
"""

import contextlib

import pytest
import torch
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves, tree_map
from torch.utils.weak import WeakIdKeyDictionary

from lib.instruments import device

NO_DOUBLE = "Cannot convert a MPS Tensor to float64 dtype as the MPS framework doesn't support float64"
HELD = 2**20  # bytes that the device says are taken
MOVES = (torch.Tensor.to, torch.Tensor.cpu, torch.Tensor.cuda)


@contextlib.contextmanager
def pretended(kind: str):
    """Let this process measure on "mps" or "cuda" as if it were here, eagerly and with a clock of the host."""
    autocast = torch.autocast

    def on_cpu(device_type: str, **values):
        return autocast(device_type.replace(kind, "cpu"), **values)

    class Pretended(device.Cpu):
        profiled = device.KINDS[kind].profiled

        def lacks(self, precision):
            return None if kind == "cuda" else super().lacks(precision)

        def cache_bytes(self):
            return 2**16

        def memory_bytes(self):
            sizes = {"end": HELD}
            return sizes | {"peak": HELD} if kind == "cuda" else sizes

    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(device.KINDS, kind, Pretended())
        patch.setattr(torch, "autocast", on_cpu)
        with Followed(kind) as followed, Moved(kind, followed):
            yield


class Followed(TorchDispatchMode):
    """Know what lives on the device: what was made there, and what operations make of it, in backward passes too."""

    def __init__(self, kind: str):
        super().__init__()
        self.kind = kind
        self.storages = WeakIdKeyDictionary()

    def has(self, leaf) -> bool:
        return isinstance(leaf, torch.Tensor) and leaf.untyped_storage() in self.storages

    def put(self, result):
        """Note that the tensors of a result live there, and return it; TypeError for doubles on MPS."""
        for leaf in tree_leaves(result):
            if isinstance(leaf, torch.Tensor):
                if self.kind == "mps" and leaf.dtype in (torch.float64, torch.complex128):
                    raise TypeError(NO_DOUBLE)
                self.storages[leaf.untyped_storage()] = True
        return result

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        result = function(*args, **(kwargs or {}))
        leaves = tree_leaves((args, kwargs))
        if function is torch.ops.aten.copy_.default:
            # its target stays where it is
            leaves = leaves[:1]
        if any(map(self.has, leaves)):
            self.put(result)
        return result


class Moved(TorchFunctionMode):
    """Make on the CPU what is to be made on the device, and copy what moves between the two."""

    def __init__(self, kind: str, followed: Followed):
        super().__init__()
        self.kind = kind
        self.followed = followed

    def __torch_function__(self, function, types, args=(), kwargs=None):
        places = [leaf for leaf in tree_leaves((args, kwargs)) if isinstance(leaf, str | torch.device)]
        there = any(map(self.is_there, places))
        args, kwargs = tree_map(lambda leaf: "cpu" if self.is_there(leaf) else leaf, (args, kwargs or {}))
        result = function(*args, **kwargs)
        moves = function in MOVES and (places or function is torch.Tensor.cpu)
        if moves and self.followed.has(args[0]) != there:
            result = result.clone()
            self.followed.storages.pop(result.untyped_storage(), None)
        if there:
            self.followed.put(result)
        return result

    def is_there(self, leaf) -> bool:
        return isinstance(leaf, str | torch.device) and str(leaf).partition(":")[0] == self.kind
