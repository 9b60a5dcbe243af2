"""The probe is the same work each time."""

import itertools

import torch

from lib.instruments import noise
from lib.instruments.device import Cpu
from lib.timing import HostClock


def test_the_probe_takes_ten_times_in_single_precision_whatever_the_case_beside_it(monkeypatch, former_precision):
    precisions = []
    mm = torch.mm

    def watched(*arguments, **options):
        precisions.append(torch.get_float32_matmul_precision())
        return mm(*arguments, **options)

    monkeypatch.setattr(torch, "mm", watched)
    torch.set_float32_matmul_precision("high")
    times_ms = noise.probe("cpu")
    assert len(times_ms) == 10
    assert min(times_ms) > 0
    assert set(precisions) == {"highest"}
    assert len(precisions) > 10  # the first ones warm up
    assert torch.get_float32_matmul_precision() == "high"


def test_on_a_gpu_the_probe_lasts_at_least_fifty_milliseconds(monkeypatch):
    instants_ns = itertools.count(step=100_000)  # each look at this clock takes a tenth of a millisecond
    clock = HostClock(now=lambda: next(instants_ns), least_s=0.2)
    monkeypatch.setattr(Cpu, "clock", lambda _: clock)
    times_ms = noise.probe("cpu")
    assert set(times_ms) == {0.1}
    assert 0.05 < next(instants_ns) / 1e9 < 0.2  # a product takes a few looks
    assert len(times_ms) > 50
