"""Profile the phases of an iteration: kernels on CUDA, operators on a CPU.

All numbers come from the trace that the profiler exports in Chrome's format. A phase ends where the iteration marks it.
An operator belongs to the phase in which it began. A kernel belongs to the phase in which the CPU launched it, since
the device may run it later.
"""

import json
import math
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path

import pandas as pd
import torch

from lib.instruments import kernel_classes
from lib.instruments.device import on
from lib.timing import Iteration

START = "iteration begins"  # the names of the marks in a trace
END = "phase ends: "
TOP = 12  # rows of a phase in the table of kernels
ON_DEVICE = ("kernel", "gpu_memcpy", "gpu_memset")
LAUNCHES = ("cuda_runtime", "cuda_driver")
NO_KERNELS = "the trace lacks kernels; CUPTI, which reports them, is missing or not permitted here"
SPAN = ["thread", "part", "at_us", "end_us"]
NODE = "autograd::engine::evaluate_function"  # in which the engine runs one node of the backward graph


def profile(
    iteration: Iteration, device: str, before: Callable[[], None], count: int, parts: Sequence[str] = ()
) -> dict:
    """Return the `metrics` of `count` profiled iterations.

    They follow one that is not recorded and one that is discarded. `before` runs before each, outside its phases.
    `parts` are ranges of torch.profiler.record_function inside the first phase. On a CPU one more iteration gives the
    table `products`."""

    def run() -> None:
        before()
        _note(START)
        iteration(lambda phase: _note(END + phase))
        # else the next iteration would be launched while this one runs
        on(device).synchronize()

    # the first one recorded can take several times as long as the others
    result = metrics(trace(run, 1 + count), device, parts, discarded=1)
    if device == "cpu":
        # apart, since noting shapes breaks up freed memory, which made the plain optimizer seven times as slow
        result["products"] = products(trace(run, 1, record_shapes=True))
    return result


def _note(name: str) -> None:
    with torch.profiler.record_function(name):
        pass


def trace(run: Callable[[], None], count: int, record_shapes: bool = False) -> list[dict]:
    """Return the events of `count` runs, after one unrecorded one."""
    with tempfile.TemporaryDirectory(prefix="trace-") as folder:
        file = Path(folder, "trace.json")
        with torch.profiler.profile(
            schedule=torch.profiler.schedule(wait=0, warmup=1, active=count, repeat=1),
            on_trace_ready=lambda profiler: profiler.export_chrome_trace(str(file)),
            record_shapes=record_shapes,
            acc_events=True,  # else PyTorch warns that it clears the events after a cycle, and here is but one
        ) as profiler:
            for _ in range(1 + count):
                run()
                profiler.step()
        return json.loads(file.read_bytes())["traceEvents"]


