"""A case knows what it computes in theory, whether the machine has the means for it, and refuses what cannot be."""

from dataclasses import fields, replace

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from lib import timing
from lib.catalog import CATALOG
from lib.experiments import case as measuring
from lib.experiments.case import Recording
from plain import one


class Dtypes(TorchDispatchMode):
    """Remembers the operations inside, and the dtypes of their results of several dimensions."""

    def __init__(self):
        super().__init__()
        self.names, self.dtypes = set(), set()

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        result = function(*args, **(kwargs or {}))
        tensors = [x for x in tree_leaves(result) if isinstance(x, torch.Tensor) and x.shape[-1:] == (4,)]
        self.names.add(str(function))
        self.dtypes |= {x.dtype for x in tensors}
        return result


def test_the_facts_of_a_step_and_of_attention_hold_what_theory_says_of_each_phase():
    facts = one("step", batch_size=1).setup().facts
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


@pytest.mark.parametrize("experiment", CATALOG)
def test_a_field_refuses_what_it_cannot_be_and_says_what_it_can(experiment):
    case = one(experiment)
    for field in fields(case):
        with pytest.raises(ValueError, match=f"^{field.name}: got "):
            replace(case, **{field.name: {str: "unheard of", int: -1, float: -1.0, bool: 1}[field.type]})


def test_what_the_machine_has_no_means_for_is_left_out_and_says_why():
    case = one("attention", precision="tf32")
    assert "CUDA" in case.unavailable()


def test_attention_with_native_inputs_casts_nothing():
    case = one("attention", variant="sdpa", precision="bf16", native=True)
    work = case.setup()
    work.before()
    with Dtypes() as seen:
        work.iteration(timing.nothing)
    assert seen.dtypes == {torch.bfloat16}
    assert "aten._to_copy.default" not in seen.names
    record = Recording(case)
    measuring.check(record, work)
    assert set(record.metrics) >= {"out_error", "gradient_error", "saved_mib"}
    by_autocast = one("attention", variant="sdpa", precision="bf16").setup()
    by_autocast.before()
    with Dtypes() as seen:
        by_autocast.iteration(timing.nothing)
    assert "aten._to_copy.default" in seen.names
    with pytest.raises(ValueError, match="native: got True, expected False in fp32"):
        one("attention", native=True)


def test_the_kernel_that_sdpa_runs_stands_in_its_facts():
    assert one("attention", variant="sdpa").setup().facts["sdpa_backend"] == "flash"
    assert "sdpa_backend" not in one("attention").setup().facts
