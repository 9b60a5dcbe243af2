"""Replicas that average their gradients train as one process does on the examples of all ranks."""

import pytest

from lib.parallel.ddp import VARIANTS, DistributedDataParallel

SIZES = [(variant, 0.0016) for variant in VARIANTS] + [("bucketed", 0.0001), ("bucketed", 0.01)]


@pytest.mark.parametrize(("model", "parts"), [("tied", 1), ("frozen", 1), ("toy", 3)])
@pytest.mark.parametrize(("variant", "bucket_mib"), SIZES)
def test_five_steps_are_those_of_one_process(call, variant, bucket_mib, model, parts):
    first, second = call("trained", kind="ddp", model=model, variant=variant, bucket_mib=bucket_mib, parts=parts)
    assert first["change"] > 1e-2
    # several parts add up on each rank first, and rounding differs
    assert max(first["error"], second["error"]) <= (0 if parts == 1 else 1e-6)
    assert first["vectors"] == second["vectors"]
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


def test_a_second_backward_pass_without_synchronization_is_refused(call):
    assert all("no_sync" in message for message in call("backward_twice"))


@pytest.mark.parametrize("kind", ["ddp", "fsdp"])
def test_a_module_can_be_let_go(call, kind):
    assert call("freed", kind=kind) == [True, True]


@pytest.mark.parametrize("kind", ["ddp", "fsdp"])
def test_where_the_order_of_sums_does_not_matter_the_bits_are_those_of_the_whole_batch(call, kind):
    assert call("exact_sums", kind=kind) == [0, 0]


def test_an_unknown_variant_is_refused_with_the_nearest_name():
    with pytest.raises(ValueError, match=r"^variant: got 'overlaped'.*nearest: overlap"):
        DistributedDataParallel(None, "overlaped")
