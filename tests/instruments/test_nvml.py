"""A GPU's state comes from NVIDIA's library; what it does not know is left out, and without it nothing fails."""

import ctypes
from types import SimpleNamespace

import pytest

from lib.instruments import nvml


def library(monkeypatch, **changed):
    """Put a library with these functions in the place of NVIDIA's."""

    def fills(value, code=nvml.SUCCESS, at=-1):
        def function(*arguments):
            arguments[at]._obj.value = value
            return code

        return function

    functions = {
        "nvmlInit_v2": lambda: nvml.SUCCESS,
        "nvmlDeviceGetHandleByUUID": fills(1, nvml.SUCCESS),
        "nvmlDeviceGetClockInfo": lambda gpu, kind, to: fills({1: 1980}[kind])(to),
        "nvmlDeviceGetPowerUsage": fills(350_123),
        "nvmlDeviceGetTemperature": lambda gpu, sensor, to: fills({0: 61}[sensor])(to),
        "nvmlDeviceGetCurrentClocksThrottleReasons": fills(0x1 | 0x2 | 0x4 | 0x40 | 0x100),
        "nvmlDeviceGetComputeRunningProcesses_v3": fills(3, nvml.INSUFFICIENT_SIZE, at=1),
    }
    functions |= {name: each if callable(each) else fills(*each) for name, each in changed.items()}
    monkeypatch.setattr(ctypes, "CDLL", lambda name: SimpleNamespace(**functions))


@pytest.fixture(autouse=True)
def _anew():
    nvml._library.cache_clear()
    yield
    nvml._library.cache_clear()


def test_a_gpu_tells_its_clock_power_temperature_throttling_and_other_processes(monkeypatch):
    library(monkeypatch)
    assert nvml.state("GPU-1") == {
        "sm_clock_mhz": [1980], "power_w": [350.1], "temperature_c": [61],
        "throttled": ["power cap", "thermal slowdown by hardware"], "other_gpu_processes": [2],
    }  # fmt: skip


def test_an_idle_gpu_with_clocks_that_somebody_set_is_not_throttled(monkeypatch):
    library(monkeypatch, nvmlDeviceGetCurrentClocksThrottleReasons=(0x1 | 0x2 | 0x100,))
    assert nvml.state("GPU-1")["throttled"] == []


def test_what_a_driver_does_not_tell_is_left_out(monkeypatch):
    library(monkeypatch, nvmlDeviceGetPowerUsage=(0, 3), nvmlDeviceGetComputeRunningProcesses_v3=(0, 3, 1))
    assert set(nvml.state("GPU-1")) == {"sm_clock_mhz", "temperature_c", "throttled"}


@pytest.mark.parametrize("changed", [{"nvmlInit_v2": lambda: 9}, {"nvmlDeviceGetHandleByUUID": (0, 6)}])
def test_without_the_driver_or_the_gpu_nothing_is_told(monkeypatch, changed):
    library(monkeypatch, **changed)
    assert nvml.state("MIG-1") == {}


def test_without_the_library_nothing_is_told(monkeypatch):
    monkeypatch.setattr(ctypes, "CDLL", lambda name: (_ for _ in ()).throw(OSError("no such file")))
    assert nvml.state("GPU-1") == {}
