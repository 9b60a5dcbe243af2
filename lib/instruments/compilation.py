"""Follows what torch.compile does while something runs for the first time.

The compiler, whose import takes a second, is imported when something compiles.
"""

import contextlib
import functools
from collections import Counter
from collections.abc import Iterator

import torch


@functools.cache
def start(device: str) -> None:
    """Compile something once in a process, so that no case pays for the compiler's own start."""
    torch.compile(torch.sin)(torch.ones(1, device=device))


def reset() -> None:
    """Forget what this process has compiled, and let a program fail that is compiled for too many shapes, where it
    would go on eagerly in silence."""
    import torch._dynamo

    torch.compiler.reset()
    torch._dynamo.config.fail_on_recompile_limit_hit = True


def name_kernels() -> None:
    """On a CPU the kernels of a compiled graph call nothing that a profiler sees; from now on they tell their names."""
    import torch._inductor.config

    torch._inductor.config.cpp.enable_kernel_profile = True


@contextlib.contextmanager
def hits() -> Iterator[dict[str, int]]:
    """Counts the graphs that the block takes from a cache instead of compiling them: yields a metric that the end of
    the block fills, `compile_cache_hits`."""
    from torch._dynamo.utils import counters

    found, before = {}, counters["inductor"]["fxgraph_cache_hit"]
    yield found
    found["compile_cache_hits"] = counters["inductor"]["fxgraph_cache_hit"] - before


@contextlib.contextmanager
def cold() -> Iterator[dict]:
    """Nothing compiled inside the block comes from a cache: its caches are new and vanish with it. Yields metrics that
    the end of the block fills: `graphs`, how many were compiled, `graph_breaks`, how often one had to end before the
    program did, and `graph_break_reasons`, a table of `reason` (its first line) and `count`."""
    from torch._dynamo.utils import counters
    from torch._inductor.utils import fresh_cache

    found: dict = {}
    graphs, breaks = counters["stats"]["unique_graphs"], Counter(counters["graph_break"])
    with fresh_cache():
        yield found
    reasons = Counter(counters["graph_break"]) - breaks
    found["graphs"] = counters["stats"]["unique_graphs"] - graphs
    found["graph_breaks"] = reasons.total()
    names = [reason.strip().partition("\n")[0] for reason in reasons]
    found["graph_break_reasons"] = {"reason": names, "count": list(reasons.values())}
