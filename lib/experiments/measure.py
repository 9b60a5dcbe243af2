"""Measure cases one by one, and save the record of each as soon as it is done.

A measurement notebook is a loop over `pending`, with `recording` around each case.
"""

import contextlib
import gc
import itertools
import json
import os
import random
import time
import traceback
import zlib
from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from types import MappingProxyType

import pandas as pd
import torch

from lib import paths, timing
from lib.experiments.case import Case, Work
from lib.instruments import allocator, compilation, environment, noise, peak_memory
from lib.instruments.device import on
from lib.records import atomic, baselines, code_digest, results
from lib.records.record import one_line, without_folders

LARGEST_ALLOCATIONS = 100  # kept in a record; similar ones among them are then counted together
FEW = 1024  # a result with no more values may miss its tolerance tenfold: rounding averages out less
FATAL = ("oom", "too_large", "timeout", "crashed", "failed")  # not tried in later rounds
NOT_YET = (None, "no_room")  # tried again: without a record, or for want of memory at the time
_BEGAN = time.monotonic()
_record_numbers = itertools.count()  # counts the records that this process begins


class WrongResult(Exception):
    """Signal a result that misses the reference by more than its tolerance."""


def pending(cases: list, round: int) -> Iterator:
    """Yield the cases left in this round, until SWEEP_SECONDS_LEFT seconds have passed."""
    for case in remaining(cases, round):
        if time.monotonic() - _BEGAN > float(os.environ.get("SWEEP_SECONDS_LEFT", "inf")):
            return
        yield case


def remaining(cases: list, round: int) -> list:
    """Return the cases left to measure in this round, in the round's own order.

    Leaves out cases that this machine cannot run or that failed in an earlier round. Round 0, by hand, keeps them all.
    In a sweep, the file that SWEEP_CASES names lists the records to make."""
    if round == results.BY_HAND:
        return cases
    order = shuffled(available(cases), round)
    if "SWEEP_CASES" not in os.environ:
        return [case for case in order if not done(case, round)]
    todo = json.loads(Path(os.environ["SWEEP_CASES"]).read_text())
    return [case for case in order if record_name(case, round) in todo and not results.status(record_path(case, round))]


def available(cases: list) -> list:
    """Return the cases that this machine can run."""
    return [case for case in cases if not case.unavailable()]


def shuffled(items: list, round: int) -> list:
    """Return the items in the round's own random order, so that none is always first."""
    return random.Random(round).sample(items, len(items))


def done(case, round: int) -> bool:
    """Return True if the case has a record in this round, or failed in an earlier one."""
    earlier = (results.status(record_path(case, r)) for r in range(1, round))
    return results.status(record_path(case, round)) not in NOT_YET or any(s in FATAL for s in earlier)


def record_name(case, round: int) -> str:
    """Return the name of the record of a case in a round."""
    return results.called(type(case).experiment, asdict(case), round)


def record_path(case, round: int):
    """Return the path of the record of a case in a round."""
    return results.path(environment.machine(case.device), type(case).experiment, asdict(case), round)


@dataclass
class Recording:
    """Collect a record in the making: add to `metrics` inside the block of `recording`."""

    case: Case
    round: int
    metrics: dict = field(default_factory=dict)
    built: list[Work] = field(default_factory=list)
    compiled: bool = False  # one of the built did
    earlier_cases: int = field(default_factory=lambda: next(_record_numbers))  # how many this process began already

    def setup(self) -> Work:
        """Build the case; raises TooLarge if its predicted memory does not fit."""
        peak_memory.preflight(self.case.predicted_bytes(), self.case.device)
        work = self.build(self.case)
        if work.compiled:
            compilation.reset()
            if self.round > 1:  # only the first round compiles from empty caches; later ones load its graphs
                work.around_first = Work.around_first
        self.metrics |= work.facts
        return work

    def observe(self) -> dict[str, dict[str, list]]:
        """Return what an untimed case observes; raises TooLarge if it does not fit."""
        peak_memory.preflight(self.case.predicted_bytes(), self.case.device)
        return self.case.observe()

    def build(self, case) -> Work:
        """Set up a case from a fixed seed; it is freed with the record."""
        torch.manual_seed(0)
        work = case.setup()
        self.built.append(work)
        self.compiled = self.compiled or work.compiled
        return work


