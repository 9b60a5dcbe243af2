"""Operators of small programs: their calls, bytes and shapes are exact, and each is timed alone."""

from dataclasses import asdict

import pytest
import torch

from lib.adam import Hyper
from lib.instruments import operators
from plain import one


@pytest.fixture(autouse=True)
def _briefly(monkeypatch):
    monkeypatch.setattr(operators, "LEAST_MS", 1.0)


def rows(table):
    return [dict(zip(table, row, strict=True)) for row in zip(*table.values(), strict=True)]


def seen(program):
    """Return what a program of one phase calls: name, kind, calls, bytes moved and, of them, new."""
    with operators.Observer() as observed:
        program()
        observed.mark("all")
    return {
        operators._name(call.operator): (call.kind, count, call.moved_bytes, call.new_bytes)
        for call, count in observed.calls.items()
    }


A, B = torch.ones(100), torch.ones(100)
WIDE = torch.ones(10, 1).expand(10, 50)
TABLE, PICKED = torch.ones(1000, 4), torch.tensor([3, 5])
LISTS = [[torch.ones(100) for _ in range(3)] for _ in range(4)]


@pytest.mark.parametrize(
    ("program", "expected"),
    [
        (lambda: A + B, {"add": ("memory", 1, 1200, 400)}),  # two tensors are read, and a new one is written
        (lambda: A.add_(B), {"add_": ("memory", 1, 1200, 0)}),
        (lambda: A.copy_(B), {"copy_": ("memory", 1, 800, 400)}),  # what it overwrites it does not read
        (lambda: torch.add(A, B, out=A), {"add": ("memory", 1, 1200, 0)}),
        (lambda: WIDE * WIDE, {"mul": ("memory", 1, 40 + 2000, 2000)}),  # a broadcast and a repeated one count once
        (
            lambda: torch.nn.functional.embedding(PICKED, TABLE),
            {"embedding": ("memory", 1, 16 + 2 * 32, 32)},  # only the rows that it picks
        ),
        (lambda: torch._foreach_add_(LISTS[0], LISTS[1]), {"_foreach_add_": ("memory", 1, 3 * 1200, 0)}),
    ],
)
def test_an_operator_moves_the_distinct_tensors_that_it_reads_and_writes(program, expected):
    assert seen(program) == expected


def test_views_and_allocations_move_nothing():
    a = torch.ones(10, 10)
    found = seen(lambda: (a.t(), a[2:], a.reshape(100), torch.empty(1000)))
    assert {kind for kind, *_ in found.values()} == {"view", "memory"}
    assert all(moved == 0 for _, _, moved, _ in found.values())
    assert found["empty"][0] == "memory"


def test_the_fused_optimizer_leaves_gradients_alone():
    steps = [torch.ones(()) for _ in range(3)]
    found = seen(lambda: torch._fused_adamw_(*LISTS, [], steps, maximize=False, **asdict(Hyper())))
    assert found["_fused_adamw_"][2] == 3 * (7 * 400 + 4)


def test_a_product_has_its_shapes_flops_and_time_in_each_phase():
    x, w = torch.ones(8, 4), torch.ones(16, 4, requires_grad=True)

    def iteration(mark):
        loss = torch.nn.functional.linear(x, w).square().sum()
        mark("forward")
        loss.backward()
        mark("backward")

    found = operators.metrics(iteration, "cpu")
    products = [row for row in rows(found["alone"]) if row["kind"] == "product"]
    assert [(row["phase"], row["shapes"], row["flops"], row["calls"]) for row in products] == [
        ("forward", "8×4 · 4×16 strides 1 4", 1024, 1), ("backward", "16×8 strides 1 16 · 8×4", 1024, 1),
    ]  # fmt: skip
    assert all(row["call_ms"] > 0 for row in products)
    assert all(row["spent_ms"] > 0 for row in rows(found["operators"]))
    assert found["phase_faults"]["phase"] == ["forward", "backward"]


def test_functions_and_fused_attention_are_timed_alone():
    q = torch.rand(1, 2, 8, 4)

    def iteration(mark):
        torch.nn.functional.scaled_dot_product_attention(q, q, q, is_causal=True).softmax(-1) @ q.mT
        mark("forward")

    found = {row["kind"]: row for row in rows(operators.metrics(iteration, "cpu")["alone"])}
    assert set(found) == {"attention", "function", "product"}
    assert all(row["call_ms"] > 0 for row in found.values())


def test_fresh_pages_cost_time():
    assert all(0 < us < 1000 for us in operators.fault_us(repeat=2))


def test_a_program_without_products_has_no_account():
    assert operators.metrics(lambda mark: (torch.ones(3).add_(1), mark("forward")), "cpu") == {}


@pytest.mark.parametrize("fields", [{}, {"attention": "sdpa", "optimizer": "fused", "precision": "bf16"}])
def test_a_step_is_accounted_for_by_phase(fields):
    case = one("kernels", **fields)
    found = case.account(case.setup())
    phases = ["forward", "backward", "optimizer"]
    assert list(dict.fromkeys(found["operators"]["phase"])) == found["phase_faults"]["phase"] == phases
    forward = sum(r["flops"] * r["calls"] for r in rows(found["alone"]) if r["phase"] == "forward")
    if case.attention == "naive":
        assert forward == case.setup().facts["forward_flops"]
    optimizer = sum(r["moved_bytes"] for r in rows(found["operators"]) if r["phase"] == "optimizer")
    if case.optimizer == "fused":
        assert optimizer == pytest.approx(case.setup().facts["optimizer_bytes"], rel=1e-3)


def test_a_compiled_step_hides_its_operators():
    assert one("kernels", compiled=True).account(None) == {}
