"""The Llama of transformers computes what our model does, from the same weights, before it is timed beside it."""

import importlib.util

import pytest
import torch

from plain import measured, one


@pytest.fixture
def eager(monkeypatch):
    """Nothing is compiled, which takes long; the tests of the ladder compile our step."""
    pytest.importorskip("transformers")
    monkeypatch.setattr(torch, "compile", lambda function, **_: function)
    monkeypatch.setattr(torch.nn.Module, "compile", lambda module, **_: None)


def test_logits_gradient_and_update_of_the_llama_are_those_of_the_plain_model_and_it_runs_in_pairs(eager):
    metrics = measured(one("peers", program="transformers"))
    for name in ("logits_error", "gradient_error", "update_error"):
        assert metrics[name][0] < 1e-4
    assert metrics["peer_version"].split(".")[0].isdigit()
    assert len(metrics["paired_ms"]) == len(metrics["baseline_ms"]) >= 3


def test_where_transformers_is_missing_it_is_left_out(monkeypatch):
    find = importlib.util.find_spec
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None if name == "transformers" else find(name))
    assert one("peers", program="transformers").unavailable() == "transformers is not installed (make peers)"
