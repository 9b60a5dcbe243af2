"""A GPU's state comes from NVIDIA's library; what it does not know is left out, and without it nothing fails."""

import ctypes
from types import SimpleNamespace
from unittest.mock import Mock

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


def test_what_a_driver_does_not_tell_is_left_out(monkeypatch):
    library(monkeypatch, nvmlDeviceGetPowerUsage=(0, 3), nvmlDeviceGetComputeRunningProcesses_v3=(0, 3, 1))
    assert set(nvml.state("GPU-1")) == {"sm_clock_mhz", "temperature_c", "throttled"}


@pytest.mark.parametrize("changed", [{"nvmlInit_v2": lambda: 9}, {"nvmlDeviceGetHandleByUUID": (0, 6)}, None])
def test_without_the_library_the_driver_or_the_gpu_nothing_is_told(monkeypatch, changed):
    if changed:
        library(monkeypatch, **changed)
    else:
        monkeypatch.setattr(ctypes, "CDLL", Mock(side_effect=OSError("no such file")))
    assert nvml.state("MIG-1") == {}
