"""Profile the phases of an iteration: kernels on CUDA, operators on a CPU.

All numbers come from the trace that the profiler exports in Chrome's format, which a reader can open too. A phase ends
where the iteration marks it. An operator belongs to the phase in which it began. A kernel belongs to the phase in which
the CPU launched it, since the device may run it later.
"""

import bisect
import gzip
import itertools
import json
import shutil
import statistics
import tempfile
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

import torch

from lib.instruments import kernel_classes
from lib.instruments.device import on
from lib.timing import Iteration

START, END = "iteration begins", "phase ends: "  # the names of the marks in a trace
TOP = 12  # rows of a phase in the table of kernels, above one row for all others
OTHERS = "all others"
ON_DEVICE, LAUNCHES = ("kernel", "gpu_memcpy", "gpu_memset"), ("cuda_runtime", "cuda_driver")
NO_KERNELS = "the trace has no kernels; CUPTI, which reports them, is missing or not permitted here"
NODE = "autograd::engine::evaluate_function"  # in which the engine runs one node of the backward graph


@dataclass(frozen=True)
class Window:
    """Describe one phase of one iteration, in microseconds on the clock of the trace."""

    iteration: int
    phase: str
    start_us: float
    end_us: float


@dataclass(frozen=True)
class Call:
    """Describe one run of a kernel or operator.

    `us` is its own time, without the operators that it called. `at_us`, `thread` and `window` say when, on which
    thread and in which phase the CPU called it."""

    name: str
    us: float
    at_us: float
    end_us: float
    thread: int
    window: Window

    @property
    def kind(self) -> str:
        """Return its class (see `kernel_classes`)."""
        return kernel_classes.classify(self.name, self.window.phase)


def profile(
    iteration: Iteration, device: str, before: Callable[[], None] = lambda: None, count: int = 3,
    parts: Sequence[str] = (), keep: Path | None = None,
) -> dict:  # fmt: skip
    """Return the `metrics` of `count` profiled iterations, after one that is not recorded.

    `before` runs before each, outside its phases. `parts` are ranges of torch.profiler.record_function inside the first
    phase. If `keep` is given, the compressed trace is written there."""
    with tempfile.TemporaryDirectory(prefix="trace-") as folder:
        file = Path(folder, "trace.json")
        schedule = torch.profiler.schedule(wait=0, warmup=1, active=count, repeat=1)
        with torch.profiler.profile(
            activities=on(device).activities(), schedule=schedule, acc_events=True,
            on_trace_ready=lambda profiler: profiler.export_chrome_trace(str(file)),
        ) as profiler:  # fmt: skip
            for _ in range(1 + count):
                before()
                _note(START)
                iteration(lambda name: _note(END + name))
                on(device).synchronize()  # else the next one would be launched while this one runs
                profiler.step()
        if keep:
            keep.parent.mkdir(parents=True, exist_ok=True)
            with file.open("rb") as source, gzip.open(keep, "wb") as target:
                shutil.copyfileobj(source, target)
        return metrics(json.loads(file.read_text())["traceEvents"], device, parts)


def _note(name: str) -> None:
    with torch.profiler.record_function(name):
        pass


def metrics(events: list[dict], device: str, parts: Sequence[str] = ()) -> dict:
    """Compute metrics and tables from the events of a trace, or say why not in `profiler_missing`.

    `profiled_<phase>_ms` and `profiled_total_ms` list one time for each iteration. The tables give `calls` and
    `total_us` as the mean of one iteration. `kernels` has the most expensive kernels of each phase, with statistics
    of the time of a call. `classes` sums each phase by class. `parts` sums by class what ran in these ranges and in
    the backward nodes of their operators."""
    events = sorted((e for e in events if e.get("ph") == "X"), key=lambda e: (e["ts"], -e["dur"]))
    windows = _windows(events)
    find = _finder([(window.start_us, window.end_us, window) for window in windows])
    calls = (_operators if device == "cpu" else _kernels)(events, find)
    if device != "cpu" and (reason := _missing(windows, calls)):
        return {"profiler_missing": reason}
    found = _durations(windows, calls, device)
    found |= {"kernels": _by_name(windows, calls), "classes": _by_class(windows, calls)}
    return found | ({"parts": _by_part(events, windows, find, calls, parts)} if parts else {})


