"""Count the memory of live tensors by who holds them."""

import gc
from collections.abc import Iterable, Iterator, Mapping

from torch import Tensor, UntypedStorage
from torch.utils._python_dispatch import is_traceable_wrapper_subclass

from lib.instruments.device import on


def held_bytes(owners: Mapping[str, Iterable[Tensor]], device: str) -> dict[str, int]:
    """Return the bytes of each owner's tensors, of all `other` ones, and of `all`.

    Each storage counts once, for the first owner. A GPU's allocator counts all; on a CPU these are the tensors that
    Python knows of."""
    gc.collect()
    tensors_of = dict(owners)
    if device == "cpu":
        # not isinstance, which asks an object for its class: some lazy ones import a module then
        tensors_of["other"] = [thing for thing in gc.get_objects() if issubclass(type(thing), Tensor)]
    seen: set[int] = set()
    sizes = dict.fromkeys(tensors_of, 0)
    for owner, tensors in tensors_of.items():
        for tensor in tensors:
            for storage in _storages(tensor):
                if storage.device.type == device and identity(storage) not in seen:
                    seen.add(identity(storage))
                    sizes[owner] += storage.nbytes()
    known_bytes = sum(sizes.values())
    if device == "cpu":
        return sizes | {"all": known_bytes}
    all_bytes = on(device).memory_bytes().get("end", known_bytes)
    return sizes | {"other": all_bytes - known_bytes, "all": all_bytes}


def identity(storage: UntypedStorage) -> int:
    """Return a number that no other storage has while this one lives."""
    # Python's objects for one storage may differ, and data_ptr() is 0 for all empty ones
    return storage._cdata


def _storages(tensor: Tensor) -> Iterator[UntypedStorage]:
    """Yield a tensor's storage, or those of the tensors that it wraps."""
    if not is_traceable_wrapper_subclass(tensor):
        yield tensor.untyped_storage()
        return
    # such as the local one of a distributed tensor
    for name in tensor.__tensor_flatten__()[0]:
        part = getattr(tensor, name)
        if isinstance(part, Tensor):
            yield from _storages(part)
