"""Keeps records in git: copies those of sweeps, of every machine in the results, to `reports/reference/`, with one
figure of each machine.
"""

import argparse
import shutil
import sys

from lib import cli
from lib.records import results
from lib.report import plots, published


def publish(machine: str) -> int:
    """Copy the valid records that sweeps made on a machine, over those kept of the same cases; returns how many.
    What was measured by hand stays out, and so does a file that is no valid record. Raises ValueError where
    those kept under this name are of other hardware."""
    target = results.REFERENCE / machine
    kept = sorted(target.glob("*/*.json"))
    new = [file for file in results.files(machine) if file not in kept and results.status(file)]
    hardware = sorted({results.read(file)["environment"]["hardware"] for file in kept + new})
    if len(hardware) > 1:
        raise ValueError(f"machine: {machine} stands for {' and '.join(hardware)}")
    for file in new:
        copy = target / file.parent.name / file.name
        copy.parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(file, copy)
    ratios = published.to_references(machine)
    if len(ratios):
        ax = plots.ratios(*plots.axes(height=3.4), ratios, "time relative to the reference")
        plots.save(ax, target / "ratios.svg")
    return len(new)


def parser() -> argparse.ArgumentParser:
    """The parser of this command line."""
    return cli.parser(
        "lib.report.publish",
        "Copy the records of sweeps, of every machine in the results, to reports/reference/; those by hand stay out.",
        ("",),
        {2: "there is nothing to publish, or the machine's name stands for other hardware"},
    )


def main(arguments: list[str] | None = None) -> int:
    """The command line; returns 0, or 2 where there is nothing to publish."""
    parser().parse_args(arguments)
    machines = [entry.name for entry in sorted(results.folder().glob("*")) if entry.is_dir()]
    if not machines:
        print("there are no records of this machine; `make report` measures some", file=sys.stderr)
        return 2
    try:
        for machine in machines:
            print(f"{publish(machine)} records of {machine} are in reports/reference/{machine}")
    except ValueError as error:
        print(error, file=sys.stderr)
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main())
