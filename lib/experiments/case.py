"""Define a case, what it builds, and how it is measured by default."""

import contextlib
import gc
import zlib
from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import asdict, dataclass, field
from typing import ClassVar

import torch
import torch.distributed as dist
from torch import Tensor

from lib import catalog, timing, validate
from lib.instruments import compilation, device, environment, peak_memory
from lib.timing import Iteration

# a result of at most so many values may have ten times the tolerance: rounding averages out less
FEW = 1024


class WrongResult(Exception):
    """Signal a result that misses the reference by more than its tolerance."""


@dataclass
class Work:
    """Hold a case that is ready to measure; call `expected` before `iteration`."""

    device: str
    iteration: Iteration  # marks its phases
    # the reference's tensors, on the CPU, or functions of the result
    expected: Callable[[], dict[str, Tensor | Callable]]
    result: Callable[[], dict[str, Tensor]]  # the tensors that the last iteration produced
    tolerance: float  # the largest relative error allowed
    facts: dict[str, object]  # numbers from theory for the record
    graphs: bool = False  # CUDA graphs replay it, whose live memory the allocator does not count
    before: Callable[[], None] = timing.nothing  # runs before each iteration, outside the timed region
    repeats: bool = False  # an iteration may follow another without `before`; always true if there is no `before`
    around_first: Callable[[], AbstractContextManager[dict]] = lambda: contextlib.nullcontext({})  # fills metrics
    training: object = None  # the model in training that iterates, if it is one
    compiled: bool = False  # the first iteration compiles, as `Case.compiles` says
    level_bytes: int = 0  # live tensors before the case, which are none of its own
    clock: object = None  # the device's own, or the one that all ranks share

    def __post_init__(self):
        if self.clock is None:
            self.clock = device.on(self.device).clock()
        if self.before is timing.nothing:
            self.repeats = True


@dataclass
class Recording:
    """Collect the metrics of a record in the making, and free what was built for it."""

    case: "Case"
    round: int = 0  # the round of a sweep, from 1; 0 outside of one
    earlier_cases: int = 0  # cases that this process has measured before; with none it is fresh
    level_bytes: int = 0  # live tensors on a GPU before the case
    metrics: dict = field(default_factory=dict)
    works: list[Work] = field(default_factory=list)
    compiled: bool = False  # True once any of the works was compiled
    part: str = "case"  # what runs now: the case, its reference, or its pairs; named if memory runs out

    def setup(self, case: "Case | None" = None) -> Work:
        """Build the case, or another one beside it, from a fixed seed."""
        torch.manual_seed(0)
        built = case or self.case
        work = built.setup()
        work.compiled = built.compiles
        work.level_bytes = self.level_bytes
        self.compiled |= built.compiles
        self.works.append(work)
        if case is None:
            self.metrics |= work.facts
        return work

    def free(self, keep: int = 0) -> None:
        """Free all works but the first `keep`, even if a notebook's variable holds one."""
        for work in self.works[keep:]:
            vars(work).clear()
        del self.works[keep:]
        gc.collect()


class Case:
    """Hold one point of an experiment, whose fields are the notebook's axes.

    Subclasses are frozen dataclasses with a field `device`, for which `auto` is the fastest one here. Their method
    `setup` builds the case and returns its Work, unless their own `measure` needs none. They raise ValueError for a
    value of another type, out of range, or not among the names of its field (see `validate.fields`)."""

    experiment: ClassVar[str]
    allocator: ClassVar[str] = "keeps"  # what the process does with freed memory (see `allocator.use`)
    compiles: ClassVar[bool] = False  # True if any part goes through torch.compile
    probed_before: ClassVar[bool] = True  # False if the noise probe would warm up what must be cold

    def __post_init__(self):
        object.__setattr__(self, "device", device.choose(self.device))
        validate.fields(self)

    def unavailable(self) -> str | None:
        """Return why this machine cannot run the case, or None."""
        missing = environment.compiler_missing(self.device) if self.compiles else None
        return missing or device.on(self.device).lacks(getattr(self, "precision", "fp32"))

    def measure(self, record: Recording, seconds: float) -> None:
        """Check the result, then measure times, memory in the first round, and pairs."""
        work = record.setup()
        check(record, work)
        record.metrics |= times(work, seconds)
        # bytes do not vary from round to round
        if record.round <= 1:
            record.metrics |= memory(work)
        pairs(record, work, seconds)


