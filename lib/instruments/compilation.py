"""Observe what torch.compile does.

Its modules are imported inside the functions, since that takes a second.
"""

import contextlib
import functools
import os
import shutil
from collections.abc import Iterator

import torch

CACHE = "TORCHINDUCTOR_CACHE_DIR"


@functools.cache  # once a process and device: the compiler stays started
def start(device: str) -> None:
    """Start the compiler, so that no case pays for it."""
    _fail_on_recompile_limit()
    torch.compile(torch.sin)(torch.ones(1, device=device))


def reset() -> None:
    """Forget what this process has compiled."""
    torch.compiler.reset()
    _fail_on_recompile_limit()


def _fail_on_recompile_limit() -> None:
    """Let too many recompilations fail; PyTorch would warn and go on."""
    import torch._dynamo

    torch._dynamo.config.fail_on_recompile_limit_hit = True


def name_kernels() -> None:
    """Make compiled CPU kernels report their names to a profiler, except on macOS."""
    import torch._inductor.config

    torch._inductor.config.cpp.enable_kernel_profile = True


@contextlib.contextmanager
def cold() -> Iterator[dict]:
    """Compile inside the block from empty caches.

    Call `reset` before, if this process has compiled anything. At the block's end, what the block has compiled is
    copied to $TORCHINDUCTOR_CACHE_DIR, if set; PyTorch sets that when it first compiles. Yields a dict that then gets
    metrics: the numbers of compiled `graphs` and of `graph_breaks`, and `graph_break_reasons`, a table of `reason` (its
    first line) and `count`."""
    from torch._dynamo.utils import counters
    from torch._inductor.utils import fresh_cache

    metrics: dict = {}
    counters.clear()
    shared_cache = os.environ.get(CACHE)
    with fresh_cache():
        yield metrics
        # inside the block, the variable names the fresh cache
        if shared_cache:
            shutil.copytree(os.environ[CACHE], shared_cache, copy_function=_copy_beside, dirs_exist_ok=True)
    breaks = counters["graph_break"]
    metrics["graphs"] = counters["stats"]["unique_graphs"]
    metrics["graph_breaks"] = breaks.total()
    first_lines = [reason.strip().partition("\n")[0] for reason in breaks]
    metrics["graph_break_reasons"] = {"reason": first_lines, "count": list(breaks.values())}


def _copy_beside(source: str, target: str) -> str:
    """Copy a file, and put it in place by renaming."""
    # a process crashes when a library that it has loaded is overwritten; a renamed one leaves the loaded file alone
    beside = f"{target}.{os.getpid()}"
    shutil.copy2(source, beside)
    os.replace(beside, target)
    return target
