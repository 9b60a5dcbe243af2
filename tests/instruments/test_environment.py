"""The environment names the machine, and no person, path or secret."""

from types import SimpleNamespace

import pytest
import torch

from lib.instruments import environment, processor
from lib.paths import ROOT


@pytest.mark.skipif(torch.cuda.is_available(), reason="the machine has what this test needs to be missing")
def test_a_device_that_is_not_there_is_refused():
    with pytest.raises(ValueError, match="expected one on this machine"):
        environment.device("cuda")


def test_the_environment_holds_no_path_and_only_allowed_variables(monkeypatch):
    monkeypatch.setenv("SECRET_TOKEN", "s3cr3t")
    monkeypatch.setenv("OMP_NUM_THREADS", "2")
    found = environment.describe("cpu")
    assert found["variables"]["OMP_NUM_THREADS"] == "2"
    assert "s3cr3t" not in str(found)
    assert str(ROOT) not in str(found)


@pytest.mark.parametrize(
    ("name", "slug"),
    [
        ("Intel(R) Xeon(R) Processor", "xeon-2c"),
        ("AMD EPYC 7B13", "epyc-2c"),
        ("Apple M4", "apple-m4-2c"),
        ("13th Gen Intel(R) Core(TM) i7-1360P", "core-2c"),
    ],
)
def test_a_machine_is_named_after_its_processor_and_cores(monkeypatch, name, slug):
    monkeypatch.setattr(processor, "name", lambda: name)
    monkeypatch.setattr(environment, "cores", lambda: 2)
    assert environment.machine("cpu") == slug


@pytest.mark.parametrize(
    ("script", "found"),
    [
        (
            "echo 550.1, 700.00 W, 1980 MHz",
            {"driver": "550.1", "power_limit": "700.00 W", "largest_sm_clock": "1980 MHz"},
        ),
        ("echo No devices were found; exit 6", {}),
        ("echo No devices were found", {}),
        ("exec sleep 60", {}),
    ],
)
def test_what_nvidia_smi_does_not_tell_is_not_in_the_environment(tmp_path, monkeypatch, script, found):
    command = tmp_path / "nvidia-smi"
    command.write_text(f"#!/bin/sh\n{script}\n")
    command.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=":")
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda _: SimpleNamespace(uuid="0"))
    monkeypatch.setattr(environment, "SMI_S", 1)
    assert environment._nvidia_smi() == found


@pytest.mark.parametrize(
    ("text", "sets"),
    [
        ("flags : fpu avx avx2 avx512f amx_tile", ["AVX-512", "AMX"]),
        ("flags : fpu avx avx2", ["AVX2"]),
        ("Features : fp asimd sve", ["NEON", "SVE"]),
        ("model name : unknown", []),
    ],
)
def test_instruction_sets_are_named_by_the_systems_flags(monkeypatch, text, sets):
    monkeypatch.setattr(processor.platform, "system", lambda: "Linux")
    monkeypatch.setattr(processor.Path, "read_text", lambda _: f"processor : 0\n{text}\n")
    monkeypatch.setattr(processor.Path, "exists", lambda _: True)
    assert processor.instruction_sets.__wrapped__() == sets
