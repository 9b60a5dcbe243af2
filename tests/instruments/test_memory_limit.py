"""A case that takes too much memory fails alone, and the limit is gone after it."""

import platform
import resource
import subprocess
import sys

import psutil
import pytest

from lib.instruments import memory_limit
from lib.instruments.device import Cpu
from lib.paths import ROOT

GIB = 2**30
RUNS_OUT = """
import torch
from lib.instruments import device, memory_limit, peak_memory
device.Cpu.free_bytes = lambda self: 2**30
with memory_limit.limit(processes=2):
    half = torch.ones(2**26)  # 256 MiB of the 460 that a half of nine tenths has
    try:
        torch.ones(2**27)
    except Exception as error:
        print(type(error).__name__, peak_memory.out_of_memory(error))
    print(half.sum().item())
print(torch.ones(2**27).sum().item())
"""
on_linux = pytest.mark.skipif(platform.system() != "Linux", reason="only Linux limits a process's data")


@on_linux
def test_pytorch_raises_beyond_the_limit_and_the_process_goes_on():
    printed = subprocess.check_output([sys.executable, "-c", RUNS_OUT], cwd=ROOT, text=True)
    assert printed.splitlines() == ["RuntimeError True", f"{2.0**26}", f"{2.0**27}"]


@on_linux
@pytest.mark.parametrize("share", [1, 4])
def test_the_limit_is_what_the_process_has_and_a_share_of_nine_tenths_of_what_is_free(monkeypatch, share):
    monkeypatch.setattr(Cpu, "free_bytes", lambda _: 100 * GIB)
    before = resource.getrlimit(resource.RLIMIT_DATA)
    with memory_limit.limit(share) as limit_bytes:
        assert resource.getrlimit(resource.RLIMIT_DATA) == (limit_bytes, before[1])
        assert limit_bytes - psutil.Process().memory_info().data == pytest.approx(90 * GIB / share, abs=GIB / 8)
    assert resource.getrlimit(resource.RLIMIT_DATA) == before


@pytest.mark.parametrize(("device", "system"), [("cuda", "Linux"), ("cpu", "Darwin")])
def test_a_gpu_and_another_system_have_no_limit(monkeypatch, device, system):
    monkeypatch.setattr(platform, "system", lambda: system)
    with memory_limit.limit(device=device) as limit_bytes:
        assert limit_bytes is None


def test_a_case_is_refused_by_its_formula_only_where_nothing_limits_it(monkeypatch):
    monkeypatch.setattr(Cpu, "free_bytes", lambda _: 10 * GIB)
    monkeypatch.setattr(platform, "system", lambda: "Darwin")
    assert memory_limit.refusal(9 * GIB, "cpu") is None
    assert memory_limit.refusal(10 * GIB, "cpu").startswith("memory: got 10,240 MiB")
    monkeypatch.setattr(platform, "system", lambda: "Linux")
    assert memory_limit.refusal(10 * GIB, "cpu") is None
