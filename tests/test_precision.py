"""Each precision's name switches on what it says, and nothing else."""

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
    assert linear_dtype(context) == linear_dtype(context) == dtype  # it can be entered again
    assert not torch.is_autocast_enabled("cpu")


def test_fp32_is_without_autocast_even_within_one():
    with torch.autocast("cpu", torch.bfloat16), precision.activate("fp32", "cpu"):
        assert not torch.is_autocast_enabled("cpu")


@pytest.mark.parametrize("device", ["cpu", "mps"])
def test_tf32_is_refused_without_cuda_and_changes_nothing(device):
    torch.set_float32_matmul_precision("medium")
    with pytest.raises(ValueError, match=rf"^precision: got tf32 on {device}, expected cuda"):
        precision.activate("tf32", device)
    assert torch.get_float32_matmul_precision() == "medium"
