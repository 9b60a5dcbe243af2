"""Follow the memory of one iteration from allocation to free, and name who allocates it."""

import math
import sys
import time
import weakref
from collections.abc import Callable
from dataclasses import dataclass
from itertools import accumulate
from pathlib import Path

import pandas as pd
import torch
from torch.utils._python_dispatch import TorchDispatchMode, is_traceable_wrapper_subclass
from torch.utils._pytree import tree_leaves

from lib.timing import Iteration

POINTS = 600  # at most, of a timeline in a record: a figure cannot show more
INSTRUMENTS = Path(__file__).parent
LIB = INSTRUMENTS.parent


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
    """Record what happens to the memory, with instants in microseconds since the start.

    `events` are instants with the change in bytes. `marks` are phases with the instant of their end and the number of
    events before it. `bytes_before` were alive before the iteration."""

    def __init__(self):
        self.began_ns = time.perf_counter_ns()
        self.bytes_before = 0
        self.events: list[tuple[float, int]] = []
        self.allocations: list[Allocation] = []
        self.marks: list[tuple[str, float, int]] = []

    def _now_us(self) -> float:
        return (time.perf_counter_ns() - self.began_ns) / 1e3

    def allocate(self, size: int, function: str, operator: str) -> Allocation:
        """Add an allocation; its phase is the one that is marked next."""
        allocation = Allocation(size, function, operator, "", len(self.events))
        self.allocations.append(allocation)
        self.events.append((self._now_us(), size))
        return allocation

    def free(self, allocation: Allocation) -> None:
        """Add the end of an allocation."""
        allocation.freed = len(self.events)
        self.events.append((self._now_us(), -allocation.bytes))

    def mark(self, phase: str) -> None:
        """Add the end of a phase."""
        # those of earlier phases have theirs already
        for allocation in reversed(self.allocations):
            if allocation.phase:
                break
            allocation.phase = phase
        self.marks.append((phase, self._now_us(), len(self.events)))

    def levels(self) -> list[int]:
        """Return the bytes alive at the start and after each event."""
        return list(accumulate((change for _, change in self.events), initial=self.bytes_before))

    def peaks(self) -> dict[str, int]:
        """Return the most bytes alive in each phase, `<phase>_peak`, and at its end, `<phase>_end`."""
        levels = self.levels()
        peaks = {}
        begin = 0
        for phase, _, end in self.marks:
            peaks[f"{phase}_peak"] = max(levels[begin : end + 1])
            peaks[f"{phase}_end"] = levels[end]
            begin = end
        return peaks

    def at_peak(self) -> list[Allocation]:
        """Return the allocations that are alive at the peak, or at the first of equal peaks."""
        levels = self.levels()
        # levels begin before the first event, so that of event i comes at i + 1
        event = levels.index(max(levels)) - 1
        alive = []
        for allocation in self.allocations:
            if allocation.born <= event and (allocation.freed is None or allocation.freed > event):
                alive.append(allocation)
        return alive

    def tables(self, count: int) -> dict[str, dict[str, list]]:
        """Return the tables of a record.

        `timeline` has the bytes alive, thinned; `phases` the begin and end of each phase. `largest` has the `count`
        largest allocations, where equal ones, as the weights of all layers, are counted in one row."""
        instants_us = [0.0] + [instant_us for instant_us, _ in self.events]
        levels = self.levels()
        shown = thinned_indices(levels, POINTS)
        ends_us = [end_us for _, end_us, _ in self.marks]
        rows = [(made.bytes / 2**20, made.function, made.operator, made.phase) for made in self.allocations]
        allocations = pd.DataFrame(rows, columns=["each_mib", "function", "operator", "phase"])
        # a stable sort keeps equal ones in the order in which they were made
        largest = allocations.sort_values("each_mib", ascending=False, kind="stable").head(count)
        counts = largest.groupby(list(largest), sort=False).size().reset_index(name="count")
        return {
            "timeline": {
                "instant_us": [instants_us[i] for i in shown],
                "live_mib": [levels[i] / 2**20 for i in shown],
            },
            "phases": {
                "phase": [phase for phase, _, _ in self.marks],
                "begin_us": [0.0, *ends_us[:-1]],
                "end_us": ends_us,
            },
            "largest": counts.to_dict("list"),
        }


