"""Rungs of the ladder: which exclude each other, what they are compared with, losses and the greedy search."""

from dataclasses import asdict, replace

import pytest

from lib.experiments import ladder, measure
from lib.experiments.cases import grid
from lib.experiments.ladder import Ladder
from lib.records import baselines

PLAIN = Ladder(
    size="tiny", context_length=16, batch_size=1, precision="fp32", compiled=False, attention="naive",
    optimizer="single_tensor", mode="train_step", device="cpu", projections=False, cast_once=False,
    compile_mode="default",
)  # fmt: skip


def test_each_rung_has_one_switch_more_than_the_one_it_is_compared_with():
    most = {"optimizer": "fused", "precision": "bf16", "compiled": True, "attention": "sdpa"}
    rung, names = replace(PLAIN, **most, projections=True, cast_once=True), []
    while fields := baselines.of("ladder", asdict(rung)):
        below = Ladder(**fields)
        names += [name for name, value in asdict(rung).items() if fields[name] != value]
        rung = below
    assert names == ["attention", "cast_once", "projections", "precision", "compiled", "optimizer"]
    assert rung == PLAIN


def test_switches_that_exclude_each_other_are_refused():
    with pytest.raises(ValueError, match="cast_once: got True, expected False"):
        replace(PLAIN, cast_once=True, optimizer="fused")
    with pytest.raises(ValueError, match="cast_once"):
        replace(PLAIN, cast_once=True, precision="bf16")
    with pytest.raises(ValueError, match="compile_mode: got max-autotune, expected default"):
        replace(PLAIN, compile_mode="max-autotune")
    assert "CUDA" in replace(PLAIN, compiled=True, compile_mode="max-autotune").unavailable()


def test_a_step_with_switches_gives_the_plain_results():
    case = replace(PLAIN, optimizer="fused", precision="bf16", projections=True, cast_once=True)
    errors = measure.errors(case.setup())
    assert set(errors) >= {"logits_error", "gradient_error", "update_error"}
    losses = ladder.losses(case, 5)
    assert losses["loss_nats"] == pytest.approx(losses["plain_loss_nats"], rel=0.01)
    assert losses["loss_nats"][-1] < losses["loss_nats"][0]
    assert ladder.losses(case, 0) == {}


def test_the_search_takes_the_fastest_switch_that_is_left_at_each_rung(monkeypatch):
    case = replace(PLAIN, optimizer="fused", precision="bf16", cast_once=True, attention="sdpa")
    gains = {"optimizer": 0.8, "precision": 0.5, "cast_once": 0.9, "attention": 1.1}

    def ratio(_, tried, before, *__):
        (name,) = (name for name in gains if getattr(tried, name) != getattr(before, name))
        return gains[name], 0.99 * gains[name], 1.01 * gains[name]

    monkeypatch.setattr(ladder, "_ratio", ratio)
    found = ladder.search(measure.Recording(case, 0), 5, 1)["search"]
    taken = [name for name, taken in zip(found["switch"], found["taken"], strict=True) if taken == "yes"]
    assert taken == ["precision", "optimizer", "cast_once"]
    assert found["rung"] == [1, 1, 1, 2, 2, 3, 3, 4]  # cast_once cannot be tried before bf16 and fused
    assert found["switch"][-1] == "attention"


def test_the_search_measures_in_pairs():
    (case,) = grid("ladder", **asdict(replace(PLAIN, optimizer="fused")))
    record = measure.Recording(case, 0)
    record.setup()
    measure.pairs(record, 1, 0.1)  # as in the notebook
    before = list(map(id, record.built))
    found = ladder.search(record, 5, 0.1)["search"]
    assert found["switch"] == ["optimizer"]
    assert found["low"][0] <= found["ratio"][0] <= found["high"][0]
    assert list(map(id, record.built)) == before
