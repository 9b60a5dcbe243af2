"""Count the memory of live tensors by who holds them."""

import gc
from collections.abc import Iterable, Iterator, Mapping

from torch import Tensor
from torch.utils._python_dispatch import is_traceable_wrapper_subclass

from lib.instruments.device import on


def held_bytes(owners: Mapping[str, Iterable[Tensor]], device: str) -> dict[str, int]:
    """Return the bytes that each owner's tensors hold, those of all `other` ones, and of `all`.

    Each storage counts once, for the first owner. A GPU's allocator counts all; on a CPU these are the tensors that
    Python knows of."""
    gc.collect()
    seen: set[int] = set()
    sizes = {}
    for owner, tensors in owners.items():
        sizes[owner] = _new_bytes(tensors, seen, device)
    owned_bytes = sum(sizes.values())
    if device == "cpu":
        # not isinstance, which asks an object for its class: some lazy ones import a module then
        tensors = [thing for thing in gc.get_objects() if issubclass(type(thing), Tensor)]
        all_bytes = owned_bytes + _new_bytes(tensors, seen, device)
    else:
        all_bytes = on(device).memory_bytes().get("end", owned_bytes)
    return sizes | {"other": all_bytes - owned_bytes, "all": all_bytes}


def _new_bytes(tensors: Iterable[Tensor], seen: set[int], device: str) -> int:
    """Return the bytes of the storages on a device that are not yet `seen`."""
    size = 0
    for tensor in tensors:
        for part in _parts(tensor):
            storage = part.untyped_storage()
            if part.device.type == device and storage._cdata not in seen:
                seen.add(storage._cdata)
                size += storage.nbytes()
    return size


def _parts(tensor: Tensor) -> Iterator[Tensor]:
    """Yield the tensors that hold the data, such as the local one of a distributed tensor."""
    if not is_traceable_wrapper_subclass(tensor):
        yield tensor
        return
    for name in tensor.__tensor_flatten__()[0]:
        part = getattr(tensor, name)
        if isinstance(part, Tensor):
            yield from _parts(part)