@contextlib.contextmanager
def recording(case, round: int, cold: bool = False):
    """Free what the block built, then save its metrics as the record of `case`.

    Running out of memory gives a record too. In a sweep, so does any other exception, with its `reason`; otherwise it
    propagates and leaves none. `noise_probe_ms` holds the noise probe's times before the block and, all freed, after
    it; in a `cold` process only those after. The environment includes what `noise.Period` noticed, and the device's
    state right after each probe."""
    allocator.use(getattr(case, "allocator", allocator.chosen()))
    environment.keep_quota()
    gc.collect()
    gc.freeze()  # later collections need not search what is alive now
    record, status = Recording(case, round), "ok"
    period, retries = noise.Period(), on(case.device).retries()
    probed = [] if cold else noise.probe(case.device)
    before = {} if cold else on(case.device).state()
    try:
        yield record
    except peak_memory.TooLarge as error:
        status, record.metrics = error.status, error.metrics()
    except atomic.CannotWrite:
        raise
    except Exception as error:
        if peak_memory.out_of_memory(error):
            status, record.metrics = "oom", peak_memory.shortage(error)
        elif "SWEEP_RUN" in os.environ:
            traceback.print_exc()  # kept in the executed notebook
            status, record.metrics = "failed", {"reason": _reason(error)}
        else:
            raise
    finally:
        for work in record.built:
            vars(work).clear()  # the notebook's variable must not keep the tensors alive
    if retries is not None:
        record.metrics["alloc_retries"] = on(case.device).retries() - retries
    if record.compiled:
        compilation.reset()  # its graphs hold memory, with CUDA graphs much of it
    gc.collect()
    allocator.release()
    if status == "ok":
        with contextlib.suppress(RuntimeError, MemoryError):  # the case's own times remain valid
            on(case.device).release()
            probed += noise.probe(case.device)
        record.metrics |= {"noise_probe_ms": probed} if probed else {}
    after = on(case.device).state()
    noticed = {name: before.get(name, []) + values for name, values in after.items()}
    seconds = period.end()
    save(case, round, status, record.metrics, period.started, seconds, period.noticed | noticed)
    on(case.device).release()  # last: it raises where an error has made the GPU unusable


def _reason(error: Exception) -> str:
    """Describe an exception in one printable line.

    Its own lines are divided by `|`, and files lose their folders, which may name a person."""
    said = " | ".join(filter(str.strip, str(error).splitlines()))
    return one_line(f"{type(error).__name__}: {without_folders(said)}")


def save(
    case, round: int, status: str, metrics: dict, started: str, seconds: float, noticed: Mapping = MappingProxyType({})
) -> None:
    """Write the record of a case; its environment includes what was `noticed`."""
    around = environment.describe(case.device) | dict(noticed)
    results.save(
        experiment=type(case).experiment, case=asdict(case), round=round, status=status, metrics=metrics,
        environment=around, code=code_digest.code(type(case).experiment), started=started, seconds=seconds,
    )  # fmt: skip


def records(cases: list, round: int) -> pd.DataFrame:
    """Return the records of these cases in this round, as `results.load` does."""
    frame = results.load(cases[0].experiment, environment.machine(cases[0].device), round)
    wanted = {tuple(asdict(case).values()) for case in cases}
    kept = [tuple(row) in wanted for row in frame[frame.fields].itertuples(index=False)]
    return frame[pd.Series(kept, index=frame.index, dtype=bool)]  # an empty list would select no columns


def errors(work: Work) -> dict[str, list[float]]:
    """Run the first iteration and return the relative error of each result, `<name>_error`.

    Adds `first_iteration_ms`, which includes compiling, and what `work.around_first` yields. A compiled case also gets
    `compile_cache_hits`, the graphs taken from a cache. Raises WrongResult beyond the tolerance."""
    expected, once = work.expected(), timing.Plan(warmup=0, samples=1)
    if work.compiled:
        compilation.start(work.device)
    with compilation.hits() if work.compiled else contextlib.nullcontext({}) as cached, work.around_first() as noted:
        first = timing.measure(work.iteration, work.clock, once, work.before)
    found = _check(work.result(), expected, work.tolerance)
    found["first_iteration_ms"] = first.metrics()["wall_ms"]
    return found | noted | cached


def _check(
    got: dict[str, torch.Tensor], expected: dict[str, torch.Tensor | Callable], tolerance: float
) -> dict[str, list[float]]:
    """Return `<name>_error` of each result; raises WrongResult beyond the tolerance."""
    right = {name: of(got) if callable(of) else of for name, of in expected.items()}
    found = {f"{name}_error": [_relative_error(tensor, right[name])] for name, tensor in got.items()}
    for name, (error,) in found.items():
        allowed = tolerance if got[name.removesuffix("_error")].numel() > FEW else 10 * tolerance
        if not error <= allowed:
            raise WrongResult(f"{name}: got {error:.2g}, expected at most {allowed:.2g}")
    return found


