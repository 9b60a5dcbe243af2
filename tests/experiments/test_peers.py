"""The Llama of transformers computes what our model does, from the same weights, before it is timed beside it."""

import functools
import importlib.util
from dataclasses import replace

import pytest
import torch

import plain
from lib.config import SIZES
from lib.experiments import measure, peers
from lib.records import results


def one(**changed):
    return plain.one("peers", **{"program": "transformers"} | changed)


@pytest.fixture
def eager(monkeypatch):
    """Nothing is compiled, which takes long and is tried once."""
    pytest.importorskip("transformers")
    monkeypatch.setattr(torch, "compile", lambda function, **_: function)


@pytest.mark.usefixtures("eager", "former_precision")
def test_logits_gradient_and_update_of_the_llama_are_those_of_the_plain_model():
    work = one(batch_size=2).setup()
    found = measure.errors(work)
    assert max(*found["logits_error"], *found["gradient_error"], *found["update_error"]) < 1e-4
    assert work.facts["peer_version"].split(".")[0].isdigit()


@pytest.mark.usefixtures("eager", "former_precision")
def test_rows_in_another_order_are_noticed(monkeypatch):
    monkeypatch.setattr(peers, "_by_halves", lambda name, weight, heads: weight)
    monkeypatch.setattr(peers, "_by_pairs", lambda name, weight, heads: weight)
    with pytest.raises(measure.WrongResult, match="logits"):
        measure.errors(one().setup())


@pytest.mark.usefixtures("eager", "former_precision")
def test_both_programs_begin_with_the_same_weights_and_batch():
    built = []
    for program in peers.PROGRAMS:
        torch.manual_seed(0)
        case = one(program=program)
        built.append(peers.Llama(case.inner) if program == peers.PEER else case.inner.training())
    ours, llama = built
    assert torch.equal(ours.batch, llama.batch)
    assert ours.weights.keys() == llama.weights.keys()
    assert all(torch.equal(ours.weights[name], llama.weights[name]) for name in ours.weights)
    assert sum(p.numel() for p in ours.module.parameters()) == sum(p.numel() for p in llama.module.parameters())


@pytest.mark.usefixtures("forget_graphs")
def test_a_record_has_the_pairs_of_both_compiled(own_results, one_thread, monkeypatch):
    pytest.importorskip("transformers")
    monkeypatch.setitem(SIZES, "tiny", replace(SIZES["tiny"], num_layers=1))  # each layer is compiled anew
    monkeypatch.setattr(torch, "compile", functools.partial(torch.compile, backend="aot_eager"))  # takes less long
    metrics = plain.measured(one())["metrics"]
    assert len(metrics["paired_ms"]) == len(metrics["baseline_ms"]) >= 5
    assert metrics["peer_version"]
    records = results.load("peers", results.machines()[0])
    assert list(records["program"]) == ["transformers"]


def test_where_transformers_is_missing_it_is_left_out_and_ours_is_not(monkeypatch):
    find = importlib.util.find_spec
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None if name == "transformers" else find(name))
    assert one().unavailable() == "transformers is not installed (make peers)"
    assert one(program="ours").unavailable() == one(program="ours").inner.unavailable()
