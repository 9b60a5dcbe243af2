"""Tell what each rank does when in one step, with the all-reduces beside it."""

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

STEPS = 5  # traced, of which one is told
START = "step begins"  # the name of a mark in the trace
ALL_REDUCE = "all-reduce"
LEAST_MS = 1e-6  # when the first rank begins: a record has no time of zero


def typical_step(iteration: Iteration, before: Callable[[], None], median_ms: float) -> dict[str, list]:
    """Trace some steps, and return the one whose time is nearest `median_ms`.

    All ranks must pass the same. The columns `rank`, `part`, `start_ms` and `end_ms` say when each phase and each
    all-reduce of this rank began and ended; zero is when the first rank began. Phases are those that the iteration
    marks. All-reduces are those of torch.profiler's trace, which makes a step slower: so the first, unrecorded one does
    not count."""
    device = DEVICES[dist.get_backend()]
    clock = on(device).clock()
    phases: list[str] = []
    durations_ms: list[list[float]] = []  # of each step

    def mark(phase: str) -> None:
        clock.mark()
        phases.append(phase)

    with tempfile.TemporaryDirectory(prefix="trace-") as folder:
        file = Path(folder, "trace.json")
        with torch.profiler.profile(
            activities=on(device).activities(), acc_events=True,
            schedule=torch.profiler.schedule(wait=0, warmup=1, active=STEPS, repeat=1),
            on_trace_ready=lambda profiler: profiler.export_chrome_trace(str(file)),
        ) as profiler:  # fmt: skip
            for _ in range(1 + STEPS):
                phases.clear()
                before()
                dist.barrier()
                with torch.profiler.record_function(START):
                    clock.start()
                iteration(mark)
                durations_ms.append([ns / 1e6 for ns in clock.stop()])
                profiler.step()
        trace = json.loads(file.read_text())
    recorded_ms = durations_ms[1:]
    # a step takes as long as its slowest rank
    totals_ms = torch.tensor([sum(step_ms) for step_ms in recorded_ms], dtype=torch.float64, device=device)
    dist.all_reduce(totals_ms, dist.ReduceOp.MAX)
    told = int((totals_ms - median_ms).abs().argmin())

    events = [event for event in trace["traceEvents"] if event.get("ph") == "X"]
    start_us = sorted(event["ts"] + event["dur"] for event in events if event["name"] == START)[told]
    end_us = start_us + 1e3 * sum(recorded_ms[told])
    start_ns = int(trace["baseTimeNanoseconds"] + 1e3 * start_us)
    first_ns = torch.tensor(start_ns, device=device)
    dist.all_reduce(first_ns, dist.ReduceOp.MIN)
    start_ms = LEAST_MS + (start_ns - first_ns.item()) / 1e6
    rows = []
    ends_ms = itertools.accumulate(recorded_ms[told], initial=start_ms)
    for phase, (phase_start_ms, phase_end_ms) in zip(phases, itertools.pairwise(ends_ms), strict=True):
        rows.append((phase, phase_start_ms, phase_end_ms))
    for event in sorted(events, key=lambda event: event["ts"]):
        # NCCL's barrier before each step is an all-reduce, too
        if _is_all_reduce(event) and start_us <= event["ts"] < end_us:
            event_ms = start_ms + (event["ts"] - start_us) / 1e3
            rows.append((ALL_REDUCE, event_ms, event_ms + event["dur"] / 1e3))
    parts, starts_ms, ends_ms = map(list, zip(*rows, strict=True))
    return {"rank": [dist.get_rank()] * len(rows), "part": parts, "start_ms": starts_ms, "end_ms": ends_ms}


def _is_all_reduce(event: dict) -> bool:
    """Tell if an event is an operation of gloo, or a kernel of NCCL."""
    return event["name"] == "gloo:all_reduce" or (event.get("cat") == "kernel" and "AllReduce" in event["name"])
