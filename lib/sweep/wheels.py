"""Download wheels that a PyTorch image lacks: `python -m lib.sweep.wheels 3.12 x86_64 [MORE ...]`."""

import subprocess
import sys
from importlib.metadata import distributions
from pathlib import Path

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from lib.paths import ROOT

WANTED = ["papermill", "nbconvert", "ipykernel", "ruamel.yaml"]
THERE = {"torch", "numpy", "pandas", "scipy", "matplotlib"}
SYSTEMS = ("1", "2010", "_2_12", "2014", "_2_17", "_2_24", "_2_26", "_2_27", "_2_28", "_2_31", "_2_34", "_2_35")


def download(names: list[str], python: str, processor: str, folder: Path) -> None:
    """Download packages and their dependencies; pip reads 3.12 as 3.12.0, so 3.12.99 is requested."""
    options = [f"--platform=manylinux{system}_{processor}" for system in SYSTEMS]
    options += [f"--abi={abi}" for abi in ("cp" + python.replace(".", ""), "abi3", "none")]
    options += [f"--python-version={python}.99", "--implementation=cp", "--only-binary=:all:", f"--dest={folder}"]
    pip = [sys.executable, "-m", "pip", "download", "--quiet", "--disable-pip-version-check"]
    subprocess.run([*pip, *options, f"--constraint={ROOT / 'constraints.txt'}", *names], check=True)


def missing(folder: Path, python: str, processor: str) -> list[str]:
    """List dependencies not among the wheels; pip checks them only for the Python that runs it."""
    target = {"python_version": python, "python_full_version": f"{python}.99", "sys_platform": "linux", "extra": ""}
    target |= {"platform_machine": processor, "platform_system": "Linux", "os_name": "posix"}
    wheels = list(distributions(path=list(map(str, folder.glob("*.whl")))))
    needs = [Requirement(line) for wheel in wheels for line in wheel.requires or ()]
    needed = {canonicalize_name(one.name) for one in needs if not one.marker or one.marker.evaluate(target)}
    return sorted(needed - {canonicalize_name(wheel.name) for wheel in wheels} - THERE)


if __name__ == "__main__":
    python, processor, *names = sys.argv[1:]
    names += WANTED
    while names:
        download(names, python, processor, ROOT / ".whl")
        names = missing(ROOT / ".whl", python, processor)
