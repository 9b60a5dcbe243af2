"""Keeps records in git: what sweeps measured goes to `reports/reference/`, with one figure of each machine."""

import itertools
import shutil
from pathlib import Path

from lib.records import results
from lib.report import plots, published


def publish(machine: str) -> int:
    """Let the records that sweeps made on a machine replace those kept of the same experiments; return how many.

    What was measured by hand stays out, and so does a file that is no valid record. Raises ValueError where those kept
    under this name are of other hardware.
    """
    target = results.REFERENCE / machine
    kept = sorted(target.glob("*/*.json"))
    new = [file for file in results.files(machine) if file not in kept and results.status(file)]
    hardware = sorted({results.read(file)["environment"]["hardware"] for file in kept + new})
    if len(hardware) > 1:
        raise ValueError(f"machine: {machine} stands for {' and '.join(hardware)}")
    for experiment, files in itertools.groupby(new, lambda file: file.parent.name):
        _replace(target / experiment, list(files))
    ratios = published.to_references(machine)
    if len(ratios):
        ax = plots.ratios(*plots.axes(height=3.4), ratios, "time relative to the reference")
        plots.save(ax, target / "ratios.svg")
    return len(new)


def _replace(folder: Path, files: list[Path]) -> None:
    """Let a folder hold these files and no other."""
    folder.mkdir(parents=True, exist_ok=True)
    copies = [Path(shutil.copy(file, folder)) for file in files]
    for former in set(folder.iterdir()) - set(copies):
        former.unlink()


def everything() -> list[str]:
    """Publish the records of every machine in the results, and say how many these are, a line a machine.

    Raises ValueError where there is no machine.
    """
    machines = [entry.name for entry in sorted(results.folder().glob("*")) if entry.is_dir()]
    if not machines:
        raise ValueError("there are no records of this machine; `make report` measures some")
    return [f"{publish(machine)} records of {machine} are in reports/reference/{machine}" for machine in machines]
