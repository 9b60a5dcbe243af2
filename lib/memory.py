"""How much memory there is, whether a prediction fits it, and the peak of each phase; knows no model."""

import re
import weakref
from pathlib import Path

import psutil
import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from lib.timing import Iteration

MIB = 2**20
_CGROUP = Path("/sys/fs/cgroup")


class TooLarge(Exception):
    """A case that is predicted not to fit, with `predicted` and `available` bytes."""

    def __init__(self, predicted: int, available: int):
        super().__init__(f"needs {predicted / MIB:,.0f} MiB, {available / MIB:,.0f} MiB are available")
        self.predicted, self.available = predicted, available

    def metrics(self) -> dict[str, int]:
        """The two numbers, as a record holds them."""
        return {"predicted_bytes": self.predicted, "available_bytes": self.available}


def available_bytes(device: str) -> int:
    """Bytes a new case may use: nine tenths of what is free, within this container's limit on a CPU."""
    if device == "cuda":
        free = torch.cuda.mem_get_info()[0] + torch.cuda.memory_reserved() - torch.cuda.memory_allocated()
    elif device == "mps":
        free = torch.mps.recommended_max_memory() - torch.mps.current_allocated_memory()
    else:
        free = psutil.virtual_memory().available
        limit = _CGROUP / "memory.max"
        if limit.exists() and limit.read_text().strip().isdigit():
            cached = re.search(r"inactive_file (\d+)", (_CGROUP / "memory.stat").read_text())  # given up when needed
            used = int((_CGROUP / "memory.current").read_text()) - int(cached[1])
            free = min(free, int(limit.read_text()) - used)
    return int(0.9 * free)


def preflight(predicted: int, device: str) -> None:
    """Raise TooLarge when `predicted` bytes do not fit in what is available."""
    available = available_bytes(device)
    if predicted > available:
        raise TooLarge(predicted, available)


def out_of_memory(error: BaseException) -> bool:
    """Whether the error says that memory ran out: CUDA has a class for it, the CPU's allocator a sentence."""
    sentences = ("can't allocate memory", "not enough memory", "out of memory", "CUBLAS_STATUS_ALLOC_FAILED")
    return isinstance(error, (MemoryError, torch.OutOfMemoryError)) or (
        isinstance(error, RuntimeError) and any(sentence in str(error) for sentence in sentences)
    )


def asked_bytes(error: BaseException) -> int | None:
    """The bytes that the failed allocation asked for, where the message tells."""
    if found := re.search(r"allocate (\d+) bytes", str(error)):
        return int(found[1])
    if found := re.search(r"allocate ([\d.]+) (GiB|MiB)", str(error)):
        return int(float(found[1]) * {"GiB": 2**30, "MiB": MIB}[found[2]])
    return None


class _LiveStorage(TorchDispatchMode):
    """Follows the bytes of every tensor storage that the operations inside create or touch."""

    def __init__(self):
        super().__init__()
        self.sizes, self.new, self.older, self.peak = {}, 0, 0, 0

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        for leaf in tree_leaves((args, kwargs)):
            self._see(leaf, is_new=False)
        result = function(*args, **(kwargs or {}))
        for leaf in tree_leaves(result):
            self._see(leaf, is_new=True)
        return result

    def _see(self, leaf, is_new: bool) -> None:
        if not isinstance(leaf, torch.Tensor):
            return
        storage = leaf.untyped_storage()
        key = storage._cdata
        if key in self.sizes:
            return
        self.sizes[key] = storage.nbytes() if is_new else 0
        if is_new:
            self.new += storage.nbytes()
            self.peak = max(self.peak, self.new)
        else:
            self.older += storage.nbytes()
        weakref.finalize(storage, self._freed, key).atexit = False

    def _freed(self, key: int) -> None:
        self.new -= self.sizes.pop(key)


def peaks(iteration: Iteration, device: str) -> dict[str, list[float]]:
    """Run one untimed iteration: `<phase>_peak_mib`, the most bytes of live tensors within each phase,
    `<phase>_end_mib`, those alive at its end, and `peak_mib`, the largest.

    CUDA: the allocator's counts, in which the workspaces of cuBLAS are. CPU: live tensor storage, to the byte,
    followed operation by operation, which does not reach inside compiled graphs. MPS: empty, since it offers no
    peak."""
    if device == "mps":
        return {}
    metrics: dict[str, list[float]] = {}

    if device == "cuda":

        def mark(phase: str) -> None:
            metrics[f"{phase}_peak_mib"] = [torch.cuda.max_memory_allocated() / MIB]
            metrics[f"{phase}_end_mib"] = [torch.cuda.memory_allocated() / MIB]
            torch.cuda.reset_peak_memory_stats()

        torch.cuda.reset_peak_memory_stats()
        iteration(mark)
    else:
        live = _LiveStorage()
        counted: dict[str, int] = {}

        def mark(phase: str) -> None:
            counted[f"{phase}_peak_mib"], counted[f"{phase}_end_mib"] = live.peak, live.new
            live.peak = live.new

        with live:
            iteration(mark)
        metrics = {name: [(value + live.older) / MIB] for name, value in counted.items()}
    return metrics | {"peak_mib": [max(value[0] for value in metrics.values())]}
