"""Keeps this machine's records in git: copies those of its sweeps to `reports/reference/`, with one figure."""

import shutil
import sys

from lib import compare, plots, results


def publish(machine: str) -> int:
    """Copy the valid records that sweeps made on a machine, over those kept of the same cases; returns how many.
    A case by hand stays out, and so does a file that is no valid record."""
    source, target = results.folder() / machine, results.REFERENCE / machine
    kept = [file for file in sorted(source.glob("*/*.json")) if results.status(file)]
    kept = [file for file in kept if results.read(file)["round"] != results.BY_HAND]
    for file in kept:
        copy = target / file.relative_to(source)
        copy.parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(file, copy)
    ratios = compare.to_references(machine)
    if len(ratios):
        plots.save(
            plots.ratios(*plots.axes(height=3.4), ratios, "time relative to the reference"), target / "ratios.svg"
        )
    return len(kept)


def main() -> int:
    """The command line; returns 0, or 2 where there is nothing to publish."""
    machines = [entry.name for entry in sorted(results.folder().glob("*")) if entry.is_dir()]
    if not machines:
        print("there are no records of this machine; `make report` measures some", file=sys.stderr)
        return 2
    for machine in machines:
        print(f"{publish(machine)} records of {machine} are in reports/reference/{machine}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
