"""Sums and dtypes in narrow types are those that plain PyTorch gives."""

import pytest
import torch

from plain import measured, one


def dtypes_of(model, precision):
    table = measured(one("precision", subject=model, precision=precision))["dtypes"]
    return dict(zip(table["tensor"], table["dtype"], strict=True))


@pytest.mark.parametrize(("name", "dtype"), [("fp16", torch.float16), ("bf16", torch.bfloat16)])
def test_the_four_sums_are_those_of_the_assignments_loops(name, dtype):
    table = measured(one("precision", subject="accumulation", precision=name))["loops"]
    sums = dict(zip(table["loop"], table["sum"], strict=True))
    narrow = torch.tensor(0, dtype=dtype)
    mixed = torch.tensor(0, dtype=torch.float32)
    for _ in range(1000):
        narrow += torch.tensor(0.01, dtype=dtype)
        mixed += torch.tensor(0.01, dtype=dtype)
    assert sums[f"{name} += {name}"] == narrow.item()
    assert sums[f"fp32 += {name}"] == sums[f"fp32 += {name} as fp32"] == mixed.item()


def test_the_toy_models_products_are_narrow_and_its_loss_and_gradients_wide():
    seen = dtypes_of("toy", "bf16")
    narrow = ("output of the first layer", "output of ReLU", "logits", "gradient of the logits")
    wide = ("parameters", "loss", "gradients of the parameters")
    assert {seen[tensor] for tensor in narrow} == {"bf16"}
    assert {seen[tensor] for tensor in wide} == {"fp32"}


def test_a_language_model_keeps_its_residual_stream_in_fp32_and_its_softmax_is_observed():
    seen = dtypes_of("transformer", "fp16")
    assert seen["residual stream after a layer"] == "fp32"
    assert seen["queries"] == "fp16"
    assert {"attention scores", "attention weights"} <= seen.keys()


def test_what_is_no_case_is_left_out():
    assert "each include" in one("precision", subject="accumulation", precision="fp32").unavailable()
    assert "not a dtype" in one("precision", subject="toy", precision="tf32").unavailable()
