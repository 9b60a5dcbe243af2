"""Copy records of sweeps to `reports/reference/`, with a figure for each machine."""

import itertools
import shutil
from pathlib import Path

from lib.records import results
from lib.report import plots, published


def publish(machine: str) -> int:
    """Replace a machine's reference records by those of its sweeps; return how many.

    Only experiments with new records are replaced. Records measured by hand and invalid files stay out. Raises
    ValueError if the records under this name are of several kinds of hardware."""
    target = results.REFERENCE / machine
    kept = sorted(target.glob("*/*.json"))
    new = [file for file in results.files(machine) if file not in kept and results.status(file)]
    hardware = sorted({results.read(file)["environment"]["hardware"] for file in kept + new})
    if len(hardware) > 1:
        raise ValueError(f"machine: got {' and '.join(hardware)} as {machine}, expected one kind of hardware")
    for experiment, files in itertools.groupby(new, lambda file: file.parent.name):
        _replace_files(target / experiment, list(files))
    ratios = published.to_baselines(machine)
    if len(ratios):
        ax = plots.ratios(*plots.axes(height=3.4), ratios, "time relative to the baseline")
        plots.save(ax, target / "ratios.svg")
    return len(new)


def _replace_files(folder: Path, files: list[Path]) -> None:
    """Make a folder contain copies of these files and nothing else."""
    folder.mkdir(parents=True, exist_ok=True)
    copies = [Path(shutil.copy(file, folder)) for file in files]
    for former in set(folder.iterdir()) - set(copies):
        former.unlink()


def publish_all() -> list[str]:
    """Publish the records of every machine, and return a line on each.

    Raises ValueError if there is no machine."""
    machines = [entry.name for entry in sorted(results.folder().glob("*")) if entry.is_dir()]
    if not machines:
        raise ValueError("machine: no records found; `make report` measures some")
    return [f"{publish(machine)} records of {machine} copied to reports/reference/{machine}" for machine in machines]
