"""A timeline tells when memory was taken and freed, and by whom."""

import pytest
import torch

from lib import attention
from lib.instruments import memory_timeline, peak_memory
from lib.instruments.device import Cuda
from lib.instruments.peak_memory import MIB

pytestmark = pytest.mark.usefixtures("one_thread")

QUARTER = MIB // 4  # numbers in fp32 that take 1 MiB


def test_a_timeline_has_every_change_the_phases_and_the_largest_allocations():
    q, k, v = (torch.randn(1, 2, 64, 8, requires_grad=True) for _ in range(3))

    def iteration(mark):
        loss = attention.naive(q, k, v).sum()
        mark("forward")
        loss.backward()
        mark("backward")
        for x in (q, k, v):
            x.grad = None

    found = peak_memory.peaks_and_timeline(iteration, lambda: None, "cpu", count=6)
    instants, live = found["timeline"]["instant_us"], found["timeline"]["live_mib"]
    assert max(live) == found["peak_mib"][0] == peak_memory.peaks(iteration, "cpu")["peak_mib"][0]
    assert live[0] == 3 * 4096 / MIB
    assert live[-1] == 3 * 4096 / MIB  # all that was made is freed
    assert len(instants) == len(live)
    assert instants == sorted(instants)
    assert found["phases"]["phase"] == ["forward", "backward"]
    (start, again), (middle, end) = found["phases"]["begin_us"], found["phases"]["end_us"]
    assert 0 == start < middle == again < end

    largest = found["largest"]
    assert set(largest["each_mib"]) == {4 * 2 * 64 * 64 / MIB}
    assert sum(largest["count"]) == 6
    made = set(zip(largest["function"], largest["operator"], largest["phase"], strict=True))
    assert made >= {
        ("attention._masked_scores", "aten::bmm", "forward"), ("attention.naive", "aten::_softmax", "forward"),
        ("BmmBackward0", "aten::bmm", "backward"),
    }  # fmt: skip


def test_a_gpu_counts_one_iteration_and_follows_another(monkeypatch):
    ran = []

    def iteration(mark):
        ran.append("iteration")
        torch.ones(QUARTER)
        mark("run")

    monkeypatch.setattr(Cuda, "memory_bytes", lambda _: {"peak": 3 * MIB})
    monkeypatch.setattr(Cuda, "reset_peaks", lambda _: None)
    found = peak_memory.peaks_and_timeline(iteration, lambda: ran.append("before"), "cuda", 10)
    assert found["peak_mib"] == [3.0]
    assert found["timeline"]["live_mib"] == [0.0, 1.0, 0.0]
    assert ran == ["iteration", "before", "iteration"]


def test_a_thinned_series_keeps_its_ends_and_extremes():
    values = torch.randn(10_000).tolist()
    indices = memory_timeline.thinned_indices(values, 600)
    assert len(indices) <= 600
    assert {0, 9_999, values.index(max(values)), values.index(min(values))} <= set(indices)
    assert indices == sorted(indices)
