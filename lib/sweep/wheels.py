"""Collects the wheels that a plain PyTorch image lacks to execute the notebooks, for a machine that reaches no package
registry; knows pip, and nothing of what is measured.
"""

import argparse
import re
import subprocess
import sys
import zipfile
from collections.abc import Callable, Sequence
from pathlib import Path

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name, parse_wheel_filename

from lib import cli
from lib.paths import ROOT

FOLDER = ROOT / ".whl"
WANTED = ("papermill", "nbconvert", "ipykernel")
THERE = ("torch", "numpy", "pandas", "scipy", "matplotlib")  # in images for training; the command line adds others
LATEST = 99  # of the patches of a Python: to pip, 3.11 is 3.11.0, for which some wheels are too new
# pip takes no system but those it is told, newest last: PEP 600, and the names before it
SYSTEMS = ("1", "2010", "_2_12", "2014", "_2_17", "_2_24", "_2_26", "_2_27", "_2_28", "_2_31", "_2_34", "_2_35")


def command(names: Sequence[str], python: str, processor: str, folder: Path) -> list[str]:
    """How pip fetches the wheels of packages and of all that they need, as constraints.txt has them. Raises ValueError
    unless `python` is such as 3.12."""
    if not re.fullmatch(r"3\.\d{1,2}", python):
        raise ValueError(f"python: {python!r} must be a version such as 3.12")
    platforms = [f"--platform=manylinux{system}_{processor}" for system in SYSTEMS]
    abis = [f"--abi={abi}" for abi in (f"cp{python.replace('.', '')}", "abi3", "none")]
    return [
        sys.executable, "-m", "pip", "download", "--quiet", "--disable-pip-version-check", "--only-binary=:all:",
        f"--python-version={python}.{LATEST}", "--implementation=cp", *abis, *platforms, f"--dest={folder}",
        f"--constraint={ROOT / 'constraints.txt'}", *names,
    ]  # fmt: skip


def collect(names: Sequence[str], python: str, processor: str, folder: Path, run: Callable = subprocess.run) -> None:
    """Fetch packages into a folder, and then what only the other Python needs: pip reads the conditions of requirements
    as if they were meant for the Python that it runs in. Raises ValueError, or CalledProcessError when pip fails."""
    asked: set[str] = set()
    while names and not asked.issuperset(names):
        run(command(names, python, processor, folder), check=True)
        asked |= set(names)
        names = lacking(folder, python, processor)


def lacking(folder: Path, python: str, processor: str) -> list[str]:
    """What the wheels in a folder need on that machine and is neither among them nor in an image."""
    files = list(folder.glob("*.whl"))
    there = {parse_wheel_filename(file.name)[0] for file in files} | set(THERE)
    around = {
        "python_version": python, "python_full_version": f"{python}.{LATEST}", "implementation_name": "cpython",
        "platform_python_implementation": "CPython", "os_name": "posix", "sys_platform": "linux",
        "platform_system": "Linux", "platform_machine": processor, "extra": "",
    }  # fmt: skip
    needed = [Requirement(line) for file in files for line in _requirements(file)]
    return sorted(
        {canonicalize_name(one.name) for one in needed if not one.marker or one.marker.evaluate(around)} - there
    )


def _requirements(wheel: Path) -> list[str]:
    """What a wheel says that it needs."""
    with zipfile.ZipFile(wheel) as archive:
        name = next(name for name in archive.namelist() if re.fullmatch(r"[^/]+\.dist-info/METADATA", name))
        head = archive.read(name).decode().partition("\n\n")[0]
    return re.findall(r"^Requires-Dist: (.+)$", head, re.MULTILINE)


def parser() -> argparse.ArgumentParser:
    """The parser of this command line."""
    made = cli.parser(
        "lib.sweep.wheels",
        f"Collect in .whl the wheels of {', '.join(WANTED)} and of what they need, for Linux.",
        ("", "--python 3.13", "--processor aarch64 scipy matplotlib"),
        {1: "pip failed, and said why", 2: cli.BAD_INPUT},
    )
    made.add_argument("more", nargs="*", help=f"further packages, where the image lacks some of {', '.join(THERE)}")
    made.add_argument("--python", default="3.12", help="the version of Python there, 3.12 if not given")
    made.add_argument("--processor", default="x86_64", choices=("x86_64", "aarch64"), help="the processor there")
    return made


def main(arguments: list[str] | None = None) -> int:
    """The command line; returns its exit code (see `parser`)."""
    given = parser().parse_args(arguments)
    try:
        collect([*WANTED, *given.more], given.python, given.processor, FOLDER)
    except ValueError as error:
        print(error, file=sys.stderr)
        return 2
    except subprocess.CalledProcessError:
        return 1
    files = list(FOLDER.glob("*.whl"))
    print(f".whl: {len(files)} wheels, {sum(file.stat().st_size for file in files) / 1e6:.0f} MB")
    return 0


if __name__ == "__main__":
    sys.exit(main())
