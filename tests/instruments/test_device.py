"""A GPU that cannot be used never means a measurement of the processor, and asking for it starts nothing on it."""

import subprocess

import pytest
import torch

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
        device.nvidia_smi.cache_clear()

    yield write
    device.nvidia_smi.cache_clear()


def test_a_device_that_is_not_there_is_refused(monkeypatch):
    monkeypatch.setitem(device.KINDS, "cuda", Absent())
    monkeypatch.setattr(device, "_listed_gpu", lambda: None)
    with pytest.raises(ValueError, match=r"^device: got 'cuda', expected one on this machine: cpu; PyTorch sees"):
        device.named("cuda")


@pytest.mark.parametrize("name", ["auto", "cuda"])
def test_a_gpu_that_pytorch_cannot_use_is_named_with_the_reason(smi, monkeypatch, name):
    monkeypatch.setitem(device.KINDS, "cuda", Absent())
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    smi("echo NVIDIA H100 80GB HBM3")
    with pytest.raises(
        ValueError, match=r"^device: nvidia-smi lists NVIDIA H100 80GB HBM3, but PyTorch .* does not see it"
    ):
        device.named(name)
    assert device.named("cpu") == "cpu"


@pytest.mark.parametrize("hidden", ["", "-1"])
def test_a_gpu_that_the_user_hides_is_not_missed(smi, monkeypatch, hidden):
    monkeypatch.setitem(device.KINDS, "cuda", Absent())
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", hidden)
    smi("echo NVIDIA H100 80GB HBM3")
    assert device.named("auto") != "cuda"


@pytest.mark.parametrize(("code", "reason"), [(0, None), (1, "RuntimeError: no kernel image is available")])
def test_a_gpu_is_tried_only_when_somebody_asks_and_then_once(monkeypatch, code, reason):
    started = []

    def run(command, **_):
        started.append(command)
        return subprocess.CompletedProcess(command, code, "", "Traceback\nRuntimeError: no kernel image is available")

    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(device.subprocess, "run", run)
    gpu = Cuda()
    monkeypatch.setitem(device.KINDS, "cuda", gpu)
    assert device.named("auto") == "cuda"
    assert started == []
    assert [gpu.trial_error(), gpu.trial_error()] == [reason, reason]
    assert len(started) == 1


def test_the_state_has_what_the_driver_tells(monkeypatch):
    def unknown():
        raise ModuleNotFoundError("nvidia-ml-py does not seem to be installed")

    for name, reading in (("clock_rate", 1980), ("temperature", 61), ("power_draw", 350_123)):
        monkeypatch.setattr(torch.cuda, name, lambda reading=reading: reading)
    assert Cuda().state() == {"sm_clock_mhz": [1980], "temperature_c": [61], "power_w": [350.123]}
    monkeypatch.setattr(torch.cuda, "power_draw", unknown)
    assert Cuda().state() == {"sm_clock_mhz": [1980], "temperature_c": [61]}


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


def test_a_clock_of_events_times_the_device_and_the_host_apart(simulated):
    clock = simulated.event_clock()
    clock.start()
    simulated.work(100)  # to launch
    simulated.queue(5_000)
    clock.mark()
    simulated.work(200)
    simulated.queue(7_000)
    clock.mark()
    assert clock.stop() == ([5_100, 7_000], 12_100, 300)


def test_every_clock_of_a_gpu_gives_it_time_to_raise_its_own(monkeypatch):
    assert [type(on.clock()) for on in (Cpu(), Cuda(), Mps())] == [HostClock, EventClock, HostClock]
    assert [on.clock().least_s for on in (Cpu(), Cuda(), Mps())] == [on.least_s for on in (Cpu(), Cuda(), Mps())]
    assert Cpu.least_s == 0 < Cuda.least_s == Mps.least_s
