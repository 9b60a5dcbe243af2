"""Replicas that average their gradients train as one process does on the examples of all ranks."""

import pytest

from lib.parallel.ddp import VARIANTS, DistributedDataParallel

MIB = 2**20


def check(found):
    """The ranks have the same weights as one process, and issued the same collectives in the same order."""
    one, other = found
    assert one["change"] > 1e-2
    assert max(one["error"], other["error"]) < 1e-6
    for same in ("order", "bytes", "checksum", "without"):
        assert one[same] == other[same]
    return one


@pytest.mark.parametrize(("model", "parts"), [("plain", 1), ("tied", 1), ("frozen", 1), ("toy", 3)])
@pytest.mark.parametrize("variant", VARIANTS)
def test_five_steps_are_those_of_one_process_also_of_several_backward_passes(call, variant, model, parts):
    one = check(call("data_parallel", model=model, variant=variant, bucket_mib=0.0016, parts=parts))
    assert (one["in_backward"] > 0) == (variant in ("overlap", "bucketed"))
    assert one["timed"]
    if model == "toy":
        assert len(one["order"]) == 5 * {"naive": 16, "flat": 2, "overlap": 16, "bucketed": 4}[variant]
        assert one["without"] == ["spare.weight", "spare.bias", "never.weight", "never.bias"]  # what no rank used


@pytest.mark.parametrize("bucket_mib", [0.0001, 0.0016, 0.01])
@pytest.mark.parametrize("model", ["plain", "tied", "frozen", "toy"])
def test_buckets_of_any_size_hold_all_gradients(call, model, bucket_mib):
    one = check(call("data_parallel", model=model, variant="bucketed", bucket_mib=bucket_mib))
    *buckets, used = one["bytes"][: len(one["bytes"]) // 5]
    assert sum(buckets) == one["gradient_bytes"]
    assert max(buckets) <= max(bucket_mib * MIB, one["largest_bytes"])
    assert used == 4 * one["parameters"]


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
