"""One iteration is captured after warm-ups, with a range around each of its phases."""

import contextlib

import torch

from lib.instruments import nsight


def test_each_phase_of_the_last_iteration_has_a_range_inside_the_capture(monkeypatch):
    log = []

    @contextlib.contextmanager
    def profile():
        log.append("start")
        yield
        log.append("stop")

    def iteration(mark):
        log.append("run")
        mark("forward")
        mark("backward")

    monkeypatch.setattr(torch.cuda.profiler, "profile", profile)
    monkeypatch.setattr(torch.cuda.nvtx, "range_push", lambda name: log.append(f"push {name}"))
    monkeypatch.setattr(torch.cuda.nvtx, "range_pop", lambda: log.append("pop"))
    monkeypatch.setattr(torch.cuda, "synchronize", lambda: log.append("synchronize"))
    nsight.capture(iteration, lambda: log.append("before"))
    assert log[:-8] == ["before", "run"] * nsight.WARMUP + ["before"]
    assert log[-8:] == ["start", "push forward", "run", "pop", "push backward", "pop", "synchronize", "stop"]
