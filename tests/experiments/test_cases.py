"""A case knows what it computes in theory, whether the machine has the means for it, and refuses what cannot be."""

from lib.experiments import measure
from plain import one


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
