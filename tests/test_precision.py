"""Each precision's name switches on what it says, and nothing else."""

import re

import pytest
import torch

from lib import precision

pytestmark = pytest.mark.usefixtures("former_precision")


def linear_dtype(context):
    with context:
        return torch.nn.Linear(4, 4)(torch.ones(2, 4)).dtype


@pytest.mark.parametrize(
    ("name", "dtype"), [("fp32", torch.float32), ("bf16", torch.bfloat16), ("fp16", torch.float16)]
)
def test_a_precision_computes_linear_layers_in_its_type_and_products_of_fp32_strictly(name, dtype):
    torch.set_float32_matmul_precision("high")
    context = precision.activate(name, "cpu")
    assert torch.get_float32_matmul_precision() == "highest"
    with torch.autocast("cpu", torch.float16):
        # fp32 even within another one
        assert linear_dtype(context) == linear_dtype(context) == dtype  # it can be entered again
    assert not torch.is_autocast_enabled("cpu")


@pytest.mark.parametrize(
    ("name", "device", "message"),
    [
        ("tf32", "cpu", "got tf32 on cpu, expected cuda (nearest: bf16_products)"),
        ("tf32", "mps", "got tf32 on mps, expected cuda (nearest: fp32)"),
        ("bf16_products", "cuda", "got bf16_products on cuda, expected cpu (nearest: tf32)"),
    ],
)
def test_a_mode_of_products_is_refused_on_other_devices_and_changes_nothing(name, device, message):
    torch.set_float32_matmul_precision("medium")
    with pytest.raises(ValueError, match=re.escape(f"precision: {message}")):
        precision.activate(name, device)
    assert torch.get_float32_matmul_precision() == "medium"


def test_bf16_products_keep_values_in_fp32_until_strict_ones_are_asked_for():
    assert linear_dtype(precision.activate("bf16_products", "cpu")) == torch.float32
    assert torch.get_float32_matmul_precision() == "medium"
    with precision.strict():
        assert torch.get_float32_matmul_precision() == "highest"
    precision.activate("bf16", "cpu")
    assert torch.get_float32_matmul_precision() == "highest"
