"""Measure the peak memory of each phase; recognise that memory ran out."""

import torch

from lib.instruments.device import on
from lib.instruments.memory_timeline import follow
from lib.timing import Iteration

MIB = 2**20
RAN_OUT = (
    "can't allocate memory",  # a CPU's allocator
    "out of memory",  # CUDA, Metal
    "CUBLAS_STATUS_ALLOC_FAILED",
    "CUBLAS_STATUS_NOT_INITIALIZED",  # cuBLAS found no memory for its handle
    "Invalid buffer size",  # Metal
    "out of resource",  # Triton: a multiprocessor has too little shared memory or too few registers
    "uses too much shared data",  # ptxas
)


def out_of_memory(error: BaseException | None) -> bool:
    """Tell if an error, or one that it wraps, says that memory ran out."""
    while error:
        if isinstance(error, (MemoryError, torch.OutOfMemoryError)) or any(words in str(error) for words in RAN_OUT):
            return True
        # a compiler wraps what it caught
        error = error.__cause__ or error.__context__
    return False


def peaks(iteration: Iteration, device: str) -> dict[str, list[float]]:
    """Run one untimed iteration, and return the memory of live tensors in MiB.

    `<phase>_peak_mib` is the most in a phase, `<phase>_end_mib` that at its end, and `peak_mib` the largest peak. CUDA:
    counted by the allocator, with cuBLAS's workspaces; `<phase>_reserved_mib` is the most that it held of the device.
    CPU: followed through every operation, to the byte, but not inside compiled graphs. MPS reports no peaks, only ends
    and `<phase>_reserved_mib`, held by the driver at each end."""
    if device == "cpu":
        return in_mib(follow(iteration).peaks())
    here = on(device)
    sizes = {}

    def mark(phase: str) -> None:
        for name, size in here.memory_bytes().items():
            sizes[f"{phase}_{name}"] = size
        here.reset_peaks()

    here.reset_peaks()
    iteration(mark)
    return in_mib(sizes)


def in_mib(sizes: dict[str, int]) -> dict[str, list[float]]:
    """Convert bytes to the metrics of `peaks` in MiB, with the largest of the peaks."""
    metrics = {f"{name}_mib": [size / MIB] for name, size in sizes.items()}
    phase_peaks = [size for name, size in sizes.items() if name.endswith("_peak")]
    if phase_peaks:
        metrics["peak_mib"] = [max(phase_peaks) / MIB]
    return metrics
