"""The wheels for a machine without a registry are those that its Python needs, and all of them."""

import subprocess
import zipfile

from lib.sweep import wheels


def wheel(folder, name, *needs):
    """Write a wheel that holds nothing but what it needs."""
    head = "".join(f"Requires-Dist: {need}\n" for need in needs)
    with zipfile.ZipFile(folder / f"{name}-1.0-py3-none-any.whl", "w") as archive:
        archive.writestr(f"{name}-1.0.dist-info/METADATA", f"Name: {name}\n{head}\nRequires-Dist: a line of its text\n")


def test_pip_is_asked_for_the_other_machines_python_and_processor_and_the_pinned_versions(tmp_path, monkeypatch):
    ran = []
    monkeypatch.setattr(subprocess, "run", lambda words, check: ran.extend(words))
    wheels.download(["papermill"], "3.12", "aarch64", tmp_path)
    assert {"--python-version=3.12.99", "--abi=cp312", "--abi=abi3", "--abi=none", "papermill"} <= set(ran)
    asked = {word for word in ran if word.startswith("--platform=")}
    assert asked == {f"--platform=manylinux{system}_aarch64" for system in wheels.SYSTEMS}
    assert f"--constraint={wheels.ROOT / 'constraints.txt'}" in ran


def test_what_only_the_other_python_needs_is_lacking(tmp_path):
    conditions = ['two; python_version == "3.12"', 'three; python_version < "3.12"', "numpy", 'four; extra == "x"']
    wheel(tmp_path, "one", *conditions)
    wheel(tmp_path, "five", 'six; platform_machine == "aarch64"', 'seven; sys_platform == "win32"', "One>=1")
    assert wheels.missing(tmp_path, "3.12", "x86_64") == ["two"]
    assert wheels.missing(tmp_path, "3.11", "x86_64") == ["three"]
    assert wheels.missing(tmp_path, "3.13", "aarch64") == ["six"]