def metrics(trace_events: list[dict], device: str, parts: Sequence[str] = (), discarded: int = 0) -> dict:
    """Compute metrics and tables from a trace's events, or say `profiler_missing`.

    `profiled_<phase>_ms` and `profiled_total_ms` list one time for each iteration but the first `discarded` ones. The
    tables give `calls` and `total_us` of the iteration whose total is the median:
    - `kernels`: the most expensive kernels of each phase, on a CPU operators, with their share of all kernels' time.
    - `classes`: the sums of each phase by class (see `kernel_classes`).
    - `parts`, there if `parts` names ranges: the sums by class of what ran in them and in the backward nodes of their
      operators."""
    events = table(trace_events)
    windows = _windows(events)
    if device == "cpu":
        calls = _inside(_operators(events), windows)
    else:
        calls = _inside(_kernels(events), windows)
        # each phase of each iteration has some
        if len(calls.drop_duplicates(["iteration", "phase"])) < len(windows):
            return {"profiler_missing": NO_KERNELS}
    calls["class"] = list(map(kernel_classes.classify, calls["name"], calls["phase"]))
    phases_ms = _durations(windows, calls, device).iloc[discarded:]
    totals_ms = phases_ms.sum(axis="columns")
    result = {f"profiled_{phase}_ms": times_ms.tolist() for phase, times_ms in phases_ms.items()}
    result["profiled_total_ms"] = totals_ms.tolist()
    median = totals_ms.sort_values(kind="stable").index[(len(totals_ms) - 1) // 2]
    windows = windows[windows["iteration"] == median]
    calls = calls[calls["iteration"] == median]
    result["kernels"] = _largest(calls).to_dict("list")
    result["classes"] = _sum_up(calls, ["phase", "class"]).to_dict("list")
    if parts:
        calls_in_parts = _inside(calls, _part_spans(events, windows, parts), by="thread")
        result["parts"] = _sum_up(calls_in_parts, ["part", "phase", "class"]).to_dict("list")
    return result


def products(trace_events: list[dict]) -> dict[str, list]:
    """Tabulate a CPU's matrix products by phase and `shape`: `calls`, `total_us`, `flops`.

    The trace is one of `record_shapes`."""
    events = table(trace_events)
    calls = _inside(_operators(events), _windows(events))
    made = calls[calls["name"].isin(["aten::mm", "aten::bmm"])]
    shapes, flops = [], []
    for left, right, *_ in made["dims"]:
        sizes = [*left, right[-1]]  # (B,) M, K, N
        shapes.append(" × ".join(map(str, sizes)))
        flops.append(2.0 * math.prod(sizes))
    sums = made.assign(shape=shapes, flops=flops).groupby(["phase", "shape"], observed=True)
    sums = sums.agg(calls=("us", "count"), total_us=("us", "sum"), flops=("flops", "sum"))
    return sums.sort_values(["phase", "total_us"], ascending=[True, False]).reset_index().to_dict("list")


def table(trace_events: list[dict]) -> pd.DataFrame:
    """Tabulate events with a duration in the order of their starts.

    Of two that start together, the longer comes first: it called the other."""
    rows = []
    for event in trace_events:
        if event.get("ph") == "X":
            arguments = event.get("args", {})
            rows.append({
                "category": event["cat"],
                "name": event["name"],
                "thread": str(event["tid"]),
                "at_us": float(event["ts"]),
                "us": float(event["dur"]),
                "correlation": arguments.get("correlation"),  # tells which launch a kernel has
                "number": arguments.get("Sequence number"),  # tells which node of the backward graph an operator has
                "dims": arguments.get("Input Dims"),  # the shapes of an operator's inputs
            })  # fmt: skip
    events = pd.DataFrame(rows).sort_values(["at_us", "us"], ascending=[True, False], kind="stable", ignore_index=True)
    return events.assign(end_us=events["at_us"] + events["us"])


def _windows(events: pd.DataFrame) -> pd.DataFrame:
    """Tabulate the phases of all iterations in their order."""
    is_note = (events["category"] == "user_annotation") & events["name"].str.startswith((START, END))
    notes = events[is_note]
    # a phase lasts from the note before it to its own
    windows = pd.DataFrame({
        "iteration": (notes["name"] == START).cumsum() - 1,
        "phase": notes["name"].str.removeprefix(END),
        "at_us": notes["end_us"].shift(),
        "end_us": notes["at_us"],
    })  # fmt: skip
    windows = windows[notes["name"] != START].reset_index(drop=True)
    # a categorical keeps the order of the phases in every table
    windows["phase"] = pd.Categorical(windows["phase"], windows["phase"].unique())
    return windows


def _inside(calls: pd.DataFrame, spans: pd.DataFrame, by: str | None = None) -> pd.DataFrame:
    """Return the calls that began inside a span, with that span's columns."""
    # each call gets the last span that began before it, which may have ended before it, too
    in_order = calls.sort_values("at_us", kind="stable")
    placed = pd.merge_asof(in_order, spans.sort_values("at_us"), on="at_us", by=by, suffixes=("", "_of_span"))
    return placed[placed["at_us"] <= placed["end_us_of_span"]].drop(columns="end_us_of_span")


def _operators(events: pd.DataFrame) -> pd.DataFrame:
    """Return a CPU's operators with their own time, without that of those they call."""
    operators = events[events["category"] == "cpu_op"]
    own_us = operators["us"].to_dict()
    for _, thread in operators.groupby("thread"):
        running = []  # the outermost first
        for operator in thread.itertuples():
            while running and running[-1].end_us <= operator.at_us:
                running.pop()
            if running:
                own_us[running[-1].Index] -= operator.us
            running.append(operator)
    return operators.assign(us=pd.Series(own_us, dtype=float).clip(lower=0))


def _kernels(events: pd.DataFrame) -> pd.DataFrame:
    """Return a GPU's kernels and copies, with `at_us` and `thread` of their launch.

    Their `us` and `end_us` stay the device's."""
    on_device = events[events["category"].isin(ON_DEVICE)].dropna(subset="correlation")
    launches = events[events["category"].isin(LAUNCHES)].dropna(subset="correlation")
    # calls at two levels of the interface can report one launch
    launches = launches.drop_duplicates("correlation")[["correlation", "at_us", "thread"]]
    # a kernel has one launch, while that of a CUDA graph starts several kernels
    return on_device.drop(columns=["at_us", "thread"]).merge(launches, on="correlation")


def _durations(windows: pd.DataFrame, calls: pd.DataFrame, device: str) -> pd.DataFrame:
    """Tabulate the milliseconds of each iteration, a row, and phase, a column.

    On a CPU a phase lasts from mark to mark. On a GPU a phase ends with the last kernel launched in it, as an event on
    the stream would show. It begins at the end of the phase before, or at the iteration's begin."""
    begins_us = windows["at_us"]
    ends_us = windows["end_us"]
    if device != "cpu":
        last_us = calls.groupby(["iteration", "phase"], observed=True)["end_us"].max().rename("last_us")
        ends_us = windows.join(last_us, on=["iteration", "phase"])["last_us"]
        is_first_phase = windows["iteration"].diff() != 0
        begins_us = begins_us.where(is_first_phase, ends_us.shift())
    durations = windows.assign(ms=(ends_us - begins_us) / 1e3)
    return durations.pivot_table(index="iteration", columns="phase", values="ms", observed=True)


def _sum_up(calls: pd.DataFrame, keys: list[str]) -> pd.DataFrame:
    """Tabulate calls and microseconds in one iteration, by these columns."""
    # a categorical keeps the order of the classes in every table
    calls = calls.assign(**{"class": pd.Categorical(calls["class"], kernel_classes.CLASSES)})
    sums = calls.groupby(keys, observed=True)["us"].agg(calls="count", total_us="sum")
    return sums.reset_index()


def _largest(calls: pd.DataFrame) -> pd.DataFrame:
    """Tabulate the kernels of each phase that take most of its time."""
    kernels = _sum_up(calls, ["phase", "name", "class"]).rename(columns={"name": "kernel"})
    phase_us = kernels.groupby("phase", observed=True)["total_us"].transform("sum")
    kernels["share_percent"] = 100 * kernels["total_us"] / phase_us
    kernels = kernels.sort_values(["phase", "total_us"], ascending=[True, False], kind="stable")
    return kernels.groupby("phase", observed=True).head(TOP)


def _part_spans(events: pd.DataFrame, windows: pd.DataFrame, parts: Sequence[str]) -> pd.DataFrame:
    """Tabulate the ranges `parts`, and the backward nodes of the operators in them.

    Autograd gives a node the number of the operator that made it."""
    ranges = events[(events["category"] == "user_annotation") & events["name"].isin(parts)]
    ranges = _inside(ranges, windows)
    ranges["part"] = pd.Categorical(ranges["name"], parts)
    spans = ranges[SPAN]
    numbered = events[(events["category"] == "cpu_op") & events["number"].notna()]
    is_node = numbered["name"].str.startswith(NODE)
    operators = _inside(numbered[~is_node], windows)
    # backward operators carry their node's number too, so only operators of phases with a range are kept
    operators = operators[operators["phase"].isin(ranges["phase"])]
    # several operators can carry one number; only the last of them made the node
    makers = _inside(operators.drop_duplicates("number", keep="last"), spans, by="thread")
    nodes = numbered[is_node].merge(makers[["number", "part"]], on="number")
    return pd.concat([spans, nodes[SPAN]])
