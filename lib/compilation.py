"""Follows what torch.compile does while something runs for the first time, from empty caches; knows no model."""

import contextlib
from collections import Counter
from collections.abc import Iterator

from torch._dynamo.utils import counters


@contextlib.contextmanager
def cold() -> Iterator[dict]:
    """Nothing compiled inside the block comes from a cache: its caches are new and vanish with it. Yields metrics that
    the end of the block fills: `graphs`, how many were compiled, `graph_breaks`, how often one had to end before the
    program did, and `graph_break_reasons`, a table of `reason` (its first line) and `count`."""
    from torch._inductor.utils import fresh_cache  # costs seconds to import

    found: dict = {}
    graphs, breaks = counters["stats"]["unique_graphs"], Counter(counters["graph_break"])
    with fresh_cache():
        yield found
    reasons = Counter(counters["graph_break"]) - breaks
    found["graphs"] = counters["stats"]["unique_graphs"] - graphs
    found["graph_breaks"] = reasons.total()
    names = [reason.strip().partition("\n")[0] for reason in reasons]
    found["graph_break_reasons"] = {"reason": names, "count": list(reasons.values())}
