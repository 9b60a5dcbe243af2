"""Capture one iteration for Nsight Systems, with an NVTX range around each phase.

Paste this in the folder of the repository, on a machine with a CUDA GPU and nsys; other axes of the case go into
`grid`. It prints the kernels of each range, and step.nsys-rep opens in Nsight's window.

    nsys profile --trace=cuda,nvtx --capture-range=cudaProfilerApi --capture-range-end=stop --output=step python -c "
    from lib.experiments import cases
    from lib.instruments import nsight
    case = cases.grid('kernels', size='small', context_length=128, device='cuda')[0]
    work = case.setup()
    nsight.capture(work.iteration, work.before)"
    nsys stats --report=nvtx_kern_sum step.nsys-rep
"""

from collections.abc import Callable

import torch

from lib.timing import Iteration

WARMUP = 5


def capture(iteration: Iteration, before: Callable[[], None]) -> None:
    """Warm up, then run one iteration between cudaProfilerStart and cudaProfilerStop."""
    for _ in range(WARMUP):
        phases: list[str] = []
        before()
        iteration(phases.append)
    before()

    def mark(phase: str) -> None:
        torch.cuda.nvtx.range_pop()
        # the phases that the last warm-up marked, less those that have ended
        phases.remove(phase)
        if phases:
            torch.cuda.nvtx.range_push(phases[0])

    # nsys looks for ranges in the thread that launched a kernel; the backward pass would have a thread of its own
    with torch.autograd.set_multithreading_enabled(False), torch.cuda.profiler.profile():
        torch.cuda.nvtx.range_push(phases[0])
        iteration(mark)
        torch.cuda.synchronize()
