"""Rungs of the ladder: which need others, what they are paired with, and that they learn alike."""

from dataclasses import replace

import pytest
import torch
from torch import nn

from lib import fast
from lib.experiments import attempt, ladder
from lib.experiments.ladder import PLAIN, Ladder

CASE = Ladder("tiny", 16, 1, PLAIN, False, "cpu")


@pytest.mark.parametrize(
    ("switches", "message"),
    [
        ("bf16+fused", "switches: got bf16\\+fused, expected the order"),
        ("fused+masters", "switches: got fused\\+masters, expected bf16 before masters"),
        ("bf16_products+bf16", "expected bf16_products or bf16, which replaces it"),
        ("whole", "switches: got whole, expected compiled before whole"),
    ],
)
def test_switches_that_cannot_be_are_refused(switches, message):
    with pytest.raises(ValueError, match=message):
        replace(CASE, switches=switches)


def test_masters_are_for_bf16_alone():
    with pytest.raises(ValueError, match="precision: got fp32, expected bf16 with the optimizer masters"):
        replace(CASE.step, optimizer="masters")


def test_a_compiled_rung_compiles_its_layers_and_the_loss(monkeypatch):
    compiled = []
    monkeypatch.setattr(nn.Module, "compile", lambda module, **options: compiled.append(type(module).__name__))
    monkeypatch.setattr(torch, "compile", lambda function, **options: compiled.append(function.__name__))
    case = replace(CASE, switches="fused+compiled")
    case.training()
    assert compiled == ["loss"] + ["Block"] * case.step.config.num_layers


def test_a_rung_is_a_step_with_its_switches():
    step = replace(CASE, switches="fused+sdpa+bf16+compiled").step
    assert (step.optimizer, step.attention, step.compiled, step.precision) == ("fused", "sdpa", True, "bf16")
    assert replace(CASE, switches="fused+bf16+masters").step.optimizer == "masters"
    assert replace(CASE, switches="bf16_products").step.precision == "bf16_products"
    assert CASE.step == replace(CASE, switches="default_allocator").step
    assert (CASE.allocator, replace(CASE, switches="default_allocator").allocator) == ("keeps", "default")


def test_a_rung_is_checked_paired_with_the_plain_step_and_learns_as_it_does(own_results, no_probe, monkeypatch):
    # compiling it takes seconds, and `test_fast` does
    monkeypatch.setattr(fast, "_compiled", lambda: fast._update_and_round)
    case = replace(CASE, switches="fused+bf16+masters", losses=True)
    metrics = attempt.measure(case, 1, 0.02, raises=True)["metrics"]
    assert len(metrics["paired_ms"]) == len(metrics["baseline_ms"]) >= 3
    assert len(metrics["paired_optimizer_ms"]) == len(metrics["paired_ms"])
    assert metrics["logits_error"][0] < 0.1
    assert len(metrics["loss_nats"]) == ladder.LOSS_STEPS
    assert metrics["loss_nats"] == pytest.approx(metrics["plain_loss_nats"], rel=0.02)
    assert metrics["loss_nats"][-1] < metrics["loss_nats"][0]


def test_without_a_switch_a_step_is_timed_alone(own_results, no_probe):
    metrics = attempt.measure(CASE, 2, 0.02, raises=True)["metrics"]
    assert len(metrics["total_ms"]) >= 3
    assert "paired_ms" not in metrics
    assert "peak_mib" not in metrics
