"""Replicas that average their gradients train as one process does on the examples of all ranks."""

import pytest

from lib.parallel.ddp import VARIANTS, DistributedDataParallel

MIB = 2**20
SIZES = [(variant, 0.0016) for variant in VARIANTS] + [("bucketed", 0.0001), ("bucketed", 0.01)]


@pytest.mark.parametrize(("model", "parts"), [("plain", 1), ("tied", 1), ("frozen", 1), ("toy", 3)])
@pytest.mark.parametrize(("variant", "bucket_mib"), SIZES)
def test_five_steps_are_those_of_one_process(call, variant, bucket_mib, model, parts):
    first, second = call("trained", kind="ddp", model=model, variant=variant, bucket_mib=bucket_mib, parts=parts)
    assert first["change"] > 1e-2
    # several parts add up on each rank first, and rounding differs
    assert max(first["error"], second["error"]) <= (0 if parts == 1 else 1e-6)
    for name in ("sent", "vectors", "without"):
        assert first[name] == second[name]
    *buckets, used = first["sent"]
    assert sum(buckets) == sum(first["sizes"])
    assert used == 4 * len(first["sizes"])
    if variant == "bucketed":
        assert max(buckets) <= max(bucket_mib * MIB, *first["sizes"])
    if bucket_mib == 0.0016 and model != "toy":  # whose unused layers hold back the bucket
        assert (first["in_backward"] > 0) == (variant in ("overlap", "bucketed"))
    if variant in ("naive", "overlap"):
        assert sorted(buckets) == sorted(first["sizes"])
    if variant == "flat":
        assert len(buckets) == 1
    if model == "toy":
        # no rank used them in the last step
        assert first["without"] == ["spare.weight", "spare.bias", "never.weight", "never.bias"]


def test_a_second_backward_pass_without_synchronization_is_refused(call):
    assert all("no_sync" in message for message in call("backward_twice"))


@pytest.mark.parametrize("kind", ["ddp", "fsdp"])
def test_a_module_can_be_let_go(call, kind):
    assert call("freed", kind=kind) == [True, True]


@pytest.mark.parametrize("kind", ["ddp", "fsdp"])
def test_where_the_order_of_sums_does_not_matter_the_bits_are_those_of_the_whole_batch(call, kind):
    assert call("exact_sums", kind=kind) == [0, 0]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"variant": "overlaped"}, r"^variant: got 'overlaped'.*nearest: overlap"),
        ({"bucket_mib": 0}, "^bucket_mib: got 0"),
    ],
)
def test_bad_arguments_are_refused_by_name(arguments, message):
    with pytest.raises(ValueError, match=message):
        DistributedDataParallel(None, **arguments)