def thinned_indices(values: list[float], most: int) -> list[int]:
    """Return indices of at most `most` values: both ends, and each stretch's extremes."""
    if len(values) <= most:
        return list(range(len(values)))
    width = math.ceil(len(values) / ((most - 2) // 2))
    indices = {0, len(values) - 1}
    for start in range(0, len(values), width):
        stretch = range(start, min(start + width, len(values)))
        indices.add(max(stretch, key=values.__getitem__))
        indices.add(min(stretch, key=values.__getitem__))
    return sorted(indices)


def follow(iteration: Iteration, maker: Callable[[str], str] | None = None) -> History:
    """Run one iteration, and return the history of its tensor storages, to the byte.

    `maker(operator)` names who allocates; by default it is the backward node, else the nearest function of lib, else
    the operator. A storage that the iteration touches but did not create existed from the start."""
    live = _LiveStorages(maker or _maker)
    with live:
        iteration(live.history.mark)
    return live.history


class _LiveStorages(TorchDispatchMode):
    """See every operation of the iteration, and with it every storage of a tensor."""

    def __init__(self, maker: Callable[[str], str]):
        super().__init__()
        self.maker = maker
        self.history = History()
        self.alive: dict[int, Allocation] = {}
        self.finalizers: dict[int, weakref.finalize] = {}

    def __exit__(self, *error):
        # what is freed later does not belong to the iteration
        for finalizer in self.finalizers.values():
            finalizer.detach()
        return super().__exit__(*error)

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        arguments = tree_leaves((args, kwargs))
        # the argument of lift_fresh was made just now, from numbers
        if function is not torch.ops.aten.lift_fresh.default:
            for leaf in arguments:
                self._see(leaf, None)
        result = function(*args, **(kwargs or {}))
        # arguments may have been resized
        for leaf in arguments + tree_leaves(result):
            self._see(leaf, function)
        return result

    def _see(self, leaf, function) -> None:
        """Note a storage that is new or resized; no `function` made those that were there before."""
        # a wrapper around other tensors holds no memory of its own
        if not isinstance(leaf, torch.Tensor) or leaf.is_meta or is_traceable_wrapper_subclass(leaf):
            return
        storage = leaf.untyped_storage()
        key = storage._cdata
        size = storage.nbytes()
        former = self.alive.get(key)
        if former is not None and former.bytes == size:
            return
        if former is None:
            self.finalizers[key] = weakref.finalize(storage, self._freed, key)
            self.finalizers[key].atexit = False
        else:
            # resized: moved to memory of another size
            self.history.free(former)
        if former is None and function is None:
            self.alive[key] = Allocation(size, "", "", "", -1)
            self.history.bytes_before += size
            return
        operator = ""
        if function is not None:
            operator = function._schema.name
        self.alive[key] = self.history.allocate(size, self.maker(operator), operator)

    def _freed(self, key: int) -> None:
        del self.finalizers[key]
        self.history.free(self.alive.pop(key))


def _maker(operator: str) -> str:
    """Name the backward node that allocates, else the nearest function of lib or the operator."""
    node = torch._C._current_autograd_node()
    if node:
        return node.name()
    return _nearest_function() or operator


def _nearest_function() -> str:
    """Name the nearest function of lib within the iteration; "" without one."""
    frame = sys._getframe()
    while frame and frame.f_code.co_filename == __file__:
        frame = frame.f_back
    while frame:
        path = Path(frame.f_code.co_filename)
        # this module again, or another that follows the iteration: what is outside allocates nothing
        if path.parent == INSTRUMENTS:
            return ""
        if path.is_relative_to(LIB):
            modules = path.relative_to(LIB).with_suffix("").parts
            # like experiments.training.Training.iteration
            return ".".join([*modules, frame.f_code.co_qualname.partition(".<locals>")[0]])
        frame = frame.f_back
    return ""
