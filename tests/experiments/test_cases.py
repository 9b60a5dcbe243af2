"""A case knows what it computes in theory, whether the machine has the means for it, and refuses what cannot be."""

from dataclasses import fields, replace

import pytest
import torch

from lib import timing
from lib.catalog import CATALOG
from lib.experiments import cases
from plain import one


def test_the_facts_of_a_step_and_of_attention_hold_what_theory_says_of_each_phase():
    facts = one("step", batch_size=1).setup().facts
    assert facts["backward_flops"] == 2 * facts["forward_flops"]
    assert facts["optimizer_bytes"] == 28 * facts["parameters"]
    assert 0 < facts["forward_bytes"] < facts["backward_bytes"]
    moved = 12 * 4 * 8 * 4  # Q, K, V, the output and their gradients, and 19 times the scores
    causal = {"forward_flops": 4 * 64 * 4, "causal_flops": 4 * 36 * 4, "moved_bytes": moved + 19 * 4 * 64}
    assert one("attention").setup().facts == causal
    assert one("attention", causal=False).setup().facts.keys() == causal.keys() - {"causal_flops"}


@pytest.mark.parametrize("experiment", CATALOG)
def test_a_field_refuses_what_it_cannot_be_and_says_what_it_can(experiment):
    case = one(experiment)
    for field in fields(case):
        with pytest.raises(ValueError, match=f"^{field.name}: got "):
            replace(case, **{field.name: {str: "unheard of", int: -1, float: -1.0, bool: 1}[field.type]})


@pytest.mark.parametrize("experiment", CATALOG)
def test_every_field_has_a_default_and_the_catalogue_names_it(experiment):
    case = cases.case_class(experiment)()
    assert tuple(field.name for field in fields(case)) == CATALOG[experiment].fields


def operations(work):
    work.before()
    with torch.profiler.profile() as profile:
        work.iteration(timing.nothing)
    return {event.key for event in profile.key_averages()}


def test_attention_with_native_inputs_casts_nothing():
    native = one("attention", variant="sdpa", precision="bf16", native=True).setup()
    assert "aten::_to_copy" not in operations(native)
    assert native.result()["out"].dtype == torch.bfloat16
    assert "aten::_to_copy" in operations(one("attention", variant="sdpa", precision="bf16").setup())
    with pytest.raises(ValueError, match="native: got True, expected False in fp32"):
        one("attention", native=True)


def test_cases_of_one_shape_share_a_reference():
    naive, sdpa = (one("step", attention=attention).setup().expected() for attention in ("naive", "sdpa"))
    assert naive["logits"] is sdpa["logits"]
