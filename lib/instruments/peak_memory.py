"""Measure memory: the bytes available, the peak of each phase, and a timeline of allocations."""

import contextlib
import re
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import torch

from lib.instruments import allocator
from lib.instruments.device import Cpu, on
from lib.instruments.memory_timeline import History, follow, from_snapshot
from lib.timing import Iteration

MIB = 2**20
RAN_OUT = (  # in messages of a CPU's allocator, CUDA, cuBLAS, Metal, Triton and ptxas
    "can't allocate memory", "not enough memory", "out of memory", "CUBLAS_STATUS_ALLOC_FAILED",
    "CUBLAS_STATUS_NOT_INITIALIZED", "Invalid buffer size", "out of resource", "uses too much shared data",
)  # fmt: skip
ASKED = re.compile(r"(?:allocate|Invalid buffer size:) ([\d.]+) (?:bytes|([KMG])i?B)")
SHARED_MEMORY = re.compile(r"out of resource: (?:shared memory,|\w+)\s+Required: (\d+),?\s+Hardware limit: ?(\d+)")
USABLE = 0.9  # of memory: the rest is for what no formula counts, such as the libraries and their workspaces
_PROCESS = Path("/proc/self")


class TooLarge(Exception):
    """Refuse a case that is predicted not to fit, with `predicted` and `available` bytes.

    The `status` of its record is `too_large` if it never will, and `no_room` if it does not now."""

    def __init__(self, status: str, predicted: int, available: int):
        super().__init__(f"needs {predicted / MIB:,.0f} MiB, {available / MIB:,.0f} MiB are available")
        self.status, self.predicted, self.available = status, predicted, available

    def metrics(self) -> dict[str, int]:
        """Return both numbers as metrics of a record."""
        return {"predicted_bytes": self.predicted, "available_bytes": self.available}


def most_bytes(device: str) -> int:
    """Return 90% of all bytes: what a case can get at best."""
    return int(USABLE * on(device).total_bytes())


def available_bytes(device: str) -> int:
    """Return 90% of the free bytes."""
    return int(USABLE * on(device).free_bytes())


def preflight(predicted: int, device: str) -> None:
    """Raise TooLarge when `predicted` bytes can never fit, or do not fit now."""
    for status, of in (("too_large", most_bytes), ("no_room", available_bytes)):
        if predicted > (available := of(device)):
            raise TooLarge(status, predicted, available)


def out_of_memory(error: BaseException) -> bool:
    """Return True if an error or one that it wraps says that a resource ran out."""
    return any(
        isinstance(each, (MemoryError, torch.OutOfMemoryError)) or any(words in str(each) for words in RAN_OUT)
        for each in _wrapped(error)
    )


def shortage(error: BaseException) -> dict[str, int]:
    """Return the `asked_bytes` of what ran out, if a message says so.

    Where a kernel asked for more than the `shared_memory_bytes` of a multiprocessor, those too."""
    texts = [str(each) for each in _wrapped(error)]
    for found in filter(None, map(SHARED_MEMORY.search, texts)):
        return {"asked_bytes": int(found[1]), "shared_memory_bytes": int(found[2])}
    for found in filter(None, map(ASKED.search, texts)):
        return {"asked_bytes": int(float(found[1]) * 2 ** (10 * " KMG".index(found[2] or " ")))}
    return {}


def _wrapped(error: BaseException | None) -> Iterator[BaseException]:
    """Yield an error and then those that it wraps, as a compiler does."""
    while error:
        yield error
        error = error.__cause__ or error.__context__


def peaks(iteration: Iteration, device: str) -> dict[str, list[float]]:
    """Run one untimed iteration, and return the memory of live tensors in MiB.

    `<phase>_peak_mib` is the most in a phase, `<phase>_end_mib` that at its end, and `peak_mib` the largest peak. CUDA:
    counted by the allocator, with cuBLAS's workspaces; `<phase>_reserved_mib` is the most that it held of the device.
    CPU: followed through every operation, to the byte, but not inside compiled graphs. On Linux `resident_peak_mib` is
    the most memory of the process, Python's own included. MPS reports no peaks, only ends and `<phase>_reserved_mib`,
    held by the driver at each end."""
    return _followed(iteration)[0] if device == "cpu" else _in_mib(_counted(iteration, on(device)))


def _followed(iteration: Iteration) -> tuple[dict[str, list[float]], History]:
    """Run one iteration on a CPU, and return its `peaks` and its history."""
    with resident_peak() as resident:
        history = follow(iteration)
    return _in_mib(history.peaks()) | resident, history


@contextlib.contextmanager
def resident_peak() -> Iterator[dict[str, list[float]]]:
    """Yield a dict that gets the `resident_peak_mib` of the block (see `peaks`) when it ends.

    It stays empty where the system cannot reset the peak (proc(5), clear_refs), as only Linux can."""
    metrics: dict[str, list[float]] = {}
    allocator.release()  # kept pages of earlier iterations are no part of this one
    try:
        (_PROCESS / "clear_refs").write_text("5")
    except OSError:
        yield metrics
        return
    yield metrics
    kib = re.search(r"VmHWM:\s+(\d+) kB", (_PROCESS / "status").read_text())[1]
    metrics["resident_peak_mib"] = [int(kib) / 1024]


def _in_mib(sizes: dict[str, int]) -> dict[str, list[float]]:
    """Convert bytes to the metrics of `peaks` in MiB, with the largest of the peaks."""
    metrics = {f"{name}_mib": [value / MIB] for name, value in sizes.items()}
    highest = [value for name, value in sizes.items() if name.endswith("_peak")]
    return metrics | ({"peak_mib": [max(highest) / MIB]} if highest else {})


def _counted(iteration: Iteration, device: Cpu) -> dict[str, int]:
    """Run one iteration and return what the device counts at the end of each phase."""
    sizes = {}

    def mark(phase: str) -> None:
        sizes.update({f"{phase}_{name}": size for name, size in device.memory_bytes().items()})
        device.reset_peaks()

    device.reset_peaks()
    iteration(mark)
    return sizes


def peaks_and_timeline(
    iteration: Iteration, before: Callable[[], None], device: str, count: int, pickle: Path | None = None
) -> dict[str, list | dict]:
    """Return the metrics of `peaks`, and the history with its `count` largest allocations.

    A CPU runs one iteration for both, since it is slow. CUDA runs two, with `before` between them, and takes the
    history from its allocator, in the bytes requested. `pickle` is a path for the allocator's snapshot, to be opened
    at pytorch.org/memory_viz. MPS has no history."""
    if device == "cpu":
        metrics, history = _followed(iteration)
        return metrics | history.tables(count)
    metrics = peaks(iteration, device)
    if device != "cuda":
        return metrics
    before()
    marks, began = [], time.time_ns()  # the clock of the allocator's history
    snapshot, older = on(device).history(lambda: iteration(lambda phase: marks.append((phase, time.time_ns()))), pickle)
    return metrics | from_snapshot(snapshot, marks, began, older).tables(count)
