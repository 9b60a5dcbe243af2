"""Follow an iteration's memory from allocation to free, and name who allocates."""

import math
import time
import traceback
import weakref
from collections.abc import Callable
from dataclasses import dataclass, fields
from itertools import accumulate
from pathlib import Path

import pandas as pd
import torch
from torch.utils._python_dispatch import TorchDispatchMode, is_traceable_wrapper_subclass
from torch.utils._pytree import tree_leaves

from lib.instruments.live_memory import identity
from lib.timing import Iteration

POINTS = 600  # at most, of a timeline in a record: a figure cannot show more
INSTRUMENTS = Path(__file__).parent
LIB = INSTRUMENTS.parent


@dataclass
class Allocation:
    """Describe an allocation: who made it, and which events begin and end it."""

    bytes: int
    function: str = ""
    operator: str = ""
    module: str = ""
    phase: str = ""
    born: int = -1
    freed: float = math.inf


class History(TorchDispatchMode):
    """Record an iteration's allocations and frees of tensor storages, to the byte.

    It sees every operation, and with it every storage; one that the iteration touches but did not create is in
    `bytes_before`. `events` are instants, in microseconds since the start, with the change in bytes. `marks` are phases
    with the instant of their end and the number of events before it. `module_name` names the module that runs."""

    # PyTorch's own tracker (torch.distributed._tools.mem_tracker) has the kinds at the peak, but no times and no makers

    def __init__(self, module_name: Callable[[], str]):
        super().__init__()
        self.module_name = module_name
        self.began_ns = time.perf_counter_ns()
        self.bytes_before = 0
        self.events: list[tuple[float, int]] = []
        self.marks: list[tuple[str, float, int]] = []
        self.allocations: list[Allocation] = []
        self.alive: dict[int, Allocation] = {}
        self.finalizers: dict[int, weakref.finalize] = {}

    def mark(self, phase: str) -> None:
        """End a phase, to which all allocations since the last mark belong."""
        for allocation in reversed(self.allocations):
            if allocation.phase:
                break
            allocation.phase = phase
        self.marks.append((phase, self._now_us(), len(self.events)))

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
        """Note a new or resized storage; without a `function`, it was there before."""
        # a wrapper around other tensors holds no memory of its own
        if not isinstance(leaf, torch.Tensor) or leaf.is_meta or is_traceable_wrapper_subclass(leaf):
            return
        storage = leaf.untyped_storage()
        key = identity(storage)
        size = storage.nbytes()
        former = self.alive.get(key)
        if former is None:
            self.finalizers[key] = weakref.finalize(storage, self._freed, key)
            self.finalizers[key].atexit = False
            if function is None:
                self.alive[key] = Allocation(size)
                self.bytes_before += size
                return
        elif former.bytes == size:
            return
        else:
            # resized: moved to memory of another size
            self._end(former)
        operator = ""
        if function is not None:
            operator = function._schema.name
        self.alive[key] = Allocation(size, _maker(operator), operator, self.module_name(), born=len(self.events))
        self.allocations.append(self.alive[key])
        self.events.append((self._now_us(), size))

    def _freed(self, key: int) -> None:
        del self.finalizers[key]
        self._end(self.alive.pop(key))

    def _end(self, allocation: Allocation) -> None:
        allocation.freed = len(self.events)
        self.events.append((self._now_us(), -allocation.bytes))

    def _now_us(self) -> float:
        return (time.perf_counter_ns() - self.began_ns) / 1e3

    def levels(self) -> list[int]:
        """Return the bytes alive at the start and after each event."""
        return list(accumulate((change for _, change in self.events), initial=self.bytes_before))

    def peaks(self) -> dict[str, int]:
        """Return the bytes at each phase's peak and end, `<phase>_peak`, `<phase>_end`."""
        levels = self.levels()
        peaks = {}
        begin = 0
        for phase, _, end in self.marks:
            peaks[f"{phase}_peak"] = max(levels[begin : end + 1])
            peaks[f"{phase}_end"] = levels[end]
            begin = end
        return peaks

    def table(self) -> pd.DataFrame:
        """Tabulate the allocations, with the fields of `Allocation`."""
        return pd.DataFrame(self.allocations, columns=[field.name for field in fields(Allocation)])

    def at_peak(self) -> pd.DataFrame:
        """Tabulate the allocations that are alive at the first of equal peaks."""
        levels = self.levels()
        # levels begin before the first event, so that of event i comes at i + 1
        event = levels.index(max(levels)) - 1
        made = self.table()
        return made[(made["born"] <= event) & (made["freed"] > event)]

    def record_tables(self, count: int) -> dict[str, dict[str, list]]:
        """Return the tables of a record.

        `timeline` has the bytes alive, thinned; `phases` the begin and end of each phase. `largest` has the `count`
        largest allocations, where equal ones, as the weights of all layers, are counted in one row."""
        instants_us = [0.0] + [instant_us for instant_us, _ in self.events]
        levels = self.levels()
        shown = thinned_indices(levels, POINTS)
        ends_us = [end_us for _, end_us, _ in self.marks]
        allocations = self.table().assign(each_mib=lambda table: table["bytes"] / 2**20)
        # a stable sort keeps equal ones in the order in which they were made
        largest = allocations.sort_values("each_mib", ascending=False, kind="stable").head(count)
        alike = largest.groupby(["each_mib", "function", "operator", "phase"], sort=False)
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
            "largest": alike.size().reset_index(name="count").to_dict("list"),
        }


def thinned_indices(values: list[float], most: int) -> list[int]:
    """Return at most `most` indices: both ends, and each stretch's extremes."""
    if len(values) <= most:
        return list(range(len(values)))
    width = math.ceil(len(values) / ((most - 2) // 2))
    indices = {0, len(values) - 1}
    for start in range(0, len(values), width):
        stretch = range(start, min(start + width, len(values)))
        indices.add(max(stretch, key=values.__getitem__))
        indices.add(min(stretch, key=values.__getitem__))
    return sorted(indices)


def follow(iteration: Iteration, module_name: Callable[[], str] = lambda: "") -> History:
    """Run one iteration, and return the history of its memory."""
    with History(module_name) as history:
        iteration(history.mark)
    return history


def _maker(operator: str) -> str:
    """Name the backward node that allocates, else the nearest function of lib."""
    node = torch._C._current_autograd_node()
    if node:
        return node.name()
    for frame, _ in traceback.walk_stack(None):
        path = Path(frame.f_code.co_filename)
        if path.is_relative_to(LIB) and path.parent != INSTRUMENTS:
            modules = path.relative_to(LIB).with_suffix("").parts
            # like experiments.training.Training.iteration
            return ".".join([*modules, frame.f_code.co_qualname.partition(".<locals>")[0]])
    return operator
