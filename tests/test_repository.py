"""The repository holds together: its lists of dependencies, its commands, its tree and its records."""

import ast
import itertools
import re
import shutil
import subprocess
import sys
import sysconfig
import tomllib
from importlib.metadata import distributions, packages_distributions

import nbformat
from packaging.requirements import Requirement
from packaging.specifiers import SpecifierSet
from packaging.utils import canonicalize_name
from ruamel.yaml import YAML

from lib.paths import ROOT

LINES = re.findall("^([^#=\n]+)==(.+)$", (ROOT / "constraints.txt").read_text(), re.MULTILINE)
PINS = {canonicalize_name(name): pin for name, pin in LINES}
# not all of sys.path, to which an import of setuptools adds the copies that it brings
HERE = list(distributions(path=[sysconfig.get_path("purelib"), sysconfig.get_path("platlib")]))
KNOWN = packages_distributions()
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
EXTRA = PROJECT["optional-dependencies"]
USER = PROJECT["dependencies"] + EXTRA["cluster"] + EXTRA["peers"]
UNPINNED = EXTRA["triton"]
DEVELOPER = EXTRA["dev"]
MAKE = ["make", "--no-print-directory"]  # as in a terminal, also where `make test` runs the tests


def named(requirements):
    return {canonicalize_name(Requirement(line).name) for line in requirements}


def imported(*folders):
    """The distributions, from elsewhere, that Python files and notebooks import, in functions too."""
    here = {"lib"} | {file.stem for file in ROOT.glob("tests/support/*.py")}
    sources = []
    for folder in folders:
        sources += [file.read_text() for file in ROOT.glob(f"{folder}/**/*.py")]
        for file in ROOT.glob(f"{folder}/**/*.ipynb"):
            cells = nbformat.read(file, as_version=4).cells
            sources += [cell.source for cell in cells if cell.cell_type == "code"]
    modules = set()
    for node in itertools.chain.from_iterable(ast.walk(ast.parse(source)) for source in sources):
        if isinstance(node, ast.Import):
            modules |= {alias.name.partition(".")[0] for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and not node.level:
            modules.add(node.module.partition(".")[0])
    return {canonicalize_name(KNOWN.get(name, [name])[0]) for name in modules - sys.stdlib_module_names - here}


def test_what_is_pinned_installs_on_the_first_python_3_11():
    least = PROJECT["requires-python"].removeprefix(">=") + ".0"
    # the environment may have other versions
    pinned = [package for package in HERE if PINS.get(canonicalize_name(package.name)) == package.version]
    assert len(pinned) > 50
    for package in pinned:
        assert SpecifierSet(package.metadata.get("Requires-Python", "")).contains(least), package.name


def test_what_is_imported_is_declared():
    assert "torch" in imported("lib", "notebooks") <= named(USER + UNPINNED)
    assert imported("tests") <= named(USER + UNPINNED + DEVELOPER)
    assert not named(USER) & named(DEVELOPER)


def test_what_is_declared_is_pinned_exactly_without_hash_label_or_gpu_library():
    assert named(USER + DEVELOPER) <= PINS.keys()
    for pin in PINS.values():
        assert re.fullmatch(r"[0-9][0-9a-z.]*", pin)
    gpu_libraries = {name for name in PINS if name.startswith("nvidia")} - {"nvidia-ml-py"}
    assert not gpu_libraries | (PINS.keys() & named(UNPINNED))


def test_conda_installs_the_same_package_under_the_same_pins():
    environment = YAML(typ="safe").load(ROOT / "environment.yml")
    assert environment["dependencies"][-1]["pip"] == ["--constraint constraints.txt", "--editable .[dev]"]
    assert f"python{PROJECT['requires-python']}" in environment["dependencies"]


def test_bare_make_and_the_readme_name_every_command():
    verbs = re.search(r"^\.PHONY: (.+)$", (ROOT / "Makefile").read_text(), re.MULTILINE)[1].split()
    listed = subprocess.run(MAKE, cwd=ROOT, capture_output=True, text=True, check=True).stdout
    readme = (ROOT / "README.md").read_text()
    for verb in verbs:
        assert f"make {verb} " in listed
        assert f"make {verb}" in readme or verb == "help"


def test_text_is_read_and_written_as_utf8_whatever_the_locale():
    calls = []
    for file in ROOT.glob("lib/**/*.py"):
        calls += re.findall(r".*(?:[. ]open\(|(?:read|write)_text\(|text=True).*", file.read_text())
    assert len(calls) > 5
    for line in calls:
        assert "encoding=" in line or '"ab"' in line


def set_up(*variables, goal=".venv/ready"):
    command = [*MAKE, "-nB", goal, *variables]
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True).stdout


def test_setting_up_says_first_how_large_pytorch_is_and_names_no_index_of_its_own():
    linux = set_up("PLATFORM=Linux-x86_64")
    assert linux.index("530 MB") < linux.index("pip install")
    assert "index" not in linux
    assert "://" not in (ROOT / "Makefile").read_text()


def test_an_index_is_for_pytorch_alone_whose_dependencies_come_from_the_users_own():
    commands = set_up("TORCH_INDEX=https://user:secret@index.test/cpu")
    first, second = re.findall("[^&]*pip install[^&]*", commands)
    assert first.endswith("--no-deps --index-url 'https://user:secret@index.test/cpu' torch ")
    assert second.endswith("--editable . ")
    assert 'PyTorch comes from TORCH_INDEX"' in commands


def test_a_switch_is_off_by_any_word_and_a_name_that_others_export_is_not_taken(monkeypatch):
    monkeypatch.setenv("MACHINE", "theirs")
    monkeypatch.setenv("SWEEP", "theirs")
    commands = set_up("RETRY=no", "DRY=false", "STALE=1", "PYTHON=/a folder/python", goal="sweep")
    assert commands.splitlines()[-1].split()[1:] == ["-m", "lib.sweep", "''", "--stale"]
    assert "'/a folder/python' -m venv" in commands
    assert set_up(goal="render").splitlines()[-1].split()[1:] == ["-m", "lib.report"]


def test_an_environment_that_somebody_else_made_stays(tmp_path):
    for name in ("Makefile", "pyproject.toml", "constraints.txt"):
        shutil.copy(ROOT / name, tmp_path)
    theirs = tmp_path / ".venv" / "theirs"
    theirs.parent.mkdir()
    theirs.touch()
    # a Python that does nothing
    done = subprocess.run([*MAKE, "status", "PYTHON=true"], cwd=tmp_path, capture_output=True, text=True)
    assert done.stdout.startswith(".venv is not of this Makefile")
    assert theirs.exists()
