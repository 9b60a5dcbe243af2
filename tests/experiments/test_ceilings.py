"""A ceiling counts what it computes or moves; the products of a step are the step's own, and every one is checked."""

from dataclasses import replace

import pytest
import torch
from torch.utils.flop_counter import FlopCounterMode

from lib.cost import flops
from lib.experiments import case as measuring
from lib.experiments import ceilings
from lib.experiments.ceilings import Ceilings
from lib.instruments import device
from lib.model import SIZES
from lib.timing import nothing
from plain import measured

WIDTH = SIZES["tiny"].d_model


def ceiling(operation, rows=32, columns=WIDTH, precision="fp32"):
    return Ceilings(operation, rows, columns, precision, "cpu")


@pytest.mark.parametrize("operation", ["matmul", *ceilings.LINEAR, "products"])
def test_products_are_right_and_their_flops_are_those_that_pytorch_counts(operation):
    metrics = measured(ceiling(operation))
    assert max(value[0] for name, value in metrics.items() if name.endswith("_error")) < 1e-4
    with FlopCounterMode(display=False) as counter:
        ceiling(operation).setup().iteration(nothing)
    assert metrics["flops"] == counter.get_total_flops()


@pytest.mark.parametrize("operation", [*ceilings.PASSES, "call"])
def test_operations_on_memory_are_right(operation):
    size = 1 if operation == "call" else 300
    metrics = measured(ceiling(operation, size, size))
    assert metrics["out_error"][0] < 1e-6
    assert metrics.get("moved_bytes", 0) == ceilings.PASSES.get(operation, 0) * 300 * 300 * 4


def test_the_products_of_a_step_are_those_with_the_models_weights():
    shape = flops.shape_of(replace(SIZES["tiny"], context_length=8), batch_size=4)
    attention = 3 * 4 * shape.num_layers * flops.attention_flops(1, 8, shape.d_model)
    step = flops.forward_flops(shape) + flops.backward_flops(shape)
    assert ceiling("products").setup().facts["flops"] == step - attention


@pytest.mark.parametrize("call", [0, 1, 2], ids=["forward", "input gradient", "weight gradient"])
def test_a_wrong_product_of_any_kind_is_noticed(monkeypatch, call):
    work = ceiling("up").setup()
    products = []

    def wrong_once(left, right):
        products.append(torch.matmul(left, right) * (1.01 if len(products) == call else 1))
        return products[-1]

    monkeypatch.setattr(torch, "mm", wrong_once)
    with pytest.raises(measuring.WrongResult, match=r"output|gradient"):
        measuring.check(measuring.Recording(ceiling("up")), work)


@pytest.mark.usefixtures("former_precision")
@pytest.mark.skipif(device.on("cpu").lacks("bf16_products") is not None, reason="no bf16_products")
def test_products_in_the_mode_of_bf16_keep_their_values_in_fp32():
    work = ceiling("up", precision="bf16_products").setup()
    measuring.check(measuring.Recording(ceiling("up")), work)
    assert {tensor.dtype for tensor in work.result().values()} == {torch.float32}
    assert torch.get_float32_matmul_precision() == "medium"


def test_impossible_cases_are_refused():
    with pytest.raises(ValueError, match=r"columns: got 100, expected the d_model of a size: 128, 768, "):
        ceiling("products", columns=100)
    with pytest.raises(ValueError, match="expected 1, 1 for operation call"):
        ceiling("call")