def _windows(events: list[dict]) -> list[Window]:
    """List the phases of all iterations in their order."""
    windows, count, since = [], -1, 0.0
    for event in events:
        if event["cat"] == "user_annotation" and event["name"] == START:
            count, since = count + 1, event["ts"] + event["dur"]
        elif event["cat"] == "user_annotation" and event["name"].startswith(END):
            windows.append(Window(count, event["name"].removeprefix(END), since, event["ts"]))
            since = event["ts"] + event["dur"]
    return windows


def _finder(spans: list[tuple[float, float, object]]) -> Callable[[float], object]:
    """Return a function that finds the span around an instant, and returns its value or None."""
    ordered = sorted(spans, key=lambda span: span[:2])
    starts = [start_us for start_us, *_ in ordered]

    def find(at_us: float):
        index = bisect.bisect_right(starts, at_us) - 1
        return ordered[index][2] if index >= 0 and at_us <= ordered[index][1] else None

    return find


def _operators(events: list[dict], find: Callable[[float], Window | None]) -> list[Call]:
    """List the operators of a CPU, each with its own time."""
    operators = [event for event in events if event["cat"] == "cpu_op"]
    own_us, stacks = [event["dur"] for event in operators], {}
    for i, event in enumerate(operators):
        stack = stacks.setdefault(event["tid"], [])
        while stack and operators[stack[-1]]["ts"] + operators[stack[-1]]["dur"] <= event["ts"]:
            stack.pop()
        if stack:
            own_us[stack[-1]] -= event["dur"]
        stack.append(i)
    calls = []
    for event, us in zip(operators, own_us, strict=True):
        if window := find(event["ts"]):
            end_us = event["ts"] + event["dur"]
            calls.append(Call(event["name"], max(us, 0.0), event["ts"], end_us, event["tid"], window))
    return calls


def _kernels(events: list[dict], find: Callable[[float], Window | None]) -> list[Call]:
    """List the kernels and copies of a CUDA device, each placed where the CPU launched it."""
    launches = {e["args"].get("correlation"): e for e in events if e["cat"] in LAUNCHES}
    calls = []
    for event in events:
        launch = launches.get(event["args"].get("correlation")) if event["cat"] in ON_DEVICE else None
        if launch and (window := find(launch["ts"])):
            end_us = event["ts"] + event["dur"]
            calls.append(Call(event["name"], event["dur"], launch["ts"], end_us, launch["tid"], window))
    return calls


def _missing(windows: list[Window], calls: list[Call]) -> str | None:
    """Return why the kernels of a trace tell no times, or None.

    Each phase of each iteration must have some."""
    seen = {call.window for call in calls}
    lacking = dict.fromkeys(window.phase for window in windows if window not in seen)
    return (f"the trace lacks kernels of the {' and '.join(lacking)}" if calls else NO_KERNELS) if lacking else None


def _durations(windows: list[Window], calls: list[Call], device: str) -> dict[str, list[float]]:
    """Compute the milliseconds of each phase, on a CPU from mark to mark.

    On a GPU a phase ends with the last kernel launched in it, as an event on the stream would show. It begins at the
    end of the phase before, or at the iteration's begin."""
    ends: dict[Window, float] = {}
    for call in calls:
        ends[call.window] = max(ends.get(call.window, 0.0), call.end_us)
    found: dict[str, list[float]] = {}
    for i, window in enumerate(windows):
        first = i == 0 or windows[i - 1].iteration != window.iteration
        start_us, end_us = window.start_us, window.end_us
        if device != "cpu":
            start_us = start_us if first else ends[windows[i - 1]]
            end_us = ends[window]
        found.setdefault(f"profiled_{window.phase}_ms", []).append((end_us - start_us) / 1e3)
    total = [sum(phases) for phases in zip(*found.values(), strict=True)]
    return found | {"profiled_total_ms": total}


def _iterations(windows: list[Window]) -> int:
    return windows[-1].iteration + 1


def _phases(windows: list[Window]) -> list[str]:
    return list(dict.fromkeys(window.phase for window in windows))


