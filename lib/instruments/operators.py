"""Observe the operators of one iteration: the bytes that they move, and how long they take alone.

Products of matrices, fused attention and functions such as the exponential are timed alone. All others move bytes:
what they read and write, each distinct tensor once.
"""

import itertools
import math
import mmap
import statistics
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_iter, tree_map_only

from lib import timing
from lib.instruments.device import on
from lib.timing import Iteration

PRODUCT, ATTENTION, FUNCTION, MEMORY, VIEW = "product", "attention", "function", "memory", "view"
ALONE = (PRODUCT, ATTENTION, FUNCTION)  # kinds that are timed alone
PRODUCTS = ("mm", "addmm", "bmm", "baddbmm", "linear", "mv", "addmv", "dot")
FUNCTIONS = (  # these compute much for each value
    "_softmax", "_softmax_backward_data", "_log_softmax", "_log_softmax_backward_data", "silu", "silu_backward",
    "gelu", "gelu_backward", "sigmoid", "tanh", "exp", "log", "cos", "sin",
)  # fmt: skip
ALLOCATIONS = ("empty", "empty_like", "empty_strided", "new_empty", "new_empty_strided")
WRITE_ONLY = ("fill_", "zero_", "copy_")  # these do not read what they overwrite
LOOKUPS = ("embedding", "index", "index_select", "gather", "nll_loss_forward")  # these read only what they pick
LEAST_MS, LEAST_RUNS, MOST_RUNS = 100.0, 5, 100  # of a call that is timed alone
COLD_BYTES = 256 * 2**20  # of operands that take turns, since a step finds few of its weights in a cache
FRESH_BYTES = 64 * 2**20  # written to time page faults


@dataclass(frozen=True)
class Layout:
    """Describe a tensor by what the time of an operator depends on."""

    shape: tuple[int, ...]
    strides: tuple[int, ...]
    dtype: torch.dtype

    def __str__(self) -> str:
        dense = torch.empty(self.shape, device="meta").stride() == self.strides
        return "×".join(map(str, self.shape)) + ("" if dense else f" strides {' '.join(map(str, self.strides))}")

    def values(self, device: str) -> torch.Tensor:
        """Return what a tensor of this layout lies in: random numbers from 0 to 1, or zeros for integers."""
        count = 1 + sum((n - 1) * step for n, step in zip(self.shape, self.strides, strict=True))
        values = torch.zeros(count, dtype=self.dtype, device=device)
        return values.uniform_() if self.dtype.is_floating_point else values


