"""The environment names the machine, and no person, path or secret."""

import math
import os
import re
import shutil
import tempfile

import pytest
import torch

from lib.instruments import container, environment, processor
from lib.paths import ROOT


def test_the_environment_holds_no_path_and_only_allowed_variables(monkeypatch):
    monkeypatch.setenv("NVIDIA_TF32_OVERRIDE", "0")
    monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", "/home/somebody/cache")
    described = environment.describe("cpu")
    assert described["variables"]["NVIDIA_TF32_OVERRIDE"] == "0"
    assert "/home/somebody" not in str(described)
    assert str(ROOT) not in str(described)


@pytest.mark.parametrize(
    ("name", "slug"),
    [
        ("Intel(R) Xeon(R) Processor", "xeon-2c"),
        ("AMD EPYC 7B13", "epyc-2c"),
        ("Apple M4", "apple-m4-2c"),
        ("AMD Ryzen Threadripper PRO 5995WX 64-Cores", "threadripper-2c"),
        ("AMD Ryzen 9 7950X", "ryzen-2c"),
    ],
)
def test_a_machine_is_named_after_its_processor_and_cores(monkeypatch, name, slug):
    monkeypatch.setattr(processor, "name", lambda: name)
    monkeypatch.setattr(environment, "cores", lambda: 2)
    own = environment.machine("cpu")
    assert re.fullmatch(rf"{slug}-[0-9a-f]{{4}}", own)
    # other hardware of the same slug has another name, and what is free at the moment changes nothing
    monkeypatch.setattr(environment, "memory_mib", lambda: 123 * 1024)
    assert environment.machine("cpu") != own
    larger = environment.machine("cpu")
    monkeypatch.setattr(environment, "memory_mib", lambda: 123 * 1024 + 200)
    assert environment.machine("cpu") == larger


@pytest.mark.parametrize(("root", "else_found"), [(ROOT, r"[0-9a-f]{12}(-dirty)?"), (ROOT / "lib", "no checkout")])
def test_a_copy_can_be_told_its_commit_and_has_none_of_another_repository(monkeypatch, root, else_found):
    monkeypatch.setattr(environment, "ROOT", root)
    monkeypatch.setenv("GIT_INDEX_FILE", "/another")
    monkeypatch.delenv("COMMIT", raising=False)
    assert re.fullmatch(else_found, environment._commit.__wrapped__())
    monkeypatch.setenv("COMMIT", "0123abcd")
    assert environment._commit.__wrapped__() == "0123abcd"


@pytest.mark.parametrize(("quota", "cores", "threads"), [(math.inf, 8, 6), (2.5, 2, 2), (0.5, 1, 1), (7.0, 7, 6)])
@pytest.mark.usefixtures("one_thread")
def test_a_quota_of_a_container_bounds_cores_and_threads(monkeypatch, quota, cores, threads):
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: range(8), raising=False)
    monkeypatch.setattr(container, "cores", lambda: quota)
    assert environment.cores() == cores
    torch.set_num_threads(6)
    environment.keep_quota()
    assert torch.get_num_threads() == threads


def test_what_a_compiler_lacks_is_named_beforehand(monkeypatch):
    # Triton takes what CC says, or else gcc
    monkeypatch.setenv("CC", "no-such-cc")
    assert "no-such-cc is not installed" in environment.compiler_missing("cuda")
    monkeypatch.delenv("CC")
    monkeypatch.setattr(shutil, "which", lambda name: name == "cc")
    assert "gcc is not installed" in environment.compiler_missing("cuda")
    # a compiler's command falls apart at such a path
    monkeypatch.setattr(tempfile, "gettempdir", lambda: "/a person's/tmp")
    assert "without spaces" in environment.compiler_missing("cpu")
