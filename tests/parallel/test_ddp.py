"""Replicas that average their gradients train as one process does on the examples of all ranks."""

import pytest

import training_checks as checks
from lib.parallel.ddp import VARIANTS

SIZES = [(variant, 0.0016) for variant in VARIANTS] + [("bucketed", 0.0001), ("bucketed", 0.01)]


@pytest.mark.parametrize("model", ["tied", "frozen", "toy"])
@pytest.mark.parametrize(("variant", "bucket_mib"), SIZES)
def test_five_steps_are_those_of_one_process(two_ranks, variant, bucket_mib, model):
    first, second = two_ranks.run(checks.trained, kind="ddp", model=model, variant=variant, bucket_mib=bucket_mib)
    assert first["change"] > 1e-2
    assert first["error"] == second["error"] == 0
    buckets = first["sent"]
    assert buckets == second["sent"]
    assert sum(buckets) == sum(first["sizes"])
    if variant == "bucketed":
        assert max(buckets) <= max(bucket_mib * 2**20, *first["sizes"])
    if bucket_mib == 0.0016 and model != "toy":  # whose unused layers hold back the bucket
        assert (first["in_backward"] > 0) == (variant in ("overlap", "bucketed"))
    if variant in ("naive", "overlap"):
        assert sorted(buckets) == sorted(first["sizes"])
    if variant == "flat":
        assert len(buckets) == 1


def test_a_second_backward_pass_without_synchronization_is_refused(two_ranks):
    two_ranks.run(checks.backward_twice)


@pytest.mark.parametrize("variant", VARIANTS)
def test_a_wrapper_can_be_used_as_pytorchs(two_ranks, variant):
    assert max(two_ranks.run(checks.uneven_use, kind="ddp", variant=variant)) < 1e-6


@pytest.mark.parametrize("kind", ["ddp", "fsdp"])
def test_a_module_can_be_let_go(two_ranks, kind):
    assert two_ranks.run(checks.freed, kind=kind) == [True, True]
