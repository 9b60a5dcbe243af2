"""The first steps of a process come before anything else computes in it."""

import pytest
import torch

from lib import timing
from lib.experiments import measure
from lib.experiments.case import Work
from lib.instruments import noise
from lib.records import results
from plain import one


def recorded(case, samples=3):
    with measure.recording(case, 1, cold=True) as record:
        record.metrics |= measure.first_steps(record, samples)
    return results.read(measure.record_path(case, 1))["metrics"]


@pytest.mark.parametrize("samples", [1, 4])
def test_every_first_step_is_recorded_in_order_with_its_phases(own_results, samples):
    metrics = recorded(one("warmup"), samples)
    phases = [metrics[f"first_{phase}_ms"] for phase in ("forward", "backward", "optimizer")]
    assert [len(phase) for phase in phases] == [samples] * 3
    assert metrics["first_total_ms"] == pytest.approx([sum(step) for step in zip(*phases, strict=True)])
    assert metrics["logits_error"][0] < 1e-4
    assert "total_ms" not in metrics  # a series that must change would be called noisy
    assert len(metrics["noise_probe_ms"]) == 10


def test_nothing_computes_before_the_first_steps_and_the_first_one_is_checked(own_results, monkeypatch):
    order, steps = [], []
    for module, name in ((noise, "probe"), (timing, "measure")):
        original = getattr(module, name)
        monkeypatch.setattr(module, name, lambda *a, n=name, original=original: (order.append(n), original(*a))[1])

    def step(mark):
        steps.append(1 + len(steps))
        mark("run")

    def expected():
        order.append("reference")
        return {"out": torch.ones(1)}  # right for the first step alone

    def setup(self):
        return Work("cpu", step, expected, lambda: {"out": torch.tensor([float(steps[-1])])}, 1e-3, {})

    case = one("warmup")
    monkeypatch.setattr(type(case), "setup", setup)
    recorded(case)
    assert order == ["measure", "measure", "reference", "probe", "measure"]  # the last within the probe
    # now the first step that is measured gives another result
    with pytest.raises(measure.WrongResult):
        recorded(case)


def test_a_record_says_how_many_cases_its_process_had_before(own_results):
    first, second = (recorded(one("warmup"))["earlier_cases"] for _ in range(2))
    assert second == first + 1
