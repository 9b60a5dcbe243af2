"""Each precision's name switches on what it says, and nothing else."""

import pytest
import torch

from lib import precision

pytestmark = pytest.mark.usefixtures("former_precision")


def linear_dtype(context):
    """The type of a linear layer's output within a context."""
    with context:
        return torch.nn.Linear(4, 4)(torch.ones(2, 4)).dtype


@pytest.mark.parametrize("before", ["highest", "high", "medium"])
@pytest.mark.parametrize("name", ["fp32", "bf16", "fp16"])
def test_products_in_fp32_are_strict_whatever_was_set_before(name, before):
    torch.set_float32_matmul_precision(before)
    precision.activate(name, "cpu")
    assert torch.get_float32_matmul_precision() == "highest"


def test_fp32_is_without_autocast_even_within_one():
    with torch.autocast("cpu", torch.bfloat16), precision.activate("fp32", "cpu"):
        assert not torch.is_autocast_enabled("cpu")
    assert linear_dtype(precision.activate("fp32", "cpu")) == torch.float32


@pytest.mark.parametrize(("name", "dtype"), [("bf16", torch.bfloat16), ("fp16", torch.float16)])
def test_a_narrow_precision_computes_linear_layers_in_its_type(name, dtype):
    assert linear_dtype(precision.activate(name, "cpu")) == dtype
    assert not torch.is_autocast_enabled("cpu")


def test_a_narrow_precision_leaves_parameters_and_gradients_in_fp32():
    layer = torch.nn.Linear(4, 4)
    with precision.activate("bf16", "cpu"):
        out = layer(torch.ones(2, 4))
    out.sum().backward()
    assert layer.weight.dtype == layer.weight.grad.dtype == torch.float32


def test_a_context_can_be_entered_again():
    context = precision.activate("bf16", "cpu")
    assert linear_dtype(context) == linear_dtype(context) == torch.bfloat16


@pytest.mark.parametrize("device", ["cpu", "mps"])
def test_tf32_is_refused_without_cuda_and_changes_nothing(device):
    torch.set_float32_matmul_precision("medium")
    with pytest.raises(ValueError, match=r"^precision: tf32 needs a CUDA device"):
        precision.activate("tf32", device)
    assert torch.get_float32_matmul_precision() == "medium"


def test_an_unknown_precision_is_refused_with_the_nearest_name():
    with pytest.raises(ValueError, match=r"^precision: got 'bf61'.*nearest: bf16"):
        precision.activate("bf61", "cpu")
