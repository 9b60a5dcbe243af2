"""Tell what each rank does when in one step, with the collectives that run beside its phases."""

import itertools
import json
import tempfile
from collections.abc import Callable
from pathlib import Path

import torch
import torch.distributed as dist

from lib.instruments.device import on
from lib.parallel.ranks import DEVICES
from lib.timing import Iteration

START = "step begins"  # the name of a mark in the trace
GLOO, NCCL = "gloo:all_reduce", "AllReduce"  # an operation of gloo; a part of the names of NCCL's kernels
ALL_REDUCE = "all-reduce"
LEAST_MS = 1e-6  # when the first rank begins: a record has no time of zero


def followed(iteration: Iteration, before: Callable[[], None]) -> dict[str, list]:
    """Return when each phase and each all-reduce of a step began and ended in this rank, in ms.

    Zero is when the first rank began. An unrecorded step comes first. Phases are those that the iteration marks;
    all-reduces are taken from a trace of torch.profiler."""
    device, parts = DEVICES[dist.get_backend()], []
    here = on(device)
    clock = here.clock()

    def mark(part: str) -> None:
        clock.mark()
        parts.append(part)

    with tempfile.TemporaryDirectory(prefix="trace-") as folder:
        file = Path(folder, "trace.json")
        with torch.profiler.profile(
            activities=here.activities(), schedule=torch.profiler.schedule(wait=0, warmup=1, active=1, repeat=1),
            on_trace_ready=lambda profiler: profiler.export_chrome_trace(str(file)), acc_events=True,
        ) as profiler:  # fmt: skip
            for _ in range(2):
                parts.clear()
                before()
                dist.barrier()
                with torch.profiler.record_function(START):
                    clock.start()
                iteration(mark)
                phases_ms = [ns / 1e6 for ns in clock.stop()[0]]
                profiler.step()
        trace = json.loads(file.read_text())
    events = [event for event in trace["traceEvents"] if event.get("ph") == "X"]
    began_us = next(event["ts"] + event["dur"] for event in events if event["name"] == START)
    begin_ms = LEAST_MS + _since_first(trace["baseTimeNanoseconds"] + 1e3 * began_us, device)
    ends_ms = list(itertools.accumulate(phases_ms, initial=begin_ms))
    rows = list(zip(parts, ends_ms, ends_ms[1:], strict=False))
    own = [event for event in events if _is_all_reduce(event) and event["ts"] >= began_us]  # NCCL's barrier is one, too
    for event in sorted(own, key=lambda event: event["ts"]):
        start_ms = begin_ms + (event["ts"] - began_us) / 1e3
        rows.append((ALL_REDUCE, start_ms, start_ms + event["dur"] / 1e3))
    names, starts_ms, ends_ms = (list(column) for column in zip(*rows, strict=True))
    return {"rank": [dist.get_rank()] * len(rows), "part": names, "start_ms": starts_ms, "end_ms": ends_ms}


def _is_all_reduce(event: dict) -> bool:
    return event["name"] == GLOO or (event["cat"] == "kernel" and NCCL in event["name"])


def _since_first(instant_ns: float, device: str) -> float:
    """Return how many ms after the first rank's this rank's instant is."""
    first = torch.tensor(int(instant_ns), dtype=torch.int64, device=device)
    dist.all_reduce(first, dist.ReduceOp.MIN)
    return (int(instant_ns) - first.item()) / 1e6
