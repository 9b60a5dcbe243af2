"""The repository holds together: its lists of dependencies, its commands, its tree and its records."""

import ast
import re
import subprocess
import sys
import tomllib
from importlib.metadata import version
from pathlib import Path

from ruamel.yaml import YAML

from lib.records import results

ROOT = Path(__file__).resolve().parent.parent
PINS = dict(line.split("==") for line in (ROOT / "constraints.txt").read_text().splitlines() if line and line[0] != "#")


def dependencies():
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    return [re.match(r"[A-Za-z0-9._-]+", line)[0].lower() for line in project["dependencies"]]


def test_every_dependency_is_pinned_exactly_without_hash_label_or_gpu_library():
    assert set(dependencies()) <= {name.lower().replace("_", "-") for name in PINS}
    assert all(re.fullmatch(r"[0-9][0-9a-z.]*", pin) for pin in PINS.values())
    assert not [name for name in PINS if name.lower().startswith(("nvidia", "triton"))]


def test_what_is_imported_is_what_is_pinned():
    assert {name: version(name).split("+")[0] for name in dependencies()} == {
        name: pin for name, pin in ((key.lower().replace("_", "-"), pin) for key, pin in PINS.items())
        if name in dependencies()
    }  # fmt: skip


def test_conda_installs_the_same_package_under_the_same_pins():
    environment = YAML(typ="safe").load(ROOT / "environment.yml")
    (pip,) = [entry["pip"] for entry in environment["dependencies"] if isinstance(entry, dict)]
    assert pip == ["--constraint constraints.txt", "--editable ."]
    python = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["requires-python"]
    assert f"python{python}" in environment["dependencies"]


def test_reading_records_needs_no_torch():
    files = [file for name in ("records", "report", "chapters", "explore") for file in ROOT.glob(f"lib/{name}/**/*.py")]
    modules = [".".join(file.relative_to(ROOT).with_suffix("").parts) for file in files]
    script = f"import sys\nimport lib.catalog, {', '.join(modules)}\nassert 'torch' not in sys.modules"
    subprocess.run([sys.executable, "-c", script], check=True, cwd=ROOT)


def test_bare_make_lists_every_command():
    makefile = (ROOT / "Makefile").read_text()
    listed = subprocess.run(["make"], cwd=ROOT, capture_output=True, text=True, check=True).stdout
    phony = re.search(r"^\.PHONY: (.+)$", makefile, re.MULTILINE)[1].split()
    assert all(f"make {verb} " in listed for verb in phony)


def test_the_readme_names_every_command():
    readme = (ROOT / "README.md").read_text()
    verbs = re.search(r"^\.PHONY: (.+)$", (ROOT / "Makefile").read_text(), re.MULTILINE)[1].split()
    assert all(f"make {verb}" in readme for verb in verbs if verb != "help")


def test_every_module_says_what_it_does_in_its_first_line():
    modules = [file for file in ROOT.glob("lib/**/*.py") if file.name != "__init__.py"]
    docstrings = {file: ast.get_docstring(ast.parse(file.read_text())) for file in modules}
    assert docstrings
    assert not [str(file) for file, text in docstrings.items() if not (text and text.splitlines()[0].strip())]


def test_every_file_that_the_readme_shows_or_links_to_exists():
    links = re.findall(r"\]\(([^)#]+)\)", (ROOT / "README.md").read_text())
    assert links
    assert all((ROOT / link).exists() for link in links)


def test_every_record_kept_in_git_is_valid_and_in_its_place():
    files = list(results.REFERENCE.glob("*/*/*.json"))
    assert files
    for file in files:
        record = results.read(file)
        place = (record["environment"]["machine"], record["experiment"])
        assert place == (file.parts[-3], file.parts[-2]), file
        assert record["round"] != results.BY_HAND, file
