"""Measure cases one by one, and save the record of each as soon as it is done.

`run` is what every notebook calls: it measures the grid of the notebook's axes, by hand or in a sweep, and with a
machine's name it only loads that machine's records.
"""

import contextlib
import difflib
import gc
import os
import re
import textwrap
import time
import traceback
from collections.abc import Mapping, Sequence
from dataclasses import asdict

import pandas as pd

from lib import records, validate
from lib.experiments import cases
from lib.experiments.case import Case, Recording
from lib.instruments import allocator, compilation, environment, memory_limit, noise, peak_memory
from lib.instruments.device import on
from lib.validate import BadInput

KERNEL = "KERNEL"  # the variable that marks a sweep's kernels and what they start; names a scratch folder
SLOTS = "SLOTS"  # the variable that says how many kernels divide the machine
SETTINGS = {"seconds": 0.4, "round": 0, "machine": "", "skip": []}  # parameters that are no axes, and their defaults
SIMPLE = (str, int, float, bool, list, tuple, range, type(None))  # what a mistyped parameter may be
NEARLY = 0.8  # of a name's letters, as difflib counts them: from here on it may be mistyped
LEAST_SECONDS = 0.001
LONGEST_REASON = 300  # characters of an error in a record

_measured_cases = 0  # by this process


def run(experiment: str, names: Mapping[str, object]) -> pd.DataFrame:
    """Return the records of an experiment, as `records.load` does.

    `names` are the notebook's `vars()`.

    - The case's fields are the axes: a list is swept, and a field without a name has the case class's default.
    - `machine`: the name of one, or a list. Nothing is measured, and these are all its records.
    - `seconds`: how long about to sample each case, and again in pairs.
    - `round`: 0 by hand, and from 1 the number of a sweep's process.
    - `skip`: names of cases of the grid, which are left out.

    By hand it names and leaves out what cannot run here, and raises what a case raises, but for memory that ran out,
    which the record tells. An interrupt keeps what is done. Raises BadInput for a bad value, for a plain one that is
    named nearly like a parameter, and where nothing of the grid can run."""
    is_in_sweep = KERNEL in os.environ
    try:
        fields = records.fields(experiment)
        if is_in_sweep:
            # which measures, passes all other parameters, and has checked their names
            names = {**names, "machine": ""}
        else:
            _refuse_mistyped(names, [*fields, *SETTINGS])
        values = {name: _plain(names[name]) for name in (*fields, *SETTINGS) if name in names}
        settings = {name: values.pop(name, default) for name, default in SETTINGS.items()}
        _check(**settings)
        if settings["machine"]:
            return records.load(experiment, settings["machine"])
        measure_all = _measure_in_sweep if is_in_sweep else _measure_by_hand
        grid = _left(cases.grid(experiment, **values), settings["round"], settings["skip"])
    except ValueError as error:
        raise BadInput(str(error)) from None
    return records.frame(experiment, measure_all(grid, settings["seconds"], settings["round"]))


def _refuse_mistyped(names: Mapping[str, object], parameters: Sequence[str]) -> None:
    """Raise ValueError for a plain value whose name is nearly a parameter's."""
    for name, value in names.items():
        if isinstance(value, SIMPLE) and not name.startswith("_") and name not in parameters:
            nearest = difflib.get_close_matches(name, parameters, n=1, cutoff=NEARLY)
            if nearest:
                listed = ", ".join(parameters)
                raise ValueError(f"parameter: got {name!r}, expected one of {listed} (nearest: {nearest[0]})")


def _plain(value: object) -> object:
    """Return a value as plain Python has it: a list, or a number."""
    if hasattr(value, "tolist"):
        value = value.tolist()
    if isinstance(value, list | tuple | range):
        return [_plain(element) for element in value]
    return value


def _check(seconds: object, round: object, machine: object, skip: object) -> None:
    """Raise ValueError for a bad value of what is no axis."""
    if type(seconds) not in (int, float) or not LEAST_SECONDS <= seconds <= validate.MOST:
        raise ValueError(f"seconds: got {validate.shown(seconds)}, expected a number from {LEAST_SECONDS} up")
    if type(round) is not int or not 0 <= round <= validate.MOST:
        raise ValueError(f"round: got {validate.shown(round)}, expected 0 by hand, or from 1 a sweep's process")
    if not isinstance(machine, str | list):
        raise ValueError(f"machine: got {validate.shown(machine)}, expected a name or a list of names")
    if not isinstance(skip, list):
        raise ValueError(f"skip: got {validate.shown(skip)}, expected a list of names of cases")


def _left(grid: Sequence[Case], round: int, skip: Sequence[str]) -> list[Case]:
    """Return the cases of a grid that are not skipped, in the order of the round."""
    names = {records.name(asdict(case)): case for case in grid}
    for name in skip:
        validate.choice("skip", name, names)
    left = [case for case in cases.order(grid, round) if records.name(asdict(case)) not in skip]
    if not left:
        raise ValueError(f"skip: got all {len(grid)} cases of the grid, expected fewer")
    return left


def _measure_by_hand(grid: Sequence[Case], seconds: float, round: int) -> list[dict]:
    """Measure cases with a line of progress; name and leave out what cannot run."""
    made = []
    reasons = []
    interrupted = ""
    try:
        for number, case in enumerate(grid, start=1):
            called = records.name(asdict(case))
            missing = case.unavailable()
            if missing:
                reasons.append(f"{called} is left out: {missing}")
                print(f"\r{reasons[-1]}".ljust(100))
                continue
            print(f"\r{number} of {len(grid)}: {called}".ljust(100), end="", flush=True)
            record = measure(case, round, seconds, raises=True)
            records.save(record)
            made.append(record)
    except KeyboardInterrupt:
        interrupted = "interrupted: "
    if len(reasons) == len(grid):
        raise BadInput(f"nothing can be measured here: {reasons[0]}")
    print(f"\r{interrupted}{len(made)} of {len(grid)} cases are measured".ljust(100))
    return made


def _measure_in_sweep(grid: Sequence[Case], seconds: float, round: int) -> list[dict]:
    """Measure cases until the supervisor interrupts or a new process does better."""
    made = []
    # after its deadline the supervisor interrupts at the next record, so that the case in hand has hardly begun
    with contextlib.suppress(KeyboardInterrupt):
        for case in grid:
            record = measure(case, round, seconds, int(os.environ[SLOTS]))
            records.save(record)
            made.append(record)
            if records.ends_process(record):
                break
    return made


def measure(case: Case, round: int, seconds: float, slots: int = 1, raises: bool = False) -> dict:
    """Measure a case and return its record.

    Each of `slots` kernels gets its share of the free memory. Running out of it gives a record with the status `oom`,
    which tells the `reason`, what `ran_out`, whether the process was `fresh`, and the `limit_bytes` where there was a
    limit. Another error gives a record with the status `failed` and the `reason`; with `raises`, it is raised
    instead."""
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
    """Describe an exception in one line, without folders, which may name a person."""
    line = re.sub(r"(?<!\S)/(\S*/)?", "", f"{type(error).__name__}: {error}")
    return textwrap.shorten(line, LONGEST_REASON, placeholder=" ...")
