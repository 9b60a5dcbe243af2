"""Measures memory: what is available, whether a prediction fits it, the peak of each phase, and a timeline."""

import platform
import re
import time
from collections.abc import Callable
from pathlib import Path

import psutil
import torch

from lib.instruments.memory_timeline import History, follow, from_snapshot
from lib.timing import Iteration

MIB = 2**20
_PROCESS = Path("/proc/self")
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


def peaks(iteration: Iteration, device: str) -> dict[str, list[float]]:
    """Run one untimed iteration: `<phase>_peak_mib`, the most bytes of live tensors within each phase,
    `<phase>_end_mib`, those alive at its end, and `peak_mib`, the largest.

    CUDA: the allocator's counts, in which the workspaces of cuBLAS are, and `<phase>_reserved_mib`, the most that
    it held of the device. CPU: live tensor storage, to the byte, followed operation by operation, which does not
    reach inside compiled graphs; and, where Linux tells it, `resident_peak_mib`, the most memory that the process
    held meanwhile, Python's own included. MPS: no peaks, since it offers none, but the ends, and
    `<phase>_reserved_mib`, what the driver held at each."""
    return _metrics({"cuda": _cuda_peaks, "mps": _mps_ends}.get(device, _cpu_peaks)(iteration))


def _metrics(found: dict[str, int]) -> dict[str, list[float]]:
    """Bytes under the names of `peaks`, in MiB, with the largest of the peaks."""
    metrics = {f"{name}_mib": [value / MIB] for name, value in found.items()}
    highest = [value for name, value in found.items() if name.endswith("_peak") and name != "resident_peak"]
    return metrics | ({"peak_mib": [max(highest) / MIB]} if highest else {})


def _cuda_peaks(iteration: Iteration) -> dict[str, int]:
    found = {}

    def mark(phase: str) -> None:
        found[f"{phase}_peak"], found[f"{phase}_end"] = torch.cuda.max_memory_allocated(), torch.cuda.memory_allocated()
        found[f"{phase}_reserved"] = torch.cuda.max_memory_reserved()
        torch.cuda.reset_peak_memory_stats()

    torch.cuda.reset_peak_memory_stats()
    iteration(mark)
    return found


def _mps_ends(iteration: Iteration) -> dict[str, int]:
    found = {}

    def mark(phase: str) -> None:
        torch.mps.synchronize()
        found[f"{phase}_end"] = torch.mps.current_allocated_memory()
        found[f"{phase}_reserved"] = torch.mps.driver_allocated_memory()

    iteration(mark)
    return found


def _cpu_peaks(iteration: Iteration) -> dict[str, int]:
    return _cpu_history(iteration)[0]


def _cpu_history(iteration: Iteration) -> tuple[dict[str, int], History]:
    counted = _reset_resident_peak()
    history = follow(iteration)
    return history.peaks() | ({"resident_peak": _resident_peak()} if counted else {}), history


def _reset_resident_peak() -> bool:
    """Let the kernel count the process's resident peak anew (proc(5), clear_refs); whether it does."""
    try:
        (_PROCESS / "clear_refs").write_text("5")
    except OSError:
        return False
    return True


def _resident_peak() -> int:
    """The most bytes of memory that the process has held since the reset."""
    return 1024 * int(re.search(r"VmHWM:\s+(\d+) kB", (_PROCESS / "status").read_text())[1])


def followed(
    iteration: Iteration, before: Callable[[], None], device: str, count: int, pickle: Path | None = None
) -> dict[str, list | dict]:
    """What `peaks` tells, and the tables of the history with its `count` largest allocations, but on MPS, whose
    allocator keeps none; of one iteration on a CPU, where each takes long, else of two with `before` between them.

    CPU: as `peaks` counts. CUDA: from the allocator's history, in the bytes that were asked for; with `pickle`, the
    path of a file to write, also as the allocator's own snapshot for pytorch.org/memory_viz."""
    if device == "cpu":
        found, history = _cpu_history(iteration)
        return _metrics(found) | history.tables(count)
    metrics = peaks(iteration, device)
    if device == "mps":
        return metrics
    before()
    return metrics | _cuda_history(iteration, pickle).tables(count)


def _cuda_history(iteration: Iteration, pickle: Path | None) -> History:
    marks = []
    torch.cuda.synchronize()
    older = torch.cuda.memory_stats()["requested_bytes.all.current"]
    native = (platform.system(), platform.machine()) == ("Linux", "x86_64")  # only there PyTorch follows C++ frames
    torch.cuda.memory._record_memory_history(context="alloc", stacks="all" if native else "python")
    try:
        began = time.time_ns()  # the clock of the allocator's history
        iteration(lambda phase: marks.append((phase, time.time_ns())))
        if pickle:
            torch.cuda.memory._dump_snapshot(str(pickle))
        return from_snapshot(torch.cuda.memory._snapshot(), torch.cuda.current_device(), marks, began, older)
    finally:
        torch.cuda.memory._record_memory_history(None)
