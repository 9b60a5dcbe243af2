"""Measures cases one after the other and saves each as soon as it is done.

A measurement notebook is a loop over `pending`, with `recording` around each case.
"""

import contextlib
import gc
import itertools
import json
import os
import random
import time
import zlib
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager
from dataclasses import asdict, dataclass, field
from pathlib import Path
from types import MappingProxyType

import pandas as pd
import torch

from lib import paths, timing
from lib.instruments import compilation, environment, noise, peak_memory
from lib.records import baselines, code_digest, results
from lib.timing import Iteration

FOLLOWED = 100  # of the largest allocations, before alike ones are counted together
FEW = 1024  # values of a result, among which rounding makes errors ten times the usual ones now and then
FATAL = ("oom", "too_large", "timeout", "crashed")
_BEGAN = time.monotonic()
_begun = itertools.count()  # the records that this process has begun


@dataclass
class Work:
    """What a case builds. `iteration` marks its phases; `before` runs outside the timed region of each;
    `expected` computes the right tensors by the reference, from the state before an iteration; `result` are
    those that the last iteration produced, of which an expected one may be a function; `tolerance` bounds their
    relative error; `facts` are numbers from theory that belong in the record; `compiled` says that the first iteration
    compiles; `around_first` surrounds that and yields metrics that its end fills; `annotate` puts ranges inside the
    iteration, for a profiler to see."""

    device: str
    iteration: Iteration
    expected: Callable[[], dict[str, torch.Tensor | Callable]]
    result: Callable[[], dict[str, torch.Tensor]]
    tolerance: float
    facts: dict[str, float | list[float]]
    compiled: bool = False
    before: Callable[[], None] = lambda: None
    around_first: Callable[[], AbstractContextManager[dict]] = lambda: contextlib.nullcontext({})
    annotate: Callable[[], None] = lambda: None


class WrongResult(Exception):
    """A variant whose result differs from the reference's by more than its tolerance."""


def pending(cases: list, round: int) -> Iterator:
    """The cases still to be measured in this round, until the sweep's time is up: `SWEEP_SECONDS_LEFT` seconds after
    this process began to measure."""
    for case in remaining(cases, round):
        if time.monotonic() - _BEGAN > float(os.environ.get("SWEEP_SECONDS_LEFT", "inf")):
            return
        yield case


def remaining(cases: list, round: int) -> list:
    """The cases without a record in this round that the machine can run, in the order in which the round
    measures them. A case that ended badly in an earlier round is not tried again. Round 0, by hand, is all.

    Where the records are elsewhere, a file that `SWEEP_CASES` names lists what is to be done, as `results.called` calls
    it: then it is the cases named there without a record here."""
    if round == results.BY_HAND:
        return cases
    order = shuffled(available(cases), round)
    if "SWEEP_CASES" not in os.environ:
        return [case for case in order if not done(case, round)]
    named = json.loads(Path(os.environ["SWEEP_CASES"]).read_text())
    return [case for case in order if called(case, round) in named and not results.status(record_path(case, round))]


def available(cases: list) -> list:
    """The cases that this machine has the means for."""
    return [case for case in cases if not case.unavailable()]


def shuffled(things: list, round: int) -> list:
    """The things in an order of the round's own, so that none always comes first."""
    return random.Random(round).sample(things, len(things))


def done(case, round: int) -> bool:
    """Whether a round of a sweep has nothing left to do for the case."""
    earlier = (results.status(record_path(case, r)) for r in range(1, round))
    return results.status(record_path(case, round)) is not None or any(s in FATAL for s in earlier)


def called(case, round: int) -> str:
    """What the record of a case in a round is called."""
    return results.called(type(case).experiment, asdict(case), round)


def record_path(case, round: int):
    """The file of the record of a case in a round."""
    return results.path(environment.machine(case.device), type(case).experiment, asdict(case), round)


