"""The first steps of a process come before anything else computes in it."""

import pytest
import torch

from lib import timing
from lib.experiments import measure, warmup
from lib.instruments import noise
from lib.records import results
from plain import one


def recorded(case, samples=3):
    with measure.recording(case, 1, cold=True) as record:
        record.metrics |= measure.first_steps(record, samples)
    return results.read(measure.record_path(case, 1))["metrics"]


@pytest.fixture
def case():
    return one("warmup")


@pytest.mark.parametrize("samples", [1, 4])
def test_every_first_step_is_recorded_in_order_with_its_phases(own_results, case, samples):
    metrics = recorded(case, samples)
    phases = [metrics[f"first_{phase}_ms"] for phase in ("forward", "backward", "optimizer")]
    assert [len(phase) for phase in phases] == [samples] * 3
    assert metrics["first_total_ms"] == pytest.approx([sum(step) for step in zip(*phases, strict=True)])
    assert metrics["logits_error"][0] < 1e-4
    assert "total_ms" not in metrics  # a series that must change would be called noisy
    assert len(metrics["noise_probe_ms"]) == 10


def test_nothing_computes_before_the_first_steps(own_results, case, monkeypatch):
    order = []
    for module, name in ((noise, "probe"), (timing, "measure")):
        original = getattr(module, name)
        monkeypatch.setattr(
            module, name, lambda *a, name=name, original=original: (order.append(name), original(*a))[1]
        )
    training, expected = warmup.Step.setup, []

    def setup(self):
        work = training(self)
        reference = work.expected
        work.expected = lambda: (order.append("reference"), expected.append(1), reference())[2]
        return work

    monkeypatch.setattr(type(case), "setup", setup)
    recorded(case)
    assert order == ["measure", "measure", "reference", "probe", "measure"]  # the last within the probe


def test_the_first_iteration_is_checked_and_not_a_later_one(own_results, case, monkeypatch):
    seen = []
    original = measure._relative_error
    monkeypatch.setattr(
        measure, "_relative_error", lambda got, expected: (seen.append(got), original(got, expected))[1]
    )
    recorded(case)
    torch.manual_seed(0)
    work = case.setup()
    timing.measure(work.iteration, timing.HostClock(), timing.Plan(0, 1), work.before)
    assert torch.equal(seen[0], work.result()["logits"])


def test_a_record_says_how_many_cases_its_process_had_before(own_results, case):
    first, second = recorded(case)["earlier_cases"], recorded(case)["earlier_cases"]
    assert second == first + 1
