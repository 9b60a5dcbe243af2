"""The memory of a step is predicted to the byte without allocating it, for the largest models too."""

from dataclasses import replace
from pathlib import Path

import pytest
import torch

from lib import model
from lib.experiments.memory import Memory
from lib.instruments import peak_memory
from lib.instruments.peak_memory import MIB

pytestmark = pytest.mark.usefixtures("one_thread", "little_garbage")


@pytest.fixture
def step(monkeypatch):
    """A training step of a size of the tests' own."""
    monkeypatch.setitem(
        model.SIZES, "test", model.Config(context_length=48, d_model=32, d_ff=96, num_layers=2, num_heads=2)
    )
    plain = {"size": "test", "context_length": 48, "batch_size": 2, "precision": "fp32", "compiled": False}
    plain |= {"attention": "naive", "optimizer": "single_tensor", "mode": "train_step"}
    plain |= {"device": "cpu", "checkpoint": 0}
    return lambda **fields: Memory(**plain | fields)


@pytest.mark.parametrize(
    "fields",
    [
        {"mode": "no_grad"},
        {"mode": "forward_backward", "attention": "sdpa", "precision": "bf16"},
        {"mode": "train_step"},
        {"mode": "train_step", "attention": "tiled", "optimizer": "foreach", "precision": "bf16"},
    ],
)
def test_a_step_is_predicted_to_the_byte(step, fields):
    case = step(**fields)
    predicted, work = case.traced(), case.work(case.training())
    work.iteration(lambda phase: None)
    work.before()
    measured = peak_memory.peaks(work.iteration, "cpu")
    measured.pop("resident_peak_mib", None)
    assert predicted.peaks == measured
    assert predicted.total == measured["peak_mib"][0] * MIB


def test_the_bytes_at_the_peak_are_told_apart_by_kind_and_by_module(step):
    few, many = step(context_length=4, batch_size=1), step(context_length=200)
    end, loss = few.traced(), many.traced()  # the peaks: at the end of the backward pass or later, and in the loss
    for case, found in ((few, end), (many, loss)):
        assert found.kinds["parameters"] == 4 * case.shape.parameters
        assert found.kinds["optimizer states"] == 8 * case.shape.parameters + 4 * (9 * 2 + 3)
        tokens, table = case.batch_size * (case.context_length + 1), case.context_length * case.config.d_head
        assert found.kinds["others"] == 8 * tokens + 4 * table  # the batch, the cosines and sines
    assert end.kinds["gradients"] == 4 * few.shape.parameters
    assert end.kinds["temporaries"] == 3 * 4 * 10_000 * 32  # those of the optimizer, for the embedding or the head
    assert end.activations == {"lm_head": 4 * 4 * 10_000, "Global": 4}  # the logits and the loss

    assert loss.kinds["gradients"] == 0
    assert loss.kinds["temporaries"] == 2 * 4 * 400 * 10_000 + 4  # the gradients of log-probabilities, logits and loss
    hidden, wide = 4 * 400 * 32, 4 * 400 * 96
    assert loss.activations["layers.*.ffn.w1"] == loss.activations["layers.*.ffn.w3"] == 2 * wide
    assert loss.activations["layers.*.attn.rope"] == 2 * 2 * hidden
    assert loss.activations["token_embeddings"] == hidden
    assert loss.activations["lm_head"] == 4 * 400 * 10_000


def test_a_prediction_leaves_the_precision_of_the_process_alone_and_there_is_none_of_what_compiles(step):
    torch.set_float32_matmul_precision("high")
    step().traced()
    assert torch.get_float32_matmul_precision() == "high"
    torch.set_float32_matmul_precision("highest")
    assert step(compiled=True).traced() is None


@pytest.mark.skipif(not Path("/proc/self/clear_refs").exists(), reason="only Linux tells the resident peak")
def test_a_step_of_the_largest_models_layers_is_predicted_in_little_memory(monkeypatch):
    monkeypatch.setitem(model.SIZES, "10B", replace(model.SIZES["10B"], num_layers=2))
    case = Memory("10B", 512, 4, "fp32", False, "naive", "fused", "train_step", "cpu", 0)
    with peak_memory.resident_peak() as before:
        pass
    with peak_memory.resident_peak() as during:
        assert case.traced().total > 8 * 2**30
    assert during["resident_peak_mib"][0] - before["resident_peak_mib"][0] < 256
