"""A GPU that cannot be used never means a measurement of the processor."""

import sys
import time
from types import SimpleNamespace
from unittest.mock import Mock

import pytest
import torch

from lib.instruments import device
from lib.instruments.device import Cpu, Cuda, EventClock, Mps
from lib.timing import HostClock


@pytest.fixture
def nvml(monkeypatch):
    """Pretend that NVIDIA's driver is here and knows one GPU."""
    answers = {
        "nvmlDeviceGetHandleByIndex.return_value": "card", "nvmlDeviceGetName.return_value": "NVIDIA H100 80GB HBM3",
        "nvmlSystemGetDriverVersion.return_value": "570.1",
        "nvmlDeviceGetPowerManagementLimit.return_value": 700_000,
    }  # fmt: skip
    module = Mock(**answers)
    monkeypatch.setitem(sys.modules, "pynvml", module)
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    return module


def test_a_device_that_is_not_there_is_refused(monkeypatch):
    monkeypatch.setattr(Cuda, "missing", lambda _: "PyTorch sees no CUDA device")
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    with pytest.raises(ValueError, match=r"^device: got 'cuda', expected one on this machine: cpu; PyTorch sees"):
        device.choose("cuda")


@pytest.mark.parametrize("name", ["auto", "cuda"])
def test_a_gpu_that_pytorch_cannot_use_is_named_with_the_reason(nvml, monkeypatch, name):
    monkeypatch.setattr(Cuda, "missing", lambda _: "PyTorch sees no CUDA device")
    with pytest.raises(ValueError, match=r"^device: got NVIDIA H100 80GB HBM3, expected a PyTorch that sees it"):
        device.choose(name)
    assert device.choose("cpu") == "cpu"


def test_a_gpu_that_the_user_hides_or_that_has_no_driver_is_not_missed(nvml, monkeypatch):
    monkeypatch.setattr(Cuda, "missing", lambda _: "PyTorch sees no CUDA device")
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "-1")
    assert device.choose("auto") != "cuda"
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES")
    nvml.nvmlInit.side_effect = OSError("no driver")
    assert device.choose("auto") != "cuda"


def test_the_facts_of_a_gpu_have_what_the_driver_tells_and_no_identity(nvml, monkeypatch):
    properties = SimpleNamespace(uuid="1234-abcd", total_memory=80 * 2**30)
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda _: properties)
    facts = Cuda().facts()
    assert (facts["driver"], facts["power_limit_w"], facts["gpu_memory_mib"]) == ("570.1", 700.0, 80 * 2**10)
    assert "1234" not in str(facts)
    nvml.nvmlDeviceGetHandleByUUID.side_effect = RuntimeError("a part of a GPU")
    facts = Cuda().facts()
    assert facts["driver"] == "570.1"
    assert "power_limit_w" not in facts


def test_a_gpu_is_watched_for_what_its_driver_tells(monkeypatch):
    # a part of a GPU does not tell its clock
    monkeypatch.setattr(torch.cuda, "clock_rate", Mock(side_effect=RuntimeError))
    monkeypatch.setattr(torch.cuda, "temperature", lambda: 61)
    monkeypatch.setattr(torch.cuda, "power_draw", lambda: 350_123)
    with Cuda().watch() as states:
        while not states:
            time.sleep(0.001)
    assert states.keys() == {"temperature_c", "power_w"}
    assert (set(states["temperature_c"]), set(states["power_w"])) == ({61}, {350.123})


def test_a_gpu_that_has_allocated_nothing_has_no_statistics(monkeypatch):
    monkeypatch.setattr(torch.cuda, "memory_stats", dict)
    monkeypatch.setattr(torch.cuda, "reset_peak_memory_stats", lambda: None)
    assert Cuda().memory_bytes() == {"peak": 0, "end": 0}


@pytest.mark.parametrize(("capability", "lacking"), [((7, 5), ["tf32", "bf16"]), ((8, 0), []), ((9, 0), [])])
def test_an_older_gpu_lacks_the_types_that_it_would_emulate(monkeypatch, capability, lacking):
    monkeypatch.setattr(Cuda, "capability", lambda _: capability)
    assert [name for name in ("fp32", "tf32", "bf16", "fp16") if Cuda().lacks(name)] == lacking


@pytest.mark.parametrize("has_products", [True, False])
def test_a_mode_of_products_that_a_device_lacks_names_its_own(monkeypatch, has_products):
    monkeypatch.setattr(torch.ops.mkldnn, "_is_mkldnn_bf16_supported", lambda: has_products)
    assert ("nearest: bf16_products" in Cpu().lacks("tf32")) == has_products
    assert (Cpu().lacks("bf16_products") is None) == has_products
    assert "nearest: tf32" in Cuda().lacks("bf16_products")
    assert [name for name in ("fp32", "bf16", "fp16") if Cpu().lacks(name) or Mps().lacks(name)] == []
    assert "nearest: bf16)" in Mps().lacks("tf32")


def test_every_clock_of_a_gpu_gives_it_time_to_raise_its_own():
    clocks = [Cpu().clock(), Cuda().clock(), Mps().clock()]
    assert [type(clock) for clock in clocks] == [HostClock, EventClock, HostClock]
    assert [clock.least_s for clock in clocks] == [0.0, device.GPU_LEAST_S, device.GPU_LEAST_S]


def test_a_flush_reads_more_than_the_cache_holds(monkeypatch):
    monkeypatch.setattr(Cpu, "cache_bytes", lambda _: 2**20)
    monkeypatch.setattr(device, "FLUSH_LEAST_BYTES", 2**10)
    read = device.flush("cpu")
    assert read() == 0
    assert read.__self__.nbytes == 4 * 2**20
