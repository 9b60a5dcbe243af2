"""Measure cases one by one, and save the record of each as soon as it is done.

`run` is what every notebook calls: by hand it measures the grid of its axes, in a sweep the cases that the supervisor
has planned for this kernel, and with a machine's name it only loads that machine's records.
"""

import gc
import json
import os
import re
import textwrap
import time
import traceback
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from datetime import UTC, datetime
from pathlib import Path

import pandas as pd

from lib import records
from lib.experiments import cases
from lib.experiments.case import Case, Recording
from lib.instruments import allocator, compilation, environment, memory_limit, noise, peak_memory
from lib.instruments.device import on

PLAN = "SWEEP_PLAN"  # names the file in which the supervisor says what this kernel measures
NOTE = "note.json"  # beside the plan: how far this kernel is
LONGEST_REASON = 300  # characters of an error in a record

_measured_cases = 0  # by this process


def run(
    experiment: str, axes: Mapping[str, object], seconds: float, round: int = 0, machine: str | Sequence[str] = ""
) -> pd.DataFrame:
    """Return the records of an experiment, as `records.load` does.

    With the name of a machine, or a list of names, these are all its records, and nothing is measured. In a sweep they
    are the cases of $SWEEP_PLAN, which also says for how long and in which round. Else the cases of the grid of `axes`
    are measured here, about `seconds` each, and again that long in pairs; what cannot run here is named and left out,
    and an interrupt keeps what is done. Raises ValueError for a bad axis or machine, and by hand what a case raises,
    but for memory that ran out, which its record tells."""
    if machine:
        return records.load(experiment, machine)
    if PLAN in os.environ:
        return _run_plan(experiment, Path(os.environ[PLAN]))
    return _run_by_hand(experiment, cases.grid(experiment, **axes), seconds, round)


def _run_by_hand(experiment: str, grid: Sequence[Case], seconds: float, round: int) -> pd.DataFrame:
    """Measure cases with a line of progress; name and leave out what cannot run."""
    measured = []
    try:
        for number, case in enumerate(grid, start=1):
            called = records.name(asdict(case))
            missing = case.unavailable()
            if missing:
                print(f"\r{called} is left out: {missing}".ljust(100))
                continue
            print(f"\r{number} of {len(grid)}: {called}".ljust(100), end="", flush=True)
            record = measure(case, round, seconds, raises=True)
            records.save(record)
            measured.append(record)
        print(f"\r{len(measured)} of {len(grid)} cases are measured".ljust(100))
    except KeyboardInterrupt:
        print(f"\ninterrupted: {len(measured)} of {len(grid)} cases are measured")
    return records.frame(experiment, measured)


def _run_plan(experiment: str, plan_file: Path) -> pd.DataFrame:
    """Measure the cases of a plan until its deadline; note how many have begun and are saved.

    It ends early where a new process does better, which then measures the rest."""
    plan = json.loads(plan_file.read_text())
    note_file = plan_file.with_name(NOTE)
    measured = []
    for entry in plan["cases"]:
        if time.time() > plan["deadline"]:
            break
        records.write(note_file, json.dumps({"begun": len(measured) + 1, "saved": len(measured)}))
        case = cases.case_class(experiment)(**entry["case"])
        record = measure(case, plan["round"], entry["seconds"], plan["slots"])
        # a process that has measured nothing else may have room
        wants_memory = record["status"] == "oom" and not record["metrics"]["fresh"]
        if not wants_memory:
            records.save(record)
            measured.append(record)
        records.write(note_file, json.dumps({"begun": len(measured), "saved": len(measured)}))
        # an error may have left the GPU unusable for this process
        lost_gpu = record["status"] == "failed" and case.device != "cpu"
        if wants_memory or lost_gpu:
            break
    return records.frame(experiment, measured)


def measure(case: Case, round: int, seconds: float, slots: int = 1, raises: bool = False) -> dict:
    """Measure a case and return its record; so many `slots` divide the free memory.

    Running out of memory gives a record with the status `oom`. It tells the `reason`, what `ran_out`, whether the
    process was `fresh`, and the `limit_bytes` where there was a limit. Another error gives a record with the status
    `failed` and the `reason`; with `raises`, it is raised instead."""
    allocator.use(getattr(case, "allocator", "keeps"))
    environment.keep_quota()
    gc.collect()
    # later collections need not search what is alive now
    gc.freeze()
    here = on(case.device)
    started = datetime.now(UTC).isoformat(timespec="seconds")
    began_s = time.monotonic()
    probe_ms = []
    if case.probed_before:
        probe_ms = noise.probe(case.device)
    # what a GPU holds before the case, such as the workspaces of its libraries, is no memory of the case
    level_bytes = here.memory_bytes().get("end", 0)
    recording = Recording(case, round, _measured_cases, level_bytes)
    with here.watch() as states:
        try:
            status, metrics = _attempt(recording, seconds, slots, raises)
        finally:
            _clear(recording)
    if status == "ok":
        metrics["noise_probe_ms"] = probe_ms + noise.probe(case.device)
    around = environment.describe(case.device) | states
    seconds_taken = time.monotonic() - began_s
    return records.create(type(case).experiment, asdict(case), round, status, metrics, around, started, seconds_taken)


def _attempt(recording: Recording, seconds: float, slots: int, raises: bool) -> tuple[str, dict]:
    """Measure a case with limited memory; return its status and metrics."""
    with memory_limit.limited(slots, recording.case.device) as limit_bytes:
        try:
            recording.case.measure(recording, seconds)
            return "ok", recording.metrics
        except Exception as error:
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


def _reason(error: Exception) -> str:
    """Describe an exception in one line, without the folders of unquoted paths, which may name a person."""
    line = re.sub(r"(?<!\S)/(\S*/)?", "", f"{type(error).__name__}: {error}")
    return textwrap.shorten(line, LONGEST_REASON, placeholder=" ...")
