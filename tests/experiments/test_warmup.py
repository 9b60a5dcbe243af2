"""The first steps of a process come before anything else computes in it, and all of them are kept in order."""

import numpy as np
import pytest
import torch

from lib.experiments import attempt
from lib.experiments import case as measuring
from lib.experiments.case import Work
from lib.experiments.warmup import Warmup
from lib.instruments import noise
from plain import measured, one

TINY = one("warmup", batch_size=1, first_steps=16)


def test_every_first_step_is_recorded_in_order_with_its_phases_and_the_assignments_tens_are_slices_of_them():
    metrics = measured(TINY)
    totals = metrics["first_total_ms"]
    assert len(totals) == 16
    phases = [metrics["first_forward_ms"], metrics["first_backward_ms"], metrics["first_optimizer_ms"]]
    assert totals == pytest.approx(np.sum(phases, axis=0))
    for warmups in (0, 1, 5):
        assert metrics[f"after_{warmups}_ms"] == totals[warmups : warmups + 10]
    assert metrics["logits_error"][0] < 1e-4


def test_nothing_computes_before_the_first_steps_and_the_first_one_is_checked(monkeypatch):
    order = []
    steps = []

    def step(mark):
        steps.append(1 + len(steps))
        order.append("step")
        mark("run")

    def expected():
        order.append("reference")
        return {"out": torch.ones(1)}  # right for the first step alone

    def setup(self):
        return Work("cpu", step, expected, lambda: {"out": torch.tensor([float(steps[-1])])}, 1e-3, {})

    monkeypatch.setattr(noise, "probe", lambda device: order.append("probe") or [1.0])
    monkeypatch.setattr(Warmup, "setup", setup)
    monkeypatch.setattr(attempt, "_measured_cases", 3)
    assert attempt.measure(TINY, round=1, seconds=0)["metrics"]["earlier_cases"] == 3
    assert order == ["step"] * 16 + ["reference", "probe"]
    # now the first step that is measured gives another result
    with pytest.raises(measuring.WrongResult):
        measured(TINY)
