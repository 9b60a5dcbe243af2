"""Follow the memory of one iteration from allocation to free, and name who allocates it."""

import functools
import math
import re
import sys
import time
import weakref
from collections import Counter
from dataclasses import dataclass
from itertools import accumulate
from pathlib import Path

import torch
from torch.utils._python_dispatch import TorchDispatchMode, is_traceable_wrapper_subclass
from torch.utils._pytree import tree_leaves

from lib.timing import Iteration

POINTS = 600  # at most, of a timeline in a record: a figure cannot show more
_LIB = Path(__file__).parent.parent
_OWN = {str(_LIB / "instruments" / name) for name in ("peak_memory.py", "memory_trace.py", "memory_timeline.py")}


def thinned_indices(values: list[float], most: int) -> list[int]:
    """Return indices of at most `most` values: both ends, and each stretch's extremes."""
    if len(values) <= most:
        return list(range(len(values)))
    width, kept = math.ceil(len(values) / ((most - 2) // 2)), {0, len(values) - 1}
    for start in range(0, len(values), width):
        run = range(start, min(start + width, len(values)))
        kept |= {max(run, key=values.__getitem__), min(run, key=values.__getitem__)}
    return sorted(kept)


@dataclass
class Allocation:
    """Describe an allocation: who made it, and which events begin and end it."""

    bytes: int
    function: str
    operator: str
    phase: str
    born: int
    freed: int | None = None


class History:
    """Record what happens to the memory.

    `events` are instants in ns with the change in bytes. `marks` are phases with the instant of their end and the
    number of events before it. `older` are the bytes alive before the iteration."""

    def __init__(self):
        self.began = time.perf_counter_ns()
        self.events, self.allocations, self.marks, self.older = [], [], [], 0

    def allocate(self, instant: int, size: int, function: str, operator: str) -> Allocation:
        """Add an allocation; its phase is the one that is marked next."""
        self.allocations.append(Allocation(size, function, operator, "", len(self.events)))
        self.events.append((instant, size))
        return self.allocations[-1]

    def free(self, instant: int, allocation: Allocation) -> None:
        """Add the end of an allocation."""
        allocation.freed = len(self.events)
        self.events.append((instant, -allocation.bytes))

    def mark(self, phase: str, instant: int | None = None) -> None:
        """Add the end of a phase."""
        for allocation in reversed(self.allocations):
            if self.marks and allocation.born < self.marks[-1][2]:
                break
            allocation.phase = phase
        self.marks.append((phase, instant or time.perf_counter_ns(), len(self.events)))

    def levels(self) -> list[int]:
        """Return the bytes alive at the start and after each event."""
        return list(accumulate((change for _, change in self.events), initial=self.older))

    def peaks(self) -> dict[str, int]:
        """Return the most bytes alive in each phase, `<phase>_peak`, and at its end, `<phase>_end`."""
        levels, begin, peaks = self.levels(), 0, {}
        for phase, _, end in self.marks:
            peaks |= {f"{phase}_peak": max(levels[begin : end + 1]), f"{phase}_end": levels[end]}
            begin = end
        return peaks

    def at_peak(self) -> list[Allocation]:
        """Return the allocations that are alive at the peak, or at the first of equal peaks."""
        levels = self.levels()
        event = levels.index(max(levels)) - 1
        return [a for a in self.allocations if a.born <= event and (a.freed is None or a.freed > event)]

    def tables(self, count: int) -> dict[str, dict[str, list]]:
        """Return the tables of a record, with instants in microseconds since the start.

        `timeline` has the bytes alive, thinned; `phases` the begin and end of each phase. `largest` has the `count`
        largest allocations, where equal ones are counted in one row."""
        instants = [0.0, *((instant - self.began) / 1e3 for instant, _ in self.events)]
        ends = [(instant - self.began) / 1e3 for _, instant, _ in self.marks]
        levels, largest = self.levels(), sorted(self.allocations, key=lambda a: -a.bytes)[:count]
        kept = thinned_indices(levels, POINTS)
        alike = Counter((a.bytes, a.function, a.operator, a.phase) for a in largest)
        size, function, operator, phase = (list(column) for column in zip(*alike, strict=True)) if alike else ([],) * 4
        return {
            "timeline": {
                "instant_us": [instants[i] for i in kept],
                "live_mib": [levels[i] / 2**20 for i in kept],
            },
            "phases": {
                "phase": [phase for phase, *_ in self.marks], "begin_us": [0.0, *ends[:-1]], "end_us": ends,
            },
            "largest": {
                "each_mib": [n / 2**20 for n in size], "count": list(alike.values()), "function": function,
                "operator": operator, "phase": phase,
            },
        }  # fmt: skip


class _LiveStorage(TorchDispatchMode):
    """Follow, to the byte, every tensor storage that the iteration creates or touches.

    One that it touches but did not create existed from the start. `maker(operator)` names who allocates."""

    def __init__(self, maker):
        super().__init__()
        self.history, self.alive, self.ends, self.maker = History(), {}, {}, maker

    def __exit__(self, *error):
        for end in self.ends.values():
            end.detach()  # what is freed later does not belong to the iteration
        return super().__exit__(*error)

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        given = tree_leaves((args, kwargs))
        if function is not torch.ops.aten.lift_fresh.default:  # its argument was just created
            for leaf in given:
                self._see(leaf, None)
        result = function(*args, **(kwargs or {}))
        for leaf in given + tree_leaves(result):  # arguments may have been resized
            self._see(leaf, function)
        return result

    def _see(self, leaf, function) -> None:
        # a tensor without memory, or one around others that hold it
        if not isinstance(leaf, torch.Tensor) or leaf.is_meta or is_traceable_wrapper_subclass(leaf):
            return
        storage, now = leaf.untyped_storage(), time.perf_counter_ns()
        key, size = storage._cdata, storage.nbytes()
        former = self.alive.get(key)
        if former is None:
            self.ends[key] = weakref.finalize(storage, self._freed, key)
            self.ends[key].atexit = False
        elif former.bytes == size:
            return
        else:
            self.history.free(now, former)  # resized: moved to memory of another size
        if function or former:
            operator = function._schema.name if function else ""
            self.alive[key] = self.history.allocate(now, size, self.maker(operator), operator)
        else:
            self.alive[key] = Allocation(size, "", "", "", -1)
            self.history.older += size

    def _freed(self, key: int) -> None:
        del self.ends[key]
        self.history.free(time.perf_counter_ns(), self.alive.pop(key))


def _maker(operator: str) -> str:
    """Name the backward node that allocates, else the nearest function of lib or the operator."""
    if node := torch._C._current_autograd_node():
        return node.name()
    return _nearest_function(_stack()) or operator


def follow(iteration: Iteration, maker=_maker) -> History:
    """Run one iteration, and return the history of its tensor storages."""
    live = _LiveStorage(maker)
    with live:
        iteration(live.history.mark)
    return live.history


def _stack():
    """Yield file and function of each frame that called into this module, nearest first."""
    frame = sys._getframe()
    while frame and frame.f_code.co_filename == __file__:
        frame = frame.f_back
    while frame:
        yield frame.f_code.co_filename, frame.f_code.co_qualname
        frame = frame.f_back


def _nearest_function(frames) -> str:
    """Name the nearest function of lib within the iteration; "" without one."""
    for filename, name in frames:
        if filename in _OWN:
            break
        if function := _function_name(filename, name):
            return function
    return ""


@functools.cache
def _function_name(filename: str, name: str) -> str:
    """Name a function of lib, like `experiments.training.Training.iteration`; else ""."""
    path = Path(filename)
    if not path.is_relative_to(_LIB):
        return ""
    return ".".join([*path.relative_to(_LIB).with_suffix("").parts, name.split(".<locals>")[0]])


def from_snapshot(snapshot: dict, marks: list[tuple[str, int]], began: int, older: int) -> History:
    """Build the history of the first CUDA device from `torch.cuda.memory._snapshot()`.

    It starts at `began`, when `older` bytes were there. Instants are Unix time in ns; bytes are those requested,
    before rounding. Makers are named by the recorded frames, C++ ones too if there are any."""
    history, pending, alive = History(), list(marks), {}
    history.began, history.older = began, older
    for entry in snapshot["device_traces"][0]:
        instant = 1000 * entry["time_us"]
        while pending and pending[0][1] < instant:
            history.mark(*pending.pop(0))
        if instant < began:
            continue
        if entry["action"] == "alloc":
            alive[entry["addr"]] = history.allocate(instant, entry["size"], *_maker_in(entry.get("frames", ())))
        elif entry["action"] == "free_completed":
            ended = alive.pop(entry["addr"], None) or Allocation(entry["size"], "", "", "", -1)
            history.free(instant, ended)
    for mark in pending:
        history.mark(*mark)
    return history


def _maker_in(frames: list[dict]) -> tuple[str, str]:
    """Return the function and operator that allocated, from the frames of a snapshot."""
    names = [frame["name"] for frame in frames]
    operators = [f"aten::{found[1]}" for name in names if (found := re.match(r"at::_ops::(\w+)::", name))]
    nodes = [found[1] for name in names if (found := re.search(r"(\w+Backward\d*|AccumulateGrad)::apply", name))]
    operator = operators[0] if operators else ""
    nearest = _nearest_function((frame["filename"], frame["name"]) for frame in frames)
    return (nodes[0] if nodes else nearest or operator), operator
