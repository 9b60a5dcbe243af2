"""A sharded optimizer steps as one that is not."""

import pandas as pd
import pytest

import optimizer_checks
import training_checks as checks
from lib.parallel import ranks


@pytest.mark.parametrize(("model", "optimizer"), [("tied", "torch"), ("plain", "ours")])
def test_ten_steps_are_those_of_one_process(two_ranks, model, optimizer):
    by_rank = pd.DataFrame(two_ranks.run(optimizer_checks.sharded_optimizer, model=model, optimizer=optimizer))
    assert (by_rank["change"] > 1e-2).all()
    assert (by_rank["error"] == 0).all()
    assert by_rank["rates"].all()
    assert by_rank["loss"].tolist() == [12, 12]  # of the last closure
    assert by_rank["own"].sum() == by_rank["all"][0]
    assert by_rank["own"].max() < 0.6 * by_rank["all"][0]


@pytest.mark.parametrize("name", ["counting", "muon", "torch"])
def test_any_optimizer_steps_as_in_one_process_copied_or_loaded_whole(two_ranks, name):
    assert two_ranks.run(optimizer_checks.other_optimizers, name=name) == [0, 0]


def test_three_ranks_train_as_one_process():
    with ranks.World(3) as world:
        results = world.run(optimizer_checks.sharded_optimizer, model="plain", optimizer="torch")
        results += world.run(checks.trained, kind="ddp", model="toy", variant="bucketed")
        # a matrix of one row leaves two ranks without any
        results += world.run(checks.trained, kind="fsdp", model="alike")
    assert (pd.DataFrame(results)["error"] < 1e-6).all()


@pytest.mark.parametrize("is_sharded", [False, True])
def test_masters_on_all_ranks_or_divided_among_them_train_as_those_of_one_process(two_ranks, is_sharded):
    by_rank = pd.DataFrame(two_ranks.run(optimizer_checks.masters, is_sharded=is_sharded))
    assert (by_rank["error"] < 0.1).all()
    assert (by_rank["between_ranks"] == 0).all()
    assert by_rank["types"].tolist() == [["torch.float32"]] * 2
    matrices = 2 * 7 + 1  # of two layers, and the head
    assert by_rank["masters"].sum() == (matrices if is_sharded else 2 * matrices)
