"""A case knows what it computes in theory, whether the machine has the means for it, and refuses what cannot be."""

import pytest
import torch

from lib.cost import flops
from lib.experiments import measure
from plain import one


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


def test_the_facts_of_a_step_and_of_attention_hold_what_theory_says_of_each_phase():
    facts = one("step").setup().facts
    assert facts["backward_flops"] == 2 * facts["forward_flops"]
    assert facts["optimizer_flops"] == 14 * facts["parameters"]
    assert facts["optimizer_bytes"] == 28 * facts["parameters"]
    assert 0 < facts["forward_bytes"] < facts["backward_bytes"]
    moved = 12 * 4 * 8 * 4  # Q, K, V, the output and their gradients, and 19 or 15 times the scores
    causal = {"forward_flops": 4 * 64 * 4, "causal_flops": 4 * 36 * 4, "moved_bytes": moved + 19 * 4 * 64}
    assert one("attention").setup().facts == causal
    assert one("attention", causal=False).setup().facts == {
        "forward_flops": 4 * 64 * 4,
        "moved_bytes": moved + 15 * 4 * 64,
    }


def test_what_the_machine_has_no_means_for_is_left_out_and_says_why():
    case = one("attention", precision="tf32")
    assert "CUDA" in case.unavailable()
    assert measure.available([case]) == []
