"""A trace says when memory was taken and freed, by whom, and what is alive at the peak."""

import weakref
from types import SimpleNamespace

import pandas as pd
import pytest
import torch

from lib import attention, model, timing
from lib.experiments.training import Training
from lib.instruments import memory_trace
from lib.instruments.device import Cuda
from lib.instruments.peak_memory import MIB
from plain import one

pytestmark = pytest.mark.usefixtures("one_thread", "little_garbage", "former_precision")


def traced(iteration, count=3):
    """The trace of an iteration without a model."""
    training = SimpleNamespace(
        module=torch.nn.Identity(), optimizer=SimpleNamespace(state={}), iteration=iteration, before=timing.nothing
    )
    return memory_trace.trace(training, "cpu", count)


def test_a_timeline_has_every_change_the_phases_and_the_largest_allocations():
    q, k, v = (torch.randn(1, 2, 64, 8, requires_grad=True) for _ in range(3))

    def iteration(mark):
        loss = attention.naive(q, k, v).sum()
        mark("forward")
        loss.backward()
        mark("backward")
        for x in (q, k, v):
            x.grad = None

    tables = traced(iteration, count=6)
    instants, live = tables["timeline"]["instant_us"], tables["timeline"]["live_mib"]
    assert max(live) == tables["peak_mib"][0]
    assert live[0] == live[-1] == 3 * 4096 / MIB  # all that was made is freed
    assert instants == sorted(instants)
    assert tables["phases"]["phase"] == ["forward", "backward"]
    (start, again), (middle, end) = tables["phases"]["begin_us"], tables["phases"]["end_us"]
    assert 0 == start < middle == again < end

    largest = tables["largest"]
    assert set(largest["each_mib"]) == {4 * 2 * 64 * 64 / MIB}
    assert sum(largest["count"]) == 6
    made = set(zip(largest["module"], largest["operator"], largest["phase"], strict=True))
    assert made >= {("loss", "aten::_softmax", "forward"), ("BmmBackward0", "aten::bmm", "backward")}


def test_a_thinned_timeline_keeps_its_ends_and_its_peak():
    def iteration(mark):
        sizes = torch.randint(1, 10_000, (2_000,)).tolist()
        for size in sizes:
            last = torch.empty(size)
        mark(f"ends with {last.nbytes}")

    metrics = traced(iteration)
    live = metrics["timeline"]["live_mib"]
    assert len(live) <= memory_trace.POINTS + 2
    assert max(live) == metrics["peak_mib"][0]
    assert live[0] == live[-1] == 0


def test_views_share_a_storage_that_belongs_to_its_first_owner():
    before = memory_trace.count_bytes({}, "cpu")["all"]
    whole, stranger = torch.zeros(1000), torch.zeros(10)
    held = memory_trace.count_bytes({"first": [whole[:10], whole], "second": [whole]}, "cpu")
    assert held == {"first": 4000, "second": 0, "all": before + 4000 + stranger.nbytes}


def stepped(monkeypatch, checkpoint=0, **changed):
    config = model.Config(context_length=48, d_model=32, d_ff=96, num_layers=2, num_heads=2)
    monkeypatch.setitem(model.SIZES, "tiny", config)
    case = one("step", **{"context_length": 48} | changed)
    training = Training(case, checkpoint)
    training.iteration(lambda phase: None)
    return training, case


@pytest.mark.parametrize(
    ("checkpoint", "changed"),
    [
        (0, {"mode": "no_grad"}),
        (0, {"mode": "forward_backward", "attention": "sdpa", "precision": "bf16"}),
        (0, {"attention": "tiled", "optimizer": "foreach"}),
        (1, {}),
    ],
)
def test_the_parts_add_up_to_the_peak(monkeypatch, checkpoint, changed):
    training, _ = stepped(monkeypatch, checkpoint, **changed)
    metrics = memory_trace.trace(training, "cpu", 3)
    assert sum(metrics["alive"]["part_mib"]) == pytest.approx(metrics["peak_mib"][0], rel=1e-12)


def test_kinds_and_modules_have_the_bytes_of_theory(monkeypatch):
    # the peak of so many tokens is in the loss
    training, case = stepped(monkeypatch, context_length=200)
    alive = pd.DataFrame(memory_trace.trace(training, "cpu", 3)["alive"]).set_index(["kind", "module"])
    table = alive["part_mib"] * MIB
    parameters = torch.nn.utils.parameters_to_vector(training.module.parameters()).numel()
    tensors = len(list(training.module.parameters()))
    assert table["parameters", ""] == 4 * parameters
    assert table["optimizer states", ""] == 8 * parameters + 4 * tensors  # and a counter for each
    # the batch, and the cosines and sines of the positions
    assert table["others", ""] == 8 * 2 * 201 + 4 * 200 * case.config.d_head
    assert table["gradients", ""] == 0
    # the gradients of log-probabilities, logits and loss
    assert table["temporaries", ""] == 2 * 4 * 400 * 10_000 + 4
    assert table["activations", "layers.*.ffn.w1"] == table["activations", "layers.*.ffn.w3"] == 2 * 4 * 400 * 96
    assert table["activations", "layers.*.attn.rope"] == 2 * 2 * 4 * 400 * 32
    assert table["activations", "token_embeddings"] == 4 * 400 * 32
    assert table["activations", "lm_head"] == 4 * 400 * 10_000


def test_what_is_saved_for_a_backward_pass_that_never_comes_is_freed():
    model = torch.nn.Sequential(torch.nn.Linear(8, 8), torch.nn.Softmax(-1))
    with memory_trace.saved_for_backward(model) as metrics:
        out = model(torch.randn(4, 8))
    assert len(metrics["saved"]["module"]) == 2
    # softmax saves its output, which would hold itself
    freed = weakref.ref(out.untyped_storage())
    del out
    assert freed() is None


def test_a_gpu_follows_one_iteration_and_counts_another(monkeypatch):
    training, _ = stepped(monkeypatch, mode="no_grad")
    peak_mib = memory_trace.trace(training, "cpu", 3)["peak_mib"][0]
    monkeypatch.setattr(Cuda, "memory_bytes", lambda _: {"peak": 3 * MIB})
    metrics = memory_trace.trace(training, "cuda", 3)
    assert metrics["peak_mib"] == [3.0]
    assert max(metrics["timeline"]["live_mib"]) == peak_mib