@dataclass
class Recording:
    """The record of a case in the making: add to `metrics`, then leave the block that `recording` opened. `earlier` is
    how many this process began before."""

    case: object
    round: int
    metrics: dict = field(default_factory=dict)
    built: list[Work] = field(default_factory=list)
    earlier: int = field(default_factory=lambda: next(_begun))

    def setup(self) -> Work:
        """Build the case, once its predicted memory is seen to fit. Raises TooLarge if it does not."""
        peak_memory.preflight(self.case.predicted_bytes(), self.case.device)
        work = self.build(self.case)
        if work.compiled:
            compilation.reset()
        self.metrics |= work.facts
        return work

    def observe(self) -> dict[str, dict[str, list]]:
        """What a case without times observes, once its predicted memory is seen to fit. Raises TooLarge."""
        peak_memory.preflight(self.case.predicted_bytes(), self.case.device)
        return self.case.observe()

    def build(self, case) -> Work:
        """Set up a case, the same in each process, to be freed with the record."""
        torch.manual_seed(0)
        self.built.append(case.setup())
        return self.built[-1]


@contextlib.contextmanager
def recording(case, round: int, cold: bool = False):
    """Save what the block measures as the record of `case` when it ends, also when memory does not suffice.

    `noise_probe_ms` has the noise probe's times before and after the block; only after it in a `cold` process. The
    environment also has what `noise.Period` noticed. Any other exception is a bug: it propagates and leaves no record.
    Afterwards everything that the case built is freed."""
    gc.collect()
    gc.freeze()  # what is alive now need not be searched for garbage between cases
    record, status = Recording(case, round), "ok"
    period = noise.Period()
    probed = [] if cold else noise.probe(case.device)
    try:
        yield record
        record.metrics["noise_probe_ms"] = probed + noise.probe(case.device)
    except peak_memory.TooLarge as error:
        status, record.metrics = "too_large", error.metrics()
    except Exception as error:
        if not peak_memory.out_of_memory(error):
            raise
        asked = peak_memory.asked_bytes(error)
        status, record.metrics = "oom", {} if asked is None else {"asked_bytes": asked}
    finally:
        for work in record.built:
            vars(work).clear()  # the notebook's own name for it must not keep the tensors alive
    gc.collect()
    if case.device == "cuda":
        torch.cuda.empty_cache()
    save(case, round, status, record.metrics, period.started, period.end(), period.noticed)


def save(
    case, round: int, status: str, metrics: dict, started: str, seconds: float, noticed: Mapping = MappingProxyType({})
) -> None:
    """Write the record of a case, with this code and this environment, and what else was noticed there."""
    around = environment.describe(case.device) | dict(noticed)
    results.save(
        machine=environment.machine(case.device), experiment=type(case).experiment, case=asdict(case),
        round=round, status=status, metrics=metrics, environment=around,
        code=code_digest.code(type(case).experiment), started=started, seconds=seconds,
    )  # fmt: skip


def records(cases: list, round: int) -> pd.DataFrame:
    """The records of this round of these cases, as `results.load` gives them."""
    frame = results.load(cases[0].experiment, environment.machine(cases[0].device), round)
    wanted = {tuple(asdict(case).values()) for case in cases}
    kept = [tuple(row) in wanted for row in frame[frame.attrs["fields"]].itertuples(index=False)]
    return frame[pd.Series(kept, index=frame.index, dtype=bool)]  # which an empty list would take for no columns


def errors(work: Work) -> dict[str, list[float]]:
    """Is it right? Run the first iteration, timed as `first_iteration_ms` since it may compile, and return
    `<name>_error`, the relative error of the rows of each result, beside, where something compiles,
    `compile_cache_hits`, the graphs that came from a cache and so were not compiled in that iteration, and what
    `work.around_first` noted.

    Raises WrongResult beyond the tolerance."""
    expected, once = work.expected(), timing.Plan(warmup=0, samples=1)
    if work.compiled:
        compilation.start(work.device)
    with compilation.hits() if work.compiled else contextlib.nullcontext({}) as cached, work.around_first() as noted:
        first = timing.measure(work.iteration, timing.clock(work.device), once, work.before)
    found = _checked(work.result(), expected, work.tolerance)
    found["first_iteration_ms"] = first.metrics()["wall_ms"]
    return found | noted | cached


def _checked(
    got: dict[str, torch.Tensor], expected: dict[str, torch.Tensor | Callable], tolerance: float
) -> dict[str, list[float]]:
    """`<name>_error` of each result. Raises WrongResult beyond the tolerance, ten times as much for `FEW` values."""
    right = {name: of(got) if callable(of) else of for name, of in expected.items()}
    found = {f"{name}_error": [_relative(tensor, right[name])] for name, tensor in got.items()}
    for name, (error,) in found.items():
        allowed = tolerance if got[name.removesuffix("_error")].numel() > FEW else 10 * tolerance
        if not error <= allowed:
            raise WrongResult(f"{name}: {error:.2g} is more than {allowed:.2g}")
    return found


