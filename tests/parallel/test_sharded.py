"""A sharded optimizer steps as one that is not."""

import pytest

import optimizer_checks
import training_checks as checks
from lib.instruments import environment
from lib.parallel import ranks


@pytest.mark.parametrize(("model", "optimizer"), [("tied", "torch"), ("plain", "ours")])
def test_ten_steps_are_those_of_one_process(two_ranks, model, optimizer):
    states = two_ranks.run(optimizer_checks.sharded_optimizer, model=model, optimizer=optimizer)
    for rank in states:
        assert rank["change"] > 1e-2
        assert rank["error"] == 0
        assert rank["rates"]
        assert rank["loss"] == 12  # of the last closure
    assert sum(rank["own"] for rank in states) == states[0]["all"]
    assert max(rank["own"] for rank in states) < 0.6 * states[0]["all"]


@pytest.mark.parametrize("name", ["counting", "muon", "torch"])
def test_any_optimizer_steps_as_in_one_process_copied_or_loaded_whole(two_ranks, name):
    assert two_ranks.run(optimizer_checks.other_optimizers, name=name) == [0, 0]


def test_three_ranks_train_as_one_process():
    with ranks.World(3) as world:
        results = world.run(optimizer_checks.sharded_optimizer, model="plain", optimizer="torch")
        results += world.run(checks.trained, kind="ddp", model="toy", variant="bucketed")
        # a matrix of one row leaves two ranks without any
        results += world.run(checks.trained, kind="fsdp", model="alike")
    assert max(result["error"] for result in results) < 1e-6


@pytest.mark.skipif(environment.compiler_missing("cpu") is not None, reason="no C++ compiler")
def test_masters_on_ranks_that_own_some_of_them_train_as_those_of_one_process(two_ranks):
    results = two_ranks.run(optimizer_checks.masters, is_sharded=True)
    assert max(result["error"] for result in results) < 0.1
    assert [result["between_ranks"] for result in results] == [0, 0]
    assert [result["types"] for result in results] == [["torch.float32"]] * 2
    assert sum(result["masters"] for result in results) == 15  # two layers of seven matrices, and the head
