"""Sums and dtypes in narrow types are those that plain PyTorch gives."""

import pandas as pd
import pytest
import torch

from plain import measured, one


@pytest.mark.parametrize(("name", "dtype"), [("fp16", torch.float16), ("bf16", torch.bfloat16)])
def test_the_four_sums_are_those_of_the_assignments_loops(name, dtype):
    table = pd.DataFrame(measured(one("precision", subject="accumulation", precision=name))["loops"])
    sums = table.set_index("loop")["sum"]
    narrow = torch.tensor(0, dtype=dtype)
    mixed = torch.tensor(0, dtype=torch.float32)
    for _ in range(1000):
        narrow += torch.tensor(0.01, dtype=dtype)
        mixed += torch.tensor(0.01, dtype=dtype)
    assert sums[f"{name} += {name}"] == narrow.item()
    assert sums[f"fp32 += {name}"] == sums[f"fp32 += {name} as fp32"] == mixed.item()


def test_the_toy_models_products_are_narrow_and_its_loss_and_gradients_wide():
    table = pd.DataFrame(measured(one("precision", subject="toy", precision="bf16"))["dtypes"])
    dtypes = table.set_index("tensor")["dtype"]
    narrow = ["output of the first layer", "output of ReLU", "logits", "gradient of the logits"]
    assert set(dtypes[narrow]) == {"bf16"}
    assert set(dtypes[["parameters", "loss", "gradients of the parameters"]]) == {"fp32"}


def test_what_is_no_case_is_left_out():
    assert "each include" in one("precision", subject="accumulation", precision="fp32").unavailable()
    for mode in ("tf32", "bf16_products"):
        assert "not a dtype" in one("precision", subject="toy", precision=mode).unavailable()