def first_steps(record: Recording, samples: int) -> dict[str, list[float] | int]:
    """How does it begin? The first iterations of a case, `samples` of them, as `first_<phase>_ms` in the order in which
    they ran, and `earlier_cases`, how many cases this process had before: none in a cold start.

    Nothing may compute before them, so what is right comes after: the case is built anew from the same seed, and the
    errors of the first iteration are held against it, as `errors` does. Raises WrongResult like it."""
    work = record.setup()
    clock = timing.clock(work.device)
    series = [timing.measure(work.iteration, clock, timing.Plan(0, 1), work.before).metrics()]
    got = {name: tensor.detach().clone() for name, tensor in work.result().items()}
    if samples > 1:
        series.append(timing.measure(work.iteration, clock, timing.Plan(0, samples - 1), work.before).metrics())
    vars(record.built.pop()).clear()  # two of them might not fit
    gc.collect()
    anew = record.build(record.case)
    found = _checked(got, anew.expected(), anew.tolerance)
    names = [name for name in series[0] if name != "warmup_ms"]
    times = {f"first_{name}": [ms for part in series for ms in part[name]] for name in names}
    return times | found | {"earlier_cases": record.earlier}


def _relative(got: torch.Tensor, expected: torch.Tensor) -> float:
    """The error of each row (the last dimension) relative to the row, by their norms, in the root mean square over
    the rows, so that small rows count like large ones. A row of less than a tenth of the mean norm is held against
    that, since some are zero."""
    norms = expected.norm(dim=-1)
    errors = (got.detach().to(expected.dtype) - expected).norm(dim=-1) / norms.clamp(min=0.1 * norms.mean())
    return errors.square().mean().sqrt().item()


def times(work: Work, plan: timing.Plan) -> dict[str, list[float]]:
    """How fast? The samples of each phase, as `lib.timing` names them."""
    return timing.measure(work.iteration, timing.clock(work.device), plan, work.before).metrics()


def peaks(work: Work) -> dict[str, list[float]]:
    """How much memory? The peaks of each phase, as `peak_memory` names them; nothing for a compiled graph on a CPU,
    inside which no operation can be followed."""
    if work.compiled and work.device == "cpu":
        return {}
    work.before()
    return peak_memory.peaks(work.iteration, work.device)


def followed(work: Work, case, round: int) -> dict:
    """Where does the memory go? The peaks as `peaks` has them, and the tables of `History.tables`; on CUDA also a
    snapshot for pytorch.org/memory_viz beside the executed notebooks. Nothing for a compiled graph on a CPU."""
    if work.compiled and work.device == "cpu":
        return {}
    pickle = paths.runs() / environment.machine(case.device) / f"{record_path(case, round).stem}.pickle"
    if work.device == "cuda":
        pickle.parent.mkdir(parents=True, exist_ok=True)
    work.before()
    return peak_memory.peaks_and_timeline(work.iteration, work.before, work.device, FOLLOWED, pickle)


def pairs(record: Recording, most: int, seconds: float) -> dict[str, list[float]]:
    """Faster than its baseline? The case just measured and its baseline in turns, as `timing.Pairs` names them; at
    `most` so many, and few after `seconds` (see `timing.compare`). Nothing for a case without a baseline. Where the
    two do not fit into memory side by side, the numbers that say so instead."""
    fields = baselines.of(type(record.case).experiment, asdict(record.case))
    if fields is None or most == 0:
        return {}
    other, seed = type(record.case)(**fields), zlib.crc32(f"{record.case} {record.round}".encode())
    try:
        # in turns the temporaries of the two are not there at once, and what the case holds is no longer available
        peak_memory.preflight(max(record.case.predicted_bytes(), other.predicted_bytes()), other.device)
        work, base = record.built[0], record.build(other)
        found = timing.compare(
            work.iteration, base.iteration, timing.clock(other.device), most, seconds, seed, (work.before, base.before)
        )
    except peak_memory.TooLarge as error:
        return {f"pair_{name}": number for name, number in error.metrics().items()}
    except Exception as error:
        if not peak_memory.out_of_memory(error):
            raise
        return {"pair_asked_bytes": peak_memory.asked_bytes(error) or 0}  # the case's own times stand
    return found.metrics()