def _by_name(windows: list[Window], calls: list[Call]) -> dict[str, list]:
    """Tabulate the largest kernels of each phase, with all others in one row, as nsys does."""
    count, rows = _iterations(windows), []
    for phase in _phases(windows):
        times: dict[str, list[float]] = {}
        for call in calls:
            if call.window.phase == phase:
                times.setdefault(call.name, []).append(call.us)
        ranked = sorted(times, key=lambda name: -sum(times[name]))
        whole = sum(map(sum, times.values()))
        shown = [(name, kernel_classes.classify(name, phase), times[name]) for name in ranked[:TOP]]
        if rest := [us for name in ranked[TOP:] for us in times[name]]:
            shown.append((OTHERS, "", rest))
        rows += [_row(phase, name, kind, of, count, whole) for name, kind, of in shown]
    return _columns(
        rows, "phase kernel class calls total_us mean_us median_us min_us max_us deviation_us share_percent"
    )


def _row(phase: str, name: str, kind: str, of: list[float], count: int, whole: float) -> tuple:
    total, share = sum(of), 100 * sum(of) / whole if whole else 0.0
    ends = (min(of), max(of), statistics.pstdev(of))
    calls = len(of) // count if len(of) % count == 0 else len(of) / count
    return phase, name, kind, calls, total / count, total / len(of), statistics.median(of), *ends, share


def _by_class(windows: list[Window], calls: list[Call]) -> dict[str, list]:
    """Tabulate all that ran, by phase and class."""
    keyed = (((call.window.phase, call.kind), call) for call in calls)
    return _summed("phase class", keyed, itertools.product(_phases(windows), kernel_classes.CLASSES), windows)


def _by_part(
    events: list[dict], windows: list[Window], find: Callable[[float], Window | None], calls: list[Call],
    parts: Sequence[str],
) -> dict[str, list]:  # fmt: skip
    """Tabulate what ran in the ranges `parts` and in the backward nodes of their operators.

    Autograd gives a node the number of the operator that made it."""
    spans, made = {}, {}
    ranges = [e for e in events if e["cat"] == "user_annotation" and e["name"] in parts and find(e["ts"])]
    for event in ranges:
        spans.setdefault(event["tid"], []).append((event["ts"], event["ts"] + event["dur"], event["name"]))
    within, phases = _locator(spans), {find(e["ts"]).phase for e in ranges}
    for event in events:
        number = event.get("args", {}).get("Sequence number")
        if event["cat"] == "cpu_op" and number is not None:
            if event["name"].startswith(NODE):
                if part := made.get(number):
                    spans.setdefault(event["tid"], []).append((event["ts"], event["ts"] + event["dur"], part))
            elif (window := find(event["ts"])) and window.phase in phases:
                # several operators can carry one number; only the last of them made the node, so it overwrites
                made[number] = within(event["tid"], event["ts"])
    within = _locator(spans)
    found = ((within(call.thread, call.at_us), call) for call in calls)
    keyed = (((part, call.window.phase, call.kind), call) for part, call in found)
    order = [(p, phase, kind) for phase in _phases(windows) for p in parts for kind in kernel_classes.CLASSES]
    return _summed("part phase class", keyed, order, windows)


def _locator(spans: dict[int, list[tuple[float, float, str]]]) -> Callable[[int, float], str | None]:
    """Return a function that names the span around an instant of a thread, or returns None."""
    finders = {thread: _finder(own) for thread, own in spans.items()}
    return lambda thread, at_us: finders[thread](at_us) if thread in finders else None


def _summed(
    names: str, keyed: Iterable[tuple[tuple, Call]], order: Iterable[tuple], windows: list[Window]
) -> dict[str, list]:
    """Tabulate calls and microseconds in one iteration, for each key of `order` that has any."""
    count, sums = _iterations(windows), {}
    for key, call in keyed:
        sums.setdefault(key, []).append(call.us)
    rows = [(*key, len(sums[key]) / count, sum(sums[key]) / count) for key in order if key in sums]
    return _columns(rows, f"{names} calls total_us")


def _columns(rows: list[tuple], names: str) -> dict[str, list]:
    """Convert rows to a table of equally long columns."""
    return {name: [row[i] for row in rows] for i, name in enumerate(names.split())}
