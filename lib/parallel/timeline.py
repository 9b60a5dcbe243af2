"""Tell what each rank does when in one step, with the messages beside it."""

import itertools
import time
from collections.abc import Callable

import pandas as pd
import torch
import torch.distributed as dist

from lib.instruments import profiler
from lib.instruments.device import on
from lib.parallel.ranks import DEVICES
from lib.timing import Iteration

STEPS = 5  # steps that are traced, of which one is returned
# each kind of message, and its name as a kernel of NCCL or as the operation of gloo that stands for it
MESSAGES = {
    "all-reduce": "AllReduce|gloo:all_reduce$",
    "all-gather": "AllGather|gloo:broadcast$",
    "reduce-scatter": "ReduceScatter|gloo:all_to_all$",
}


def typical_step(iteration: Iteration, before: Callable[[], None], median_ms: float) -> dict[str, list]:
    """Trace some steps; return the one nearest `median_ms`, the same on all ranks.

    The columns `rank`, `part`, `start_ms` and `end_ms` say when each phase that the iteration marks and each message of
    this rank (see MESSAGES) began and ended; zero is when the first rank began."""
    device = DEVICES[dist.get_backend()]
    clock = on(device).clock()
    phases: list[str] = []
    starts_ns: list[int] = []  # of each step
    durations_ms: list[list[float]] = []

    def mark(phase: str) -> None:
        clock.mark()
        phases.append(phase)

    def run() -> None:
        phases.clear()
        before()
        dist.barrier()
        # one moment in three clocks: the profiler's for messages, ours for phases, the system's for all ranks
        with torch.profiler.record_function(profiler.START):
            clock.start()
        starts_ns.append(time.time_ns())
        iteration(mark)
        durations_ms.append([ns / 1e6 for ns in clock.stop()])

    events = profiler.table(profiler.trace(run, STEPS))
    recorded_ms = durations_ms[1:]
    # a step takes as long as its slowest rank
    totals_ms = torch.tensor([sum(step_ms) for step_ms in recorded_ms], dtype=torch.float64, device=device)
    dist.all_reduce(totals_ms, dist.ReduceOp.MAX)
    told = int((totals_ms - median_ms).abs().argmin())
    start_ns = starts_ns[1 + told]
    first_ns = torch.tensor(start_ns, device=device)
    dist.all_reduce(first_ns, dist.ReduceOp.MIN)

    ends_ms = list(itertools.accumulate(recorded_ms[told], initial=0.0))
    parts = pd.DataFrame({"part": phases, "start_ms": ends_ms[:-1], "end_ms": ends_ms[1:]})
    start_us = events.loc[events["name"] == profiler.START, "end_us"].iloc[told]
    events = events[(events["category"] == "kernel") | events["name"].str.startswith("gloo:")]
    # NCCL's barrier before each step is an all-reduce, too
    events = events[events["at_us"].between(start_us, start_us + 1e3 * ends_ms[-1], inclusive="left")]
    for message, names in MESSAGES.items():
        sent = events[events["name"].str.contains(names)]
        times_ms = {"start_ms": (sent["at_us"] - start_us) / 1e3, "end_ms": (sent["end_us"] - start_us) / 1e3}
        parts = pd.concat([parts, pd.DataFrame({"part": message, **times_ms})])
    parts[["start_ms", "end_ms"]] += (start_ns - first_ns.item()) / 1e6
    return parts.assign(rank=dist.get_rank()).to_dict("list")
