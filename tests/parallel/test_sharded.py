"""A sharded optimizer steps as one that is not, and its state moves to any number of ranks."""

import pytest

from lib.parallel import ranks

CHECKS = "tests.support.parallel_checks"
OPTIMIZERS = ["torch", "ours"]


@pytest.mark.parametrize("optimizer", OPTIMIZERS)
@pytest.mark.parametrize("model", ["plain", "tied", "frozen"])
def test_ten_steps_with_groups_and_a_schedule_are_those_of_one_process(call, model, optimizer):
    found = call("sharded_optimizer", model=model, optimizer=optimizer)
    for one in found:
        assert one["change"] > 1e-2
        assert max(one["error"], one["state_error"]) < 1e-7
        assert one["loss"] == 12  # of the last closure
    owned = [one["own"] for one in found]
    assert sum(owned) == one["numel"]
    assert max(owned) < 0.52 * one["numel"]


def test_a_step_takes_a_broadcast_of_each_rank(call):
    for sent in call("broadcasts"):
        assert len(sent) == 2
        assert sum(sent) == 4 * 3_609_728


@pytest.fixture(scope="module")
def saved(call, tmp_path_factory):
    paths = {name: str(tmp_path_factory.mktemp("states") / f"{name}.pt") for name in OPTIMIZERS}
    for name, path in paths.items():
        call("saved_state", path=path, optimizer=name)
    return paths


@pytest.mark.parametrize("optimizer", OPTIMIZERS)
@pytest.mark.parametrize("sharded", [True, False], ids=["sharded", "plain"])
def test_a_saved_optimizer_continues_as_if_never_stopped(call, saved, optimizer, sharded):
    assert max(call("continued", path=saved[optimizer], optimizer=optimizer, sharded=sharded)) < 1e-7


def test_a_state_loads_on_another_number_of_ranks(saved):
    with ranks.World(1) as other:
        for optimizer in OPTIMIZERS:
            (found,) = other.run(f"{CHECKS}.continued", path=saved[optimizer], optimizer=optimizer)
            assert found < 1e-7


def test_on_three_ranks_a_state_loads_and_training_is_that_of_one_process(saved):
    with ranks.World(3) as others:
        for optimizer in OPTIMIZERS:
            assert max(others.run(f"{CHECKS}.continued", path=saved[optimizer], optimizer=optimizer)) < 1e-7
        given = {"model": "plain", "variant": "bucketed", "bucket_mib": 0.0016, "parts": 1}
        found = others.run(f"{CHECKS}.data_parallel", **given) + others.run(f"{CHECKS}.fully_sharded", model="plain")
        assert max(one["error"] for one in found) < 1e-6


def test_a_state_of_other_groups_is_refused(call):
    assert call("other_groups") == ["param_groups: got [2] parameters, expected [1]"] * 2


def test_shared_memory_stays_shared_and_late_parameters_join(call):
    assert call("shared_memory") == [{"whole": [value - 2.0 for value in range(12)], "later": [0.0] * 6}] * 2
