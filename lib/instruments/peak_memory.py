"""Follow an iteration's memory, measure its peaks, and tell if memory ran out."""

import itertools
import math
import time
import weakref
from collections.abc import Callable

import torch
from torch.utils._python_dispatch import TorchDispatchMode, is_traceable_wrapper_subclass
from torch.utils._pytree import tree_leaves

from lib.instruments.device import on
from lib.timing import Iteration

MIB = 2**20
RAN_OUT = (
    "can't allocate memory",  # a CPU's allocator
    "out of memory",  # CUDA, Metal
    "CUBLAS_STATUS_ALLOC_FAILED",
    "CUBLAS_STATUS_NOT_INITIALIZED",  # cuBLAS found no memory for its handle
    "Invalid buffer size",  # Metal
)


def out_of_memory(error: BaseException | None) -> bool:
    """Tell if an error, or one that it wraps, says that memory ran out."""
    while error:
        if isinstance(error, (MemoryError, torch.OutOfMemoryError)) or any(words in str(error) for words in RAN_OUT):
            return True
        # a compiler wraps what it caught
        error = error.__cause__ or error.__context__
    return False


def peaks(iteration: Iteration, device: str, level_bytes: int = 0) -> dict[str, list[float]]:
    """Run one untimed iteration, and return the memory of live tensors in MiB.

    `<phase>_peak_mib` is the most in a phase, `<phase>_end_mib` that at its end, and `peak_mib` the largest peak.

    - CUDA: counted by the allocator, less `level_bytes`, which were alive before the case.
    - CPU: followed through every operation, to the byte, but not inside compiled graphs.
    - MPS reports no peaks."""
    if device == "cpu":
        return in_mib(follow(iteration).peaks())
    device_kind = on(device)
    sizes = {}

    def mark(phase: str) -> None:
        for name, size in device_kind.memory_bytes().items():
            sizes[f"{phase}_{name}"] = size - level_bytes

    # peaks count from here on
    device_kind.memory_bytes()
    iteration(mark)
    return in_mib(sizes)


def in_mib(sizes: dict[str, int]) -> dict[str, list[float]]:
    """Convert bytes to the metrics of `peaks` in MiB, with the largest of the peaks."""
    metrics = {f"{name}_mib": [size / MIB] for name, size in sizes.items()}
    phase_peaks = [size for name, size in sizes.items() if name.endswith("_peak")]
    if phase_peaks:
        metrics["peak_mib"] = [max(phase_peaks) / MIB]
    return metrics


class History(TorchDispatchMode):
    """Record an iteration's allocations and frees of tensor storages, to the byte.

    It sees every operation outside compiled graphs, and with it every storage.

    - `bytes_before`: those of storages that the iteration touches but did not create.
    - `events`: instants, in microseconds since the start, each with the change in bytes.
    - `marks`: the start and the ends of phases, each with its instant and the number of events before it.
    - `allocations`: `phase` is the index of the mark that ends an allocation's phase. `born` and `freed` are the
      indices of its events; `freed` is infinity if it outlives the iteration. In a backward pass `module` is the node
      of the graph.
    """

    # PyTorch's own tracker (torch.distributed._tools.mem_tracker) has the kinds at the peak, but no times and no makers

    def __init__(self, module_name: Callable[[], str]):
        super().__init__()
        self.module_name = module_name
        self.began_ns = time.perf_counter_ns()
        self.bytes_before = 0
        self.events: list[tuple[float, int]] = []
        self.marks: list[tuple[str, float, int]] = [("", 0.0, 0)]
        self.allocations: list[dict] = []
        self.alive: dict[int, dict] = {}
        self.references: dict[int, weakref.ref] = {}

    def mark(self, phase: str) -> None:
        """End a phase, to which all allocations since the last mark belong."""
        self.marks.append((phase, self._now_us(), len(self.events)))

    def __exit__(self, *error):
        # what is freed later does not belong to the iteration
        self.references.clear()
        return super().__exit__(*error)

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        arguments = tree_leaves((args, kwargs))
        # the argument of lift_fresh is a literal that became a tensor; it was not alive before
        if function is not torch.ops.aten.lift_fresh.default:
            for leaf in arguments:
                self._see(leaf, "")
        result = function(*args, **(kwargs or {}))
        # arguments may have been resized
        for leaf in arguments + tree_leaves(result):
            self._see(leaf, function._schema.name)
        return result

    def _see(self, leaf, operator: str) -> None:
        """Note a new or resized storage; without `operator` it was there before."""
        # a wrapper around other tensors holds no memory of its own
        if not isinstance(leaf, torch.Tensor) or leaf.is_meta or is_traceable_wrapper_subclass(leaf):
            return
        storage = leaf.untyped_storage()
        key = identity(storage)
        size = storage.nbytes()
        former = self.alive.get(key)
        if former is None:
            # PyTorch keeps the Python object of a storage as long as the storage lives
            self.references[key] = weakref.ref(storage, lambda _: self._freed(key))
        elif former["bytes"] == size:
            return
        else:
            # resized: moved to memory of another size
            self._end(former)
        node = torch._C._current_autograd_node()
        maker = node.name() if node else self.module_name()
        self.alive[key] = {
            "bytes": size, "operator": operator, "module": maker, "phase": len(self.marks),
            "born": len(self.events), "freed": math.inf,
        }  # fmt: skip
        if former is None and not operator:
            self.bytes_before += size
        else:
            self.allocations.append(self.alive[key])
            self.events.append((self._now_us(), size))

    def _freed(self, key: int) -> None:
        del self.references[key]
        self._end(self.alive.pop(key))

    def _end(self, allocation: dict) -> None:
        allocation["freed"] = len(self.events)
        self.events.append((self._now_us(), -allocation["bytes"]))

    def _now_us(self) -> float:
        return (time.perf_counter_ns() - self.began_ns) / 1e3

    def levels(self) -> list[int]:
        """Return the bytes alive at the start and after each event."""
        return list(itertools.accumulate((change for _, change in self.events), initial=self.bytes_before))

    def peaks(self) -> dict[str, int]:
        """Return the bytes at each phase's peak and end, `<phase>_peak`, `<phase>_end`."""
        levels = self.levels()
        peaks = {}
        for (_, _, begin), (phase, _, end) in itertools.pairwise(self.marks):
            peaks[f"{phase}_peak"] = max(levels[begin : end + 1])
            peaks[f"{phase}_end"] = levels[end]
        return peaks


def follow(iteration: Iteration, module_name: Callable[[], str] = lambda: "") -> History:
    """Run one iteration, and return its history."""
    with History(module_name) as history:
        iteration(history.mark)
    return history


def identity(storage: torch.UntypedStorage) -> int:
    """Return a number that no other storage has while this one lives."""
    # data_ptr() would not do, since it is 0 for all empty storages
    return storage._cdata