def first_steps(record: Recording, samples: int) -> dict[str, list[float] | int]:
    """Time the first `samples` iterations of a case, in order, as `first_<phase>_ms`.

    Adds `earlier_cases`, how many this process began already: 0 in a cold start. The reference would warm up the
    process, so it is computed last, on the case built again from the same seed. The first iteration is checked against
    it. Raises WrongResult beyond the tolerance."""
    work = record.setup()
    series = [timing.measure(work.iteration, work.clock, timing.Plan(0, 1), work.before).metrics()]
    got = {name: tensor.detach().to("cpu", copy=True) for name, tensor in work.result().items()}
    if samples > 1:
        series.append(timing.measure(work.iteration, work.clock, timing.Plan(0, samples - 1), work.before).metrics())
    vars(record.built.pop()).clear()  # two builds might not fit
    gc.collect()
    anew = record.build(record.case)
    found = _check(got, anew.expected(), anew.tolerance)
    names = [name for name in series[0] if name != "warmup_ms"]
    times = {f"first_{name}": [ms for part in series for ms in part[name]] for name in names}
    return times | found | {"earlier_cases": record.earlier_cases}


def _relative_error(got: torch.Tensor, expected: torch.Tensor) -> float:
    """Return the root mean square of the rows' relative errors, by norms, in the dtype of `expected`.

    That is on the CPU, since not every device has double precision. Rows run along the last dimension, and small ones
    count like large ones. An error is divided by a tenth of the mean norm where its row's own norm is below that, since
    some are zero."""
    norms = expected.norm(dim=-1)
    errors = (got.detach().cpu().to(expected.dtype) - expected).norm(dim=-1) / norms.clamp(min=0.1 * norms.mean())
    return errors.square().mean().sqrt().item()


def times(work: Work, plan: timing.Plan) -> dict[str, list[float]]:
    """Return the samples of each phase, named as in `timing.Samples.metrics`; on a GPU for a least time."""
    plan = replace(plan, least_s=on(work.device).least_s)
    return timing.measure(work.iteration, work.clock, plan, work.before, work.repeats).metrics()


def peaks(work: Work) -> dict[str, list[float]]:
    """Return the peak memory of each phase, named as in `peak_memory.peaks`.

    Of a compiled case on a CPU, only the peak of the process is known, and of CUDA graphs only what was reserved."""
    work.before()
    if work.compiled and work.device == "cpu":  # operations inside its graph cannot be followed
        with peak_memory.resident_peak() as metrics:
            work.iteration(lambda phase: None)
        return metrics
    found = peak_memory.peaks(work.iteration, work.device)
    return {name: mib for name, mib in found.items() if not work.graphs or name.endswith("_reserved_mib")}


def followed(work: Work, case, round: int) -> dict:
    """Return what `peak_memory.peaks_and_timeline` does; on CUDA, also write a snapshot."""
    if work.compiled and work.device == "cpu":  # as in `peaks`
        return {}
    pickle = paths.runs() / environment.machine(case.device) / f"{record_path(case, round).stem}.pickle"
    if work.device == "cuda":
        pickle.parent.mkdir(parents=True, exist_ok=True)
    work.before()
    return peak_memory.peaks_and_timeline(work.iteration, work.before, work.device, LARGEST_ALLOCATIONS, pickle)


def pairs(record: Recording, most: int, seconds: float) -> dict[str, list[float]]:
    """Time the case and its baseline in at most `most` pairs, in random order.

    A case with several switches on is also timed against the one with none, as `plain_...`. Each comparison stops soon
    after `seconds` (see `timing.compare`). Returns the metrics of `timing.Pairs`, or the bytes that did not fit as
    `pair_...`; nothing without a baseline."""
    experiment, case = type(record.case).experiment, asdict(record.case)
    others = {"": baselines.of(experiment, case), "plain_": baselines.plain(experiment, case)}
    found = {}
    for prefix, fields in others.items() if most else ():
        if fields:
            metrics = _pairs_with(record, type(record.case)(**fields), most, seconds)
            found |= {f"{prefix}{name}": values for name, values in metrics.items()}
    return found


def _pairs_with(record: Recording, other, most: int, seconds: float) -> dict[str, list[float]]:
    """Return the pairs with another case, or the bytes that did not fit beside each other."""
    seed = zlib.crc32(f"{record.case} {record.round}".encode())
    try:
        # only one of the two holds temporaries at a time, and what the case holds no longer counts as available
        peak_memory.preflight(max(record.case.predicted_bytes(), other.predicted_bytes()), other.device)
        work, base = record.built[0], record.build(other)
        found = timing.compare(
            work.iteration, base.iteration, work.clock, most, seconds, seed, (work.before, base.before),
            work.repeats and base.repeats, least_s=on(other.device).least_s[0],
        )  # fmt: skip
    except peak_memory.TooLarge as error:
        return {f"pair_{name}": number for name, number in error.metrics().items()}
    except Exception as error:
        if not peak_memory.out_of_memory(error):
            raise
        return {"pair_asked_bytes": peak_memory.shortage(error).get("asked_bytes", 0)}  # the case's own times hold
    finally:
        for each in record.built[1:]:
            vars(each).clear()  # room for the next
    return found.metrics()
