"""A ceiling counts what it computes or moves, and the products of a step are the step's own and checked."""

from dataclasses import replace

import pytest
import torch

from lib.config import SIZES
from lib.cost import flops
from lib.experiments import measure
from lib.instruments import peak_memory
from lib.model import TransformerLM
from plain import measured, one

TINY = {"operation": "products", "columns": SIZES["tiny"].d_model}


@pytest.mark.parametrize(
    ("operation", "facts"),
    [
        ("matmul", {"flops": 2 * 4 * 4 * 6}),
        ("copy", {"moved_bytes": 2 * 4 * 6 * 4}),
        ("triad", {"moved_bytes": 3 * 4 * 6 * 4}),
        ("add", {"moved_bytes": 3 * 4 * 6 * 4}),
        ("adamw", {"moved_bytes": flops.adam_bytes(4 * 6, amsgrad=False)}),
    ],
)
def test_a_ceiling_knows_what_it_computes_or_moves(operation, facts):
    case = one("ceilings", operation=operation, rows=4, columns=6)
    assert case.setup().facts == facts
    assert case.costs().flops + case.costs().bytes == sum(facts.values())


def test_a_call_is_made_a_thousand_times():
    work = one("ceilings", operation="call", rows=1, columns=1).setup()
    with torch.profiler.profile() as profile:
        work.iteration(lambda name: None)
    (row,) = (event for event in profile.key_averages() if event.key == "aten::add")
    assert work.facts == {"calls": row.count} == {"calls": 1000}


def counted(iteration):
    """The FLOPs and the number of the products that PyTorch sees, by the kernel that does them."""
    with torch.profiler.profile(with_flops=True) as profile:
        iteration()
    return {event.key: (event.flops, event.count) for event in profile.key_averages() if event.flops}


def test_the_products_of_a_step_are_all_but_those_of_attention():
    case = one("ceilings", rows=32, **TINY)
    work, shape = case.setup(), flops.shape_of(replace(SIZES["tiny"], context_length=8), batch_size=4)
    attention = 3 * 4 * shape.num_layers * flops.attention_flops(1, 8, shape.d_model)
    step = flops.forward_flops(shape) + flops.backward_flops(shape)
    assert work.facts == {"flops": step - attention}
    assert counted(lambda: work.iteration(lambda name: None)) == {"aten::mm": (*work.facts.values(), 3 * 29)}
    assert (case.costs().flops, case.costs().operations) == (work.facts["flops"], 3 * 29)


def test_the_products_of_a_step_are_with_the_models_weights_in_its_order():
    model, forward = TransformerLM(SIZES["tiny"]), []
    for layer in model.modules():
        if isinstance(layer, torch.nn.Linear):
            layer.register_forward_hook(lambda module, *_: forward.append(tuple(module.weight.shape)))
    model(torch.zeros(1, 2, dtype=torch.long))
    assert one("ceilings", **TINY).shapes == forward


@pytest.mark.parametrize(("precision", "tokens"), [("bf16", 512), ("fp16", 16)])
def test_the_products_of_a_step_give_a_valid_record_and_their_memory_is_predicted(own_results, precision, tokens):
    case = one("ceilings", rows=tokens, precision=precision, **TINY)
    metrics = measured(case)["metrics"]
    assert len(metrics["run_ms"]) == 6
    assert 0 < metrics["out_error"][0] < 0.05
    peak = metrics["peak_mib"][0]
    assert peak <= case.predicted_bytes() / peak_memory.MIB <= 1.2 * peak


@pytest.mark.parametrize("kind", [0, 1, 2], ids=["forward", "input gradient", "weight gradient"])
def test_a_wrong_product_of_any_kind_is_noticed(own_results, monkeypatch, kind):
    right, calls = torch.mm, []
    work = one("ceilings", rows=64, **TINY).setup()

    def wrong(left, right_side):
        calls.append(None)
        first = {0: 1, 1: 3 * 29 - 1, 2: 3 * 29}[kind]  # the call of each kind with the first weight
        return right(left, right_side) * (1.01 if len(calls) == first else 1)

    monkeypatch.setattr(torch, "mm", wrong)
    with pytest.raises(measure.WrongResult, match="out"):
        measure.errors(work)


def test_no_size_has_just_any_width():
    with pytest.raises(ValueError, match=r"columns: got 100, expected the d_model of a size for products: 128, 768, "):
        one("ceilings", operation="products", columns=100)