@dataclass(frozen=True)
class Call:
    """Describe a call of an operator; one that is to be timed alone has its arguments, tensors as layouts.

    Of `moved_bytes`, `new_bytes` are written without being read."""

    phase: str
    operator: Callable
    kind: str
    moved_bytes: int
    new_bytes: int
    arguments: tuple = ()

    @property
    def key(self) -> tuple[str, str, str]:
        """Return its phase, the name of its operator and its kind."""
        return self.phase, _name(self.operator), self.kind

    @property
    def alike(self) -> tuple:
        """Return what the time of the call depends on."""
        return self.operator, self.kind, self.moved_bytes, self.new_bytes, self.arguments

    @property
    def layouts(self) -> list[Layout]:
        """Return the layouts of its tensors."""
        return [x for x in tree_iter(self.arguments) if isinstance(x, Layout)]

    @property
    def flops(self) -> int:
        """Return the FLOPs of a product of matrices; 0 for others."""
        if self.kind != PRODUCT:
            return 0
        left, right = (layout.shape for layout in self.layouts[-2:])
        return 2 * torch.Size(left).numel() * (right[-1] if len(right) > 1 else 1)

    def time_alone(self, device: str, calls: int) -> float:
        """Return the median milliseconds of the call, repeated on random tensors.

        `calls` of a step have operands of their own, as far as these fit into `COLD_BYTES`."""
        values = {layout: layout.values(device) for layout in self.layouts}
        copies = [
            tree_map_only(Layout, lambda x: values[x].clone().as_strided(x.shape, x.strides), self.arguments)
            for _ in range(max(1, min(calls, COLD_BYTES // self.moved_bytes)))
        ]
        clock, turns = on(device).clock(), itertools.cycle(copies)

        def once(count: int = 1) -> float:
            clock.start()
            for args, kwargs in itertools.islice(turns, count):
                self.operator(*args, **dict(kwargs))
            clock.mark()
            return clock.stop()[0][0] / 1e6 / count

        samples = [once() for _ in range(1 + LEAST_RUNS)][1:]
        (count,) = timing.batches(clock, [1e6 * ms for ms in samples])
        samples = samples if count == 1 else []
        while count * sum(samples) < LEAST_MS and len(samples) < MOST_RUNS:
            samples.append(once(count))
        return statistics.median(samples)


class Observer(TorchDispatchMode):
    """Count the calls of operators while it is active: forward, backward and in the optimizer.

    `spent_ms` has the time that each operator took in a phase; on a device that computes later it means nothing."""

    def __init__(self):
        super().__init__()
        self.calls: Counter[Call] = Counter()
        self.spent_ms: Counter[tuple] = Counter()
        self.phase: list[tuple] = []

    def __torch_dispatch__(self, operator, types, args=(), kwargs=None):
        clock = timing.HostClock()
        clock.start()
        result = operator(*args, **(kwargs or {}))
        clock.mark()
        self.phase.append((clock.stop()[0][0] / 1e6, operator, *_describe(operator, args, kwargs or {}, result)))
        return result

    def mark(self, phase: str) -> None:
        """End a phase."""
        for ms, *described in self.phase:
            call = Call(phase, *described)
            self.calls[call] += 1
            self.spent_ms[call.key] += ms
        self.phase = []


def metrics(iteration: Iteration, device: str, before: Callable[[], None] = timing.nothing) -> dict:
    """Return what the operators of one iteration do; nothing if it calls no products, as a compiled graph.

    The table `operators` has the calls of each operator in a phase and the bytes that they move; of these `new_bytes`
    are written without being read. On a CPU `spent_ms` is their time, the lesser of two iterations. `alone` has the
    calls of each product, fused attention or function, and `call_ms` of one. `phase_faults` has the page faults of
    another iteration, `fault_us` the cost of one."""
    first, seen = (_observe(iteration, before) for _ in range(2))
    if not any(call.kind == PRODUCT for call in seen.calls):
        return {}
    before()
    faults = _faults(iteration)
    before()
    sums: dict[tuple, list[int]] = {}
    for call, count in seen.calls.items():
        own = sums.setdefault(call.key, [0, 0, 0])
        for i, number in enumerate((1, call.moved_bytes, call.new_bytes)):
            own[i] += count * number
    names = "phase operator kind calls moved_bytes new_bytes"
    rows = [(*key, *numbers) for key, numbers in sums.items()]
    if device == "cpu":
        names += " spent_ms"
        rows = [(*row, min(seen.spent_ms[row[:3]], first.spent_ms.get(row[:3], math.inf))) for row in rows]
    most: dict[tuple, int] = {}
    for call, count in seen.calls.items():
        if call.kind in ALONE:
            most[call.alike] = max(count, most.get(call.alike, 0))
    own_ms = {alike: Call("", *alike).time_alone(device, count) for alike, count in most.items()}
    alone = [
        (*call.key, " · ".join(map(str, call.layouts)), call.flops, count, own_ms[call.alike])
        for call, count in seen.calls.items() if call.kind in ALONE
    ]  # fmt: skip
    return {
        "operators": _columns(names, rows),
        "alone": _columns("phase operator kind shapes flops calls call_ms", alone),
        "phase_faults": _columns("phase faults", faults),
        "fault_us": fault_us(),
    }


def _observe(iteration: Iteration, before: Callable[[], None]) -> Observer:
    before()
    with Observer() as seen:
        iteration(seen.mark)
    return seen


def fault_us(repeat: int = 5) -> list[float]:
    """Return the microseconds that a page fault adds to writing fresh memory; empty if none occurred."""
    found = []
    for _ in range(repeat):
        with mmap.mmap(-1, FRESH_BYTES, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS) as fresh:
            values, clock = torch.frombuffer(fresh, dtype=torch.float32), timing.HostClock()
            before = timing.minor_faults()
            clock.start()
            values.fill_(1)
            clock.mark()
            faults = timing.minor_faults() - before
            values.fill_(2)
            clock.mark()
            first, again = clock.stop()[0]
            del values  # the memory cannot be closed while a tensor uses it
        if faults and first > again:
            found.append((first - again) / 1e3 / faults)
    return found


def _faults(iteration: Iteration) -> list[tuple[str, int]]:
    """Return the page faults of each phase."""
    counts, names = [timing.minor_faults()], []

    def mark(phase: str) -> None:
        names.append(phase)
        counts.append(timing.minor_faults())

    iteration(mark)
    return [(name, b - a) for name, a, b in zip(names, counts, counts[1:], strict=False)]


def _columns(names: str, rows: Sequence[tuple]) -> dict[str, list]:
    return {name: [row[i] for row in rows] for i, name in enumerate(names.split())}


def _name(operator) -> str:
    """Return an operator's name without namespace and overload."""
    return operator._schema.name.rpartition("::")[2]


def _describe(operator, args: tuple, kwargs: dict, result) -> tuple:
    """Return kind, bytes and, if it is to be timed alone, the arguments of a call."""
    kind, moved = _kind(operator, (args, kwargs), result), (0, 0)
    if kind != VIEW and _name(operator) not in ALLOCATIONS:
        moved = _moved_bytes(operator, args, kwargs, result)
    if kind not in ALONE:
        return kind, *moved
    laid_out = tree_map_only(torch.Tensor, lambda x: Layout(tuple(x.shape), x.stride(), x.dtype), (args, kwargs))
    return kind, *moved, (_hashable(laid_out[0]), tuple((key, _hashable(x)) for key, x in laid_out[1].items()))


def _hashable(value):
    return tuple(map(_hashable, value)) if isinstance(value, list | tuple) else value


def _kind(operator, given: tuple, result) -> str:
    """Return the kind of an operator; a view returns the storage that it was given, unchanged."""
    name = _name(operator)
    for kind, known in ((PRODUCT, name in PRODUCTS), (ATTENTION, "attention" in name), (FUNCTION, name in FUNCTIONS)):
        if known:
            return kind
    owned, made = ({key[0] for key in _tensors(values)} for values in (given, result))
    return VIEW if made and made <= owned and not operator._schema.is_mutable else MEMORY


def _moved_bytes(operator, args: tuple, kwargs: dict, result) -> tuple[int, int]:
    """Add the distinct tensors that an operator reads or writes; and those that it writes without reading."""
    name, written, read = _name(operator), _tensors(result), {}
    for i, argument in enumerate(operator._schema.arguments):
        found = _tensors(args[i] if i < len(args) else kwargs.get(argument.name))
        changed = argument.alias_info is not None and argument.alias_info.is_write and argument.name != "grads"
        written |= found if changed else {}
        read |= {} if changed and (name in WRITE_ONLY or argument.is_out) else found
    if name.endswith("_like") or name.startswith("new_"):
        read = {}
    if name in LOOKUPS:
        read = {key: size for key, size in read.items() if key[-1] == torch.int64} | written
    new = sum(size for key, size in written.items() if name in LOOKUPS or key not in read)
    return sum(written.values()) + sum(read.values()), new


def _tensors(values) -> dict[tuple, int]:
    """Return the bytes of each distinct tensor; a broadcast dimension counts once."""
    found = {}
    for x in (x for x in tree_iter(values) if isinstance(x, torch.Tensor)):
        count = torch.Size(n for n, step in zip(x.shape, x.stride(), strict=True) if step).numel()
        key = x.untyped_storage()._cdata, x.storage_offset(), tuple(x.shape), x.stride(), x.dtype
        found[key] = count * x.element_size()
    return found
