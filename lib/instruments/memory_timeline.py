"""Follows the memory of one iteration from allocation to free, and who made what is large."""

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
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from lib.timing import Iteration

POINTS = 600  # of a timeline in a record: more than a figure can show
_LIB = Path(__file__).parent.parent
_OWN = {str(_LIB / "instruments" / name) for name in ("peak_memory.py", "memory_trace.py", "memory_timeline.py")}


def thinned(values: list[float], most: int) -> list[int]:
    """The places of at most so many of the values: of equal runs of them the highest and the lowest, and both ends."""
    if len(values) <= most:
        return list(range(len(values)))
    width, kept = math.ceil(len(values) / ((most - 2) // 2)), {0, len(values) - 1}
    for start in range(0, len(values), width):
        run = range(start, min(start + width, len(values)))
        kept |= {max(run, key=values.__getitem__), min(run, key=values.__getitem__)}
    return sorted(kept)


@dataclass
class Allocation:
    """Memory that an iteration took: who made it, and which of the events its birth and its end are."""

    bytes: int
    function: str
    operator: str
    phase: str
    born: int
    freed: int | None = None


class History:
    """What happened to the memory: `events`, each an instant in ns and the bytes by which it changed; the
    `allocations`; the `marks`, each a phase, the instant of its end and the number of events before that; and
    `older`, the bytes that were there before."""

    def __init__(self):
        self.began = time.perf_counter_ns()
        self.events, self.allocations, self.marks, self.older = [], [], [], 0

    def allocate(self, instant: int, size: int, function: str, operator: str) -> Allocation:
        """Note an allocation; its phase is the one that is marked next."""
        self.allocations.append(Allocation(size, function, operator, "", len(self.events)))
        self.events.append((instant, size))
        return self.allocations[-1]

    def free(self, instant: int, allocation: Allocation) -> None:
        """Note that an allocation ends."""
        allocation.freed = len(self.events)
        self.events.append((instant, -allocation.bytes))

    def mark(self, phase: str, instant: int | None = None) -> None:
        """Note that a phase ends."""
        for allocation in reversed(self.allocations):
            if self.marks and allocation.born < self.marks[-1][2]:
                break
            allocation.phase = phase
        self.marks.append((phase, instant or time.perf_counter_ns(), len(self.events)))

    def levels(self) -> list[int]:
        """The bytes alive at the start and after each event."""
        return list(accumulate((change for _, change in self.events), initial=self.older))

    def peaks(self) -> dict[str, int]:
        """`<phase>_peak`, the most bytes alive within each phase, and `<phase>_end`, those alive at its end."""
        levels, begin, found = self.levels(), 0, {}
        for phase, _, end in self.marks:
            found |= {f"{phase}_peak": max(levels[begin : end + 1]), f"{phase}_end": levels[end]}
            begin = end
        return found

    def at_peak(self) -> list[Allocation]:
        """The allocations that are alive when most bytes are, the first time if there are several."""
        levels = self.levels()
        event = levels.index(max(levels)) - 1
        return [a for a in self.allocations if a.born <= event and (a.freed is None or a.freed > event)]

    def tables(self, count: int) -> dict[str, dict[str, list]]:
        """The same as a record holds it, instants in microseconds since the start: `timeline`, the bytes alive from
        each on, thinned; `phases`, the begin and end of each; and of the `count` largest allocations `largest`, where
        alike ones are one row with their `count`."""
        instants = [0.0, *((instant - self.began) / 1e3 for instant, _ in self.events)]
        ends = [(instant - self.began) / 1e3 for _, instant, _ in self.marks]
        levels, largest = self.levels(), sorted(self.allocations, key=lambda a: -a.bytes)[:count]
        kept = thinned(levels, POINTS)
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
    """Follows, to the byte, every tensor storage that the operations inside create or touch, in `history`. What
    is touched and was not created inside has been there from the start. `maker` names who makes an allocation,
    given its operator."""

    def __init__(self, maker):
        super().__init__()
        self.history, self.alive, self.ends, self.maker = History(), {}, {}, maker

    def __exit__(self, *error):
        for end in self.ends.values():
            end.detach()  # what is freed later does not belong to the iteration
        return super().__exit__(*error)

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        given = tree_leaves((args, kwargs))
        if function is not torch.ops.aten.lift_fresh.default:  # what is given to that was made this instant
            for leaf in given:
                self._see(leaf, None)
        result = function(*args, **(kwargs or {}))
        for leaf in given + tree_leaves(result):  # what is given may have been resized
            self._see(leaf, function)
        return result

    def _see(self, leaf, function) -> None:
        if not isinstance(leaf, torch.Tensor):
            return
        storage, now = leaf.untyped_storage(), time.perf_counter_ns()
        key, size = storage._cdata, _taken(storage.nbytes(), leaf.device.type)
        known = self.alive.get(key)
        if known is None:
            self.ends[key] = weakref.finalize(storage, self._freed, key)
            self.ends[key].atexit = False
        elif known.bytes == size:
            return
        else:
            self.history.free(now, known)  # resized: moved to memory of another size
        if function or known:
            operator = function._schema.name if function else ""
            self.alive[key] = self.history.allocate(now, size, self.maker(operator), operator)
        else:
            self.alive[key] = Allocation(size, "", "", "", -1)
            self.history.older += size

    def _freed(self, key: int) -> None:
        del self.ends[key]
        self.history.free(time.perf_counter_ns(), self.alive.pop(key))


def _taken(size: int, device: str) -> int:
    """Bytes that a storage takes: CUDA's allocator rounds up to 512."""
    return -(-size // 512) * 512 if device == "cuda" else size


def _maker(operator: str) -> str:
    """Who allocates: in a backward pass the node of the graph, else the nearest function of lib, or the operator."""
    if node := torch._C._current_autograd_node():
        return node.name()
    return _nearest(_stack()) or operator


def follow(iteration: Iteration, maker=_maker) -> History:
    """Run one iteration, and tell what the tensor storages did in it."""
    live = _LiveStorage(maker)
    with live:
        iteration(live.history.mark)
    return live.history


def _stack():
    """The file and the function of each frame that called into this module, the nearest first."""
    frame = sys._getframe()
    while frame and frame.f_code.co_filename == __file__:
        frame = frame.f_back
    while frame:
        yield frame.f_code.co_filename, frame.f_code.co_qualname
        frame = frame.f_back


def _nearest(frames) -> str:
    """Find the first function of lib, up to where the iteration was called, as `_function` names it; or ""."""
    for filename, name in frames:
        if filename in _OWN:
            break
        if function := _function(filename, name):
            return function
    return ""


@functools.cache
def _function(filename: str, name: str) -> str:
    """Name a function by its place below lib, `experiments.training.Training.iteration`; "" for one outside of it."""
    path = Path(filename)
    if not path.is_relative_to(_LIB):
        return ""
    return ".".join([*path.relative_to(_LIB).with_suffix("").parts, name.split(".<locals>")[0]])


def from_snapshot(snapshot: dict, device: int, marks: list[tuple[str, int]], began: int, older: int) -> History:
    """The history of one CUDA device as its allocator tells it in `torch.cuda.memory._snapshot()`, from the instant
    `began`, when `older` bytes were there. Instants are Unix time in ns; bytes are those asked for, which the
    allocator rounds up. The frames name the makers, among them those of C++, where they were recorded."""
    history, pending, alive = History(), list(marks), {}
    history.began, history.older = began, older
    for entry in snapshot["device_traces"][device]:
        instant = 1000 * entry["time_us"]
        while pending and pending[0][1] < instant:
            history.mark(*pending.pop(0))
        if instant < began:
            continue
        if entry["action"] == "alloc":
            alive[entry["addr"]] = history.allocate(instant, entry["size"], *_makers(entry.get("frames", ())))
        elif entry["action"] == "free_completed":
            known = alive.pop(entry["addr"], None) or Allocation(entry["size"], "", "", "", -1)
            history.free(instant, known)
    for mark in pending:
        history.mark(*mark)
    return history


def _makers(frames: list[dict]) -> tuple[str, str]:
    """The function and the operator that allocated, as `follow` names them, from the frames of a snapshot."""
    names = [frame["name"] for frame in frames]
    operators = [f"aten::{found[1]}" for name in names if (found := re.match(r"at::_ops::(\w+)::", name))]
    nodes = [found[1] for name in names if (found := re.search(r"(\w+Backward\d*|AccumulateGrad)::apply", name))]
    operator = operators[0] if operators else ""
    nearest = _nearest((frame["filename"], frame["name"]) for frame in frames)
    return (nodes[0] if nodes else nearest or operator), operator
