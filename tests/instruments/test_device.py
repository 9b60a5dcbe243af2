"""A device says whether it can be used, and a GPU that cannot be used never means a measurement of the processor."""

import subprocess

import pytest
from torch.torch_version import TorchVersion

from lib.instruments import device
from lib.instruments.device import Cpu, Cuda, EventClock, Mps
from lib.timing import HostClock


class Absent(Cuda):
    def missing(self):
        return "PyTorch sees no CUDA device"


@pytest.fixture
def smi(tmp_path, monkeypatch):
    """Write the program nvidia-smi, as a script; PATH finds it first."""

    def write(script):
        command = tmp_path / "nvidia-smi"
        command.write_text(f"#!/bin/sh\n{script}\n")
        command.chmod(0o755)
        monkeypatch.setenv("PATH", str(tmp_path), prepend=":")
        device._listed_gpu.cache_clear()
        device.nvidia_smi.cache_clear()

    yield write
    device._listed_gpu.cache_clear()
    device.nvidia_smi.cache_clear()


def test_a_device_that_is_not_there_is_refused(monkeypatch):
    monkeypatch.setitem(device.KINDS, "cuda", Absent())
    device._listed_gpu.cache_clear()
    with pytest.raises(ValueError, match=r"^device: got 'cuda', expected one on this machine: cpu; PyTorch sees"):
        device.named("cuda")


@pytest.mark.parametrize("name", ["auto", "cuda"])
def test_a_gpu_that_pytorch_cannot_use_is_named_with_the_reason(smi, monkeypatch, name):
    monkeypatch.setitem(device.KINDS, "cuda", Absent())
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    smi("echo NVIDIA H100 80GB HBM3")
    with pytest.raises(ValueError, match=r"^device: nvidia-smi lists NVIDIA H100 80GB HBM3, but PyTorch .* sees no"):
        device.named(name)
    assert device.named("cpu") == "cpu"


@pytest.mark.parametrize("hidden", ["", "-1"])
def test_a_gpu_that_the_user_hides_is_not_missed(smi, monkeypatch, hidden):
    monkeypatch.setitem(device.KINDS, "cuda", Absent())
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", hidden)
    smi("echo NVIDIA H100 80GB HBM3")
    assert device.named("auto") != "cuda"


@pytest.mark.parametrize(
    ("code", "sweep", "reason"),
    [
        (0, False, None), (1, False, "RuntimeError: no kernel image is available"),
        (1, True, None),  # which has tried it for its kernels
    ],
)  # fmt: skip
def test_a_gpu_is_chosen_only_after_it_has_multiplied(monkeypatch, code, sweep, reason):
    monkeypatch.setenv("SWEEP_RUN", "a run") if sweep else monkeypatch.delenv("SWEEP_RUN", raising=False)
    monkeypatch.setattr(Cuda, "present", lambda _: True)
    ended = subprocess.CompletedProcess([], code, "", "Traceback\nRuntimeError: no kernel image is available")
    monkeypatch.setattr(device.subprocess, "run", lambda *_, **__: ended)
    device._failed_trial.cache_clear()
    assert Cuda().missing() == reason
    device._failed_trial.cache_clear()


@pytest.mark.parametrize(("capability", "lacking"), [((7, 5), ["tf32", "bf16"]), ((8, 0), []), ((9, 0), [])])
def test_an_older_gpu_lacks_the_types_that_it_would_emulate(monkeypatch, capability, lacking):
    monkeypatch.setattr(Cuda, "capability", lambda _: capability)
    assert [name for name in ("fp32", "tf32", "bf16", "fp16") if Cuda().lacks(name)] == lacking
    assert [name for name in ("fp32", "tf32", "bf16", "fp16") if Cpu().lacks(name)] == ["tf32"]


@pytest.mark.parametrize(
    ("script", "rows"),
    [
        ("echo 550.1, 700.00 W", [["550.1", "700.00 W"]]),
        ("echo 1, 2; echo 3, 4", [["1", "2"], ["3", "4"]]),
        ("echo No devices were found; exit 6", []),
        ("echo No devices were found", []),
        ("exec sleep 60", []),
    ],
)
def test_what_nvidia_smi_does_not_tell_is_left_out(smi, monkeypatch, script, rows):
    smi(script)
    monkeypatch.setattr(device, "SMI_S", 1)
    assert device.nvidia_smi("driver_version", "power.limit") == rows


@pytest.mark.parametrize(("version", "clock"), [("2.13.0", HostClock), ("2.14.0", EventClock)])
def test_apples_events_are_read_only_where_they_are_in_order(monkeypatch, version, clock):
    monkeypatch.setattr(device.torch, "__version__", TorchVersion(version))
    assert type(Mps().clock()) is clock
