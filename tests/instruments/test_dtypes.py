"""The dtypes of a model's tensors are those that autocast gives them."""

import pytest
import torch

from lib import model, precision
from lib.instruments import dtypes

TINY = model.Config(vocab_size=16, context_length=4, d_model=8, d_ff=8, num_layers=1, num_heads=2)


def as_dict(table):
    return dict(zip(table["tensor"], table["dtype"], strict=True))


@pytest.mark.parametrize(("name", "narrow"), [("fp32", "fp32"), ("bf16", "bf16")])
def test_the_toy_models_products_are_narrow_and_its_loss_and_gradients_wide(former_precision, name, narrow):
    found = as_dict(dtypes.toy(precision.activate(name, "cpu"), "cpu"))
    assert found["output of the first layer"] == found["output of ReLU"] == found["logits"] == narrow
    wide = ("parameters", "loss", "gradients of the parameters")
    assert {found[tensor] for tensor in wide} == {"fp32"}
    assert found["gradient of the logits"] == narrow


def test_a_transformers_scores_are_narrow_and_softmax_is_observed_once(former_precision):
    found = as_dict(dtypes.transformer(TINY, precision.activate("bf16", "cpu"), "cpu"))
    assert found["queries"] == found["output of attention"] == found["logits"] == "bf16"
    assert found["parameters"] == found["loss"] == found["gradients of the parameters"] == "fp32"
    assert {"attention scores", "attention weights", "residual stream after a layer"} <= set(found)
    torch.testing.assert_close(torch.softmax(torch.zeros(2), 0), torch.full((2,), 0.5))  # observed no longer
