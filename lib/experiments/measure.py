"""Measure cases one by one, and save the record of each as soon as it is done.

`run` is what every notebook calls: it measures the grid of the notebook's axes, by hand or in a sweep, and with a
machine's name it only loads that machine's records. For that no torch is needed, hence the imports within functions.
"""

import contextlib
import difflib
import os
from collections.abc import Mapping, Sequence
from dataclasses import asdict

import pandas as pd

from lib import records, validate
from lib.experiments import cases
from lib.validate import BadInput

KERNEL = "KERNEL"  # the variable that marks a sweep's kernels and what they start; names a scratch folder
SLOTS = "SLOTS"  # the variable that says how many kernels divide the machine
SETTINGS = {"seconds": 0.4, "round": 0, "machine": "", "skip": []}  # parameters that are no axes, and their defaults
SIMPLE = (str, int, float, bool, list, tuple, range, type(None))  # types that a mistyped parameter may have
NEARLY = 0.8  # the share of equal letters, as difflib counts them, from which a name may be mistyped
LEAST_SECONDS = 0.001


def run(experiment: str, names: Mapping[str, object]) -> pd.DataFrame:
    """Return the records of an experiment, as `records.load` does.

    `names` are the notebook's `vars()`.

    - The case's fields are the axes: a list is swept, and a field without a name has the case class's default.
    - `machine`: the name of one, or a list. Nothing is measured, and these are all its records.
    - `seconds`: how long about to sample each case, and again in pairs.
    - `round`: 0 by hand, and from 1 the number of a sweep's process.
    - `skip`: names of cases of the grid, which are left out.

    By hand it names what cannot run here, and leaves it out. It raises what a case raises, unless memory ran out, which
    the record tells. An interrupt keeps what is done. Raises BadInput for a bad value, for a plain one that is named
    nearly like a parameter, and if nothing of the grid can run."""
    is_in_sweep = KERNEL in os.environ
    try:
        fields = records.fields(experiment)
        if is_in_sweep:
            # a sweep always measures, passes all other parameters, and has checked their names
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


def _left(grid: Sequence, round: int, skip: Sequence[str]) -> list:
    """Return the cases of a grid that are not skipped, in the order of the round."""
    names = {records.name(asdict(case)): case for case in grid}
    for name in skip:
        validate.choice("skip", name, names)
    left = [case for case in cases.order(grid, round) if records.name(asdict(case)) not in skip]
    if not left:
        raise ValueError(f"skip: got all {len(grid)} cases of the grid, expected fewer")
    return left


def _measure_by_hand(grid: Sequence, seconds: float, round: int) -> list[dict]:
    """Measure cases with a line of progress; name and leave out what cannot run."""
    from lib.experiments import attempt

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
            record = attempt.measure(case, round, seconds, raises=True)
            records.save(record)
            made.append(record)
    except KeyboardInterrupt:
        interrupted = "interrupted: "
    if len(reasons) == len(grid):
        raise BadInput(f"nothing can be measured here: {reasons[0]}")
    print(f"\r{interrupted}{len(made)} of {len(grid)} cases are measured".ljust(100))
    return made


def _measure_in_sweep(grid: Sequence, seconds: float, round: int) -> list[dict]:
    """Measure cases until the supervisor interrupts or a new process does better."""
    from lib.experiments import attempt

    made = []
    # after its deadline the supervisor interrupts at the next record, so that the case in hand has hardly begun
    with contextlib.suppress(KeyboardInterrupt):
        for case in grid:
            record = attempt.measure(case, round, seconds, int(os.environ[SLOTS]))
            records.save(record)
            made.append(record)
            if records.ends_process(record):
                break
    return made