def check(record: Recording, work: Work) -> None:
    """Run the first iteration; raise WrongResult for an error beyond the tolerance.

    Records `<name>_error` of each result, `first_iteration_ms`, which includes compiling, and what `work.around_first`
    yields. A compiled case compiles from empty caches in its first round, and adds what `compilation.cold` counts;
    in a sweep, later rounds load those graphs."""
    record.part = "reference"
    expected = work.expected()
    record.part = "case"
    compiling = contextlib.nullcontext({})
    if work.compiled:
        compilation.start(work.device)
        if record.round <= 1:
            compiling = compilation.cold()
    with compiling as counts, work.around_first() as noted:
        first = timing.exactly(work.iteration, work.clock, 1, work.before)
    record.metrics |= errors(work.result(), expected, work.tolerance)
    record.metrics["first_iteration_ms"] = first.metrics()["total_ms"]
    record.metrics |= noted
    record.metrics |= counts


def errors(results: dict[str, Tensor], expected: dict[str, Tensor | Callable], tolerance: float) -> dict:
    """Return `<name>_error` of each result; raises WrongResult beyond the tolerance."""
    metrics = {}
    for name, tensor in results.items():
        right = expected[name]
        if callable(right):
            right = right(results)
        error = relative_error(tensor, right)
        allowed = tolerance if tensor.numel() > FEW else 10 * tolerance
        if not error <= allowed:
            raise WrongResult(f"{name}: got {error:.2g}, expected at most {allowed:.2g}")
        metrics[f"{name}_error"] = [error]
    return metrics


def relative_error(tensor: Tensor, expected: Tensor) -> float:
    """Return the root mean square of the rows' relative errors, by norms.

    `expected` is on the CPU, and both are compared in its dtype. Rows run along the last dimension, and small ones
    count like large ones. No error is divided by less than a tenth of the mean norm, since some rows are zero."""
    norms = expected.norm(dim=-1)
    differences = (tensor.detach().cpu().to(expected.dtype) - expected).norm(dim=-1)
    return (differences / norms.clamp(min=0.1 * norms.mean())).square().mean().sqrt().item()


def times(work: Work, seconds: float) -> dict:
    """Return the samples of each phase, named as in `timing.Samples.metrics`."""
    return timing.measure(work.iteration, work.clock, seconds, work.before, work.repeats).metrics()


def memory(work: Work) -> dict[str, list[float]]:
    """Return the peak memory of each phase in MiB, named as in `peak_memory.peaks`.

    It is empty where live tensors are not counted: in compiled code on a CPU, and in CUDA graphs."""
    if work.graphs or (work.compiled and work.device == "cpu"):
        return {}
    work.before()
    return peak_memory.peaks(work.iteration, work.device, work.level_bytes)


def pairs(record: Recording, work: Work, seconds: float) -> None:
    """Time the case in interleaved pairs with its baseline, if it has one.

    Where there is no memory for both, the case's own times hold, and `pairs_ran_out` says so."""
    other = catalog.baseline(type(record.case).experiment, asdict(record.case))
    if other is None:
        return
    record.part = "pairs"
    try:
        pairs_with(record.setup(type(record.case)(**other)), record, work, seconds)
    except Exception as error:
        # the other ranks would wait for this one, so there the case has run out
        if dist.is_initialized() or not peak_memory.out_of_memory(error):
            raise
        record.metrics["pairs_ran_out"] = True
    finally:
        record.free(keep=1)


def pairs_with(base: Work, record: Recording, work: Work, seconds: float) -> None:
    """Time the case in interleaved pairs with another one."""
    seed = zlib.crc32(f"{asdict(record.case)} {record.round}".encode())
    both_repeat = work.repeats and base.repeats
    compared = timing.compare(
        work.iteration, base.iteration, work.clock, seconds, seed, (work.before, base.before), both_repeat
    )
    record.metrics |= compared.metrics()
