"""A timeline tells when memory was taken and freed, and by whom, from tracking and from CUDA's history alike."""

import pytest
import torch

from lib import attention
from lib.instruments import memory_timeline, peak_memory
from lib.instruments.device import Cuda
from lib.instruments.peak_memory import MIB
from lib.paths import ROOT

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


def test_the_history_of_cudas_allocator_becomes_a_timeline():
    lib, began = str(ROOT / "lib"), 10**15

    def entry(action, us, addr, size, *names):
        frames = [{"filename": filename, "line": 1, "name": name} for filename, name in names]
        return {"action": action, "time_us": began // 1000 + us, "addr": addr, "size": size, "frames": frames}

    naive = [("??", "at::_ops::bmm::call(at::Tensor const&)"), ("functional.py", "f"), (f"{lib}/attention.py", "naive")]
    step = [("??", "at::_ops::mul::call()"), (f"{lib}/experiments/training.py", "Training.iteration.<locals>.f")]
    node = [("??", "at::_ops::mm::call()"), ("??", "torch::autograd::generated::MmBackward0::apply(std::vector)")]
    caller = [("??", "at::_ops::ones::call()"), ("a.py", "own")]
    caller += [(f"{lib}/instruments/peak_memory.py", "f"), (f"{lib}/experiments/measure.py", "g")]
    snapshot = {"segments": [], "device_traces": [[
        entry("alloc", -5, 1, 999, *naive),  # before the iteration
        entry("segment_alloc", 5, 1, 2**21),
        entry("alloc", 10, 2, 100, *naive),
        entry("free_requested", 20, 1, 999),
        entry("free_completed", 20, 1, 999),
        entry("alloc", 40, 1, 300, *node),  # the address again
        entry("free_completed", 50, 2, 100),
        entry("alloc", 60, 3, 7, *caller),
        entry("alloc", 65, 4, 5, *step),
    ]]}  # fmt: skip
    marks = [("forward", began + 30_000), ("backward", began + 55_000), ("optimizer", began + 70_000)]
    found = memory_timeline.from_snapshot(snapshot, marks, began, bytes_before=1000)

    assert found.peaks() == {
        "forward_peak": 1100, "forward_end": 101, "backward_peak": 401, "backward_end": 301,
        "optimizer_peak": 313, "optimizer_end": 313,
    }  # fmt: skip
    assert found.tables(count=4) == {
        "timeline": {
            "instant_us": [0, 10, 20, 40, 50, 60, 65],
            "live_mib": [n / MIB for n in (1000, 1100, 101, 401, 301, 308, 313)],
        },
        "phases": {
            "phase": ["forward", "backward", "optimizer"], "begin_us": [0, 30, 55], "end_us": [30, 55, 70],
        },
        "largest": {
            "each_mib": [n / MIB for n in (300, 100, 7, 5)], "count": [1, 1, 1, 1],
            "function": ["MmBackward0", "attention.naive", "aten::ones", "experiments.training.Training.iteration"],
            "operator": ["aten::mm", "aten::bmm", "aten::ones", "aten::mul"],
            "phase": ["backward", "forward", "optimizer", "optimizer"],
        },
    }  # fmt: skip
    assert [(made.born, made.freed) for made in found.allocations] == [(0, 3), (2, None), (4, None), (5, None)]


def test_cudas_history_is_read_from_its_snapshot_of_another_iteration(monkeypatch):
    ran = []

    def history(_, run):
        run()
        return {"device_traces": [[]]}, 12

    def iteration(mark):
        ran.append("iteration")
        mark("run")

    monkeypatch.setattr(Cuda, "memory_bytes", lambda _: {"peak": MIB})
    monkeypatch.setattr(Cuda, "reset_peaks", lambda _: None)
    monkeypatch.setattr(Cuda, "history", history)
    found = peak_memory.peaks_and_timeline(iteration, lambda: ran.append("before"), "cuda", 10)
    assert found["peak_mib"] == [1.0]
    assert found["timeline"] == {"instant_us": [0.0], "live_mib": [12 / MIB]}
    assert ran == ["iteration", "before", "iteration"]
