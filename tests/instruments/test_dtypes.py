"""The dtypes of a model's tensors are those that autocast gives them."""

from lib import model, precision
from lib.instruments import dtypes

TINY = model.Config(vocab_size=16, context_length=4, d_model=8, d_ff=8, num_layers=1, num_heads=2)


def test_the_toy_models_products_are_narrow_and_its_loss_and_gradients_wide(former_precision):
    table = dtypes.toy(precision.activate("bf16", "cpu"), "cpu")
    seen = dict(zip(table["tensor"], table["dtype"], strict=True))
    narrow = ("output of the first layer", "output of ReLU", "logits", "gradient of the logits")
    wide = ("parameters", "loss", "gradients of the parameters")
    assert {seen[tensor] for tensor in narrow} == {"bf16"}
    assert {seen[tensor] for tensor in wide} == {"fp32"}


def test_a_transformers_softmax_is_observed(former_precision):
    table = dtypes.transformer(TINY, precision.activate("bf16", "cpu"), "cpu")
    assert {"attention scores", "attention weights"} <= set(table["tensor"])
