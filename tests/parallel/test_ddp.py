"""Replicas that average their gradients train as one process does on the examples of all ranks."""

import pytest

from lib.parallel.ddp import VARIANTS, DistributedDataParallel

MIB = 2**20
SIZES = [(variant, 0.0016) for variant in VARIANTS] + [("bucketed", 0.0001), ("bucketed", 0.01)]


@pytest.mark.parametrize(("model", "parts"), [("plain", 1), ("tied", 1), ("frozen", 1), ("toy", 3)])
@pytest.mark.parametrize(("variant", "bucket_mib"), SIZES)
def test_five_steps_are_those_of_one_process_also_of_several_backward_passes(call, variant, bucket_mib, model, parts):
    one, other = call("data_parallel", model=model, variant=variant, bucket_mib=bucket_mib, parts=parts)
    assert one["change"] > 1e-2
    assert max(one["error"], other["error"]) < 1e-6
    for same in ("sent", "checksum", "without"):
        assert one[same] == other[same]
    *buckets, used = one["sent"][: len(one["sent"]) // 5]
    assert sum(buckets) == one["gradient_bytes"]
    assert used == 4 * one["parameters"]
    if variant == "bucketed":
        assert max(buckets) <= max(bucket_mib * MIB, one["largest_bytes"])
    if bucket_mib == 0.0016:
        assert (one["in_backward"] > 0) == (variant in ("overlap", "bucketed"))
        assert model != "toy" or len(buckets) == {"naive": 15, "flat": 1, "overlap": 15, "bucketed": 3}[variant]
    if model == "toy":
        assert one["without"] == ["spare.weight", "spare.bias", "never.weight", "never.bias"]  # what no rank used


def test_a_second_backward_pass_without_synchronization_is_refused(call):
    assert all("no_sync" in said for said in call("backward_twice"))


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ({"variant": "overlaped"}, r"^variant: got 'overlaped'.*nearest: overlap"),
        ({"bucket_mib": 0}, "^bucket_mib: got 0"),
    ],
)
def test_what_cannot_be_is_refused_by_name(arguments, said):
    with pytest.raises(ValueError, match=said):
        DistributedDataParallel(None, **arguments)
