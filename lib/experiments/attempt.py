"""Measure one case, whatever it raises, and leave nothing of it for the next."""

import gc
import re
import time
import traceback
from dataclasses import asdict

import scipy.stats  # noqa: F401  loaded here, its pages count in no case's peak

from lib import records
from lib.experiments.case import Case, Recording
from lib.instruments import allocator, compilation, environment, memory_limit, noise, peak_memory
from lib.instruments.device import on

LONGEST_REASON = 300  # characters of an error in a record
ADVICE = "\n\nSet TORCHDYNAMO_VERBOSE"  # how PyTorch's advice begins, which ends the error of what failed to compile
# the folders of a path in quotation marks, and those of other paths, which may follow an option such as -I
FOLDERS = re.compile(r"""(?<=['"])/[^'"\n]*/|(?:(?<![\w/.~])|(?<=-[IL]))/(?!/)(?:[^\s'"/]*/)*""")

_measured_cases = 0  # cases that this process has measured


def measure(case: Case, round: int, seconds: float, slots: int = 1, raises: bool = False) -> dict:
    """Measure a case and return its record.

    Each of `slots` kernels gets its share of the free memory. Running out of it gives a record with the status `oom`.
    That tells the `reason`, what `ran_out`, whether the process was `fresh`, and the limit, if any, in `limit_bytes`.
    Another error gives a record with the status `failed` and the `reason`; with `raises`, it is raised instead."""
    allocator.use(case.allocator)
    environment.keep_quota()
    gc.collect()
    # later collections need not search what is alive now
    gc.freeze()
    device_kind = on(case.device)
    started = records.now()
    began_s = time.monotonic()
    probe_ms = []
    if case.probed_before:
        probe_ms = noise.probe(case.device)
    # what a GPU holds before the case, such as the workspaces of its libraries, is no memory of the case
    level_bytes = device_kind.memory_bytes().get("end", 0)
    recording = Recording(case, round, _measured_cases, level_bytes)
    with device_kind.watch() as states:
        try:
            status, metrics = _attempt(recording, seconds, slots, raises)
        finally:
            _clear(recording)
    if status == "ok":
        metrics["noise_probe_ms"] = probe_ms + noise.probe(case.device)
    description = environment.describe(case.device) | states
    seconds_taken = time.monotonic() - began_s
    experiment = type(case).experiment
    return records.create(experiment, asdict(case), round, status, metrics, description, started, seconds_taken)


def _attempt(recording: Recording, seconds: float, slots: int, raises: bool) -> tuple[str, dict]:
    """Measure a case with limited memory; return its status and metrics."""
    with memory_limit.limit(slots, recording.case.device) as limit_bytes:
        try:
            recording.case.measure(recording, seconds)
            return "ok", recording.metrics
        # sys.exit would look like the end of the notebook
        except (Exception, SystemExit) as error:
            if peak_memory.out_of_memory(error):
                metrics = {"reason": _reason(error), "ran_out": recording.part, "fresh": recording.earlier_cases == 0}
                if limit_bytes is not None:
                    metrics["limit_bytes"] = limit_bytes
                return "oom", metrics
            if raises:
                raise
            # kept in the kernel's log
            traceback.print_exc()
            return "failed", {"reason": _reason(error)}


def _clear(recording: Recording) -> None:
    """Free what a case has built and compiled, for the next one."""
    global _measured_cases
    _measured_cases += 1
    recording.free()
    if recording.compiled:
        # its graphs hold memory, with CUDA graphs much of it
        compilation.reset()
    gc.collect()
    allocator.release()
    on(recording.case.device).release()


def _reason(error: BaseException) -> str:
    """Describe an exception in one line, without folders, which may name a person.

    Of a long one the middle is left out: a compiler's command comes before what is wrong with it."""
    text = f"{type(error).__name__}: {error}".partition(ADVICE)[0]
    line = " ".join(FOLDERS.sub("", text).split())
    if len(line) > LONGEST_REASON:
        line = f"{line[: LONGEST_REASON // 3]} ... {line[-LONGEST_REASON // 2 :]}"
    return line
