"""The wheels for a machine without a registry are those that its Python needs, and all of them."""

import re
import subprocess
import zipfile

import pytest

from lib.sweep import wheels


def wheel(folder, name, *needs):
    """A wheel that holds nothing but what it needs."""
    head = "".join(f"Requires-Dist: {need}\n" for need in needs)
    with zipfile.ZipFile(folder / f"{name}-1.0-py3-none-any.whl", "w") as archive:
        archive.writestr(f"{name}-1.0.dist-info/METADATA", f"Name: {name}\n{head}\nRequires-Dist: a line of its text\n")


def test_pip_is_asked_for_the_other_machines_python_and_processor_and_the_pinned_versions(tmp_path):
    words = wheels.command(["papermill"], "3.12", "aarch64", tmp_path)
    assert {"--python-version=3.12.99", "--abi=cp312", "--abi=abi3", "--abi=none", "papermill"} <= set(words)
    assert {word.rpartition("manylinux")[2].partition("_aarch64")[1] for word in words if "platform" in word} == {
        "_aarch64"
    }
    assert any(re.fullmatch(r"--constraint=.*/constraints\.txt", word) for word in words)
    assert not [word for word in words if word.startswith(wheels.THERE)]


@pytest.mark.parametrize("python", ["3", "312", "python3", "3.12.1", "4.0", ""])
def test_what_is_no_version_of_python_is_refused(tmp_path, capsys, python):
    assert wheels.main(["--python", python]) == 2
    assert capsys.readouterr().err.count("\n") == 1


def test_what_only_the_other_python_needs_is_found(tmp_path):
    wheel(
        tmp_path,
        "one",
        'two; python_version == "3.12"',
        'three; python_version < "3.12"',
        "numpy",
        'four; extra == "x"',
    )
    wheel(tmp_path, "five", 'six; platform_machine == "aarch64"', 'seven; sys_platform == "win32"', "One>=1")
    assert wheels.lacking(tmp_path, "3.12", "x86_64") == ["two"]
    assert wheels.lacking(tmp_path, "3.11", "x86_64") == ["three"]
    assert wheels.lacking(tmp_path, "3.13", "aarch64") == ["six"]


def test_what_is_lacking_is_fetched_until_nothing_is(tmp_path):
    needs = {"one": ["two"], "two": ["three"], "three": []}
    fetched = []

    def run(words, check):
        for name in words[-1:]:
            fetched.append(name)
            wheel(tmp_path, name, *needs[name])

    wheels.collect(["one"], "3.12", "x86_64", tmp_path, run)
    assert fetched == ["one", "two", "three"]


def test_what_no_registry_has_is_asked_for_once(tmp_path):
    wheel(tmp_path, "one", "two")
    fetched = []
    wheels.collect(["one"], "3.12", "x86_64", tmp_path, lambda words, check: fetched.append(words[-1]))
    assert fetched == ["one", "two"]


def test_a_failure_of_pip_is_one_of_the_command(tmp_path, monkeypatch):
    def fails(*_, **__):
        raise subprocess.CalledProcessError(1, "pip")

    monkeypatch.setattr(wheels, "collect", fails)
    assert wheels.main([]) == 1
