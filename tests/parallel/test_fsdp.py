"""Fully sharded training is that of one process, and a rank holds its rows and two layers."""

import pytest
import torch
from torch.optim import SGD, AdamW

import fsdp_checks
import training_checks as checks


@pytest.mark.parametrize(("model", "parts"), [("plain", 3), ("tied", 1), ("frozen", 1), ("alike", 1), ("compiled", 1)])
def test_five_steps_in_fp32_are_those_of_one_process(two_ranks, model, parts):
    first, second = two_ranks.run(checks.trained, kind="fsdp", model=model, parts=parts)
    assert first["change"] > 1e-2
    # several parts add up on each rank first, and rounding differs
    assert max(first["error"], second["error"]) <= (0 if parts == 1 else 1e-6)
    # matrices are divided, vectors are not
    assert first["own"] + second["own"] == first["matrices"] + 2 * first["vectors"]
    assert first["own"] < 0.7 * (first["matrices"] + first["vectors"])


@pytest.mark.parametrize("model", ["alike", "tied"])
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_training_in_a_narrow_type_keeps_fp32_weights_near_those_of_fp32(two_ranks, model, dtype):
    for rank in two_ranks.run(checks.trained, kind="fsdp", model=model, dtype=dtype):
        assert 1e-6 < rank["error"] < 2e-2


@pytest.mark.parametrize(("dtype", "width"), [(None, 4), (torch.bfloat16, 2)])
def test_at_most_two_layers_are_gathered_and_none_between_steps(two_ranks, dtype, width):
    layer = 4 * 128**2 + 3 * 128 * 512 + 2 * 128
    for rank in two_ranks.run(fsdp_checks.gathered_memory, dtype=dtype):
        assert rank["after"] == rank["followed"] == 0
        assert rank["most"] == width * (10_000 * 128 + layer)  # the embedding beside a layer


def test_batches_can_be_dropped_fail_and_add_up(two_ranks):
    assert max(two_ranks.run(checks.uneven_use, kind="fsdp")) < 1e-6


@pytest.mark.parametrize("change", [fsdp_checks.assign_data, fsdp_checks.assign_views, fsdp_checks.change_in_place])
@pytest.mark.parametrize("model", ["plain", "tied"])
def test_weights_that_are_changed_from_outside_are_those_that_compute(two_ranks, change, model):
    assert max(two_ranks.run(fsdp_checks.changed_from_outside, change=change, model=model)) < 1e-6


@pytest.mark.parametrize("norm_type", [2.0, 1.0, float("inf")])
def test_gradients_are_clipped_by_the_norm_of_all_ranks(two_ranks, norm_type):
    for rank in two_ranks.run(fsdp_checks.clipped, norm_type=norm_type):
        assert max(rank.values()) < 1e-6


@pytest.mark.parametrize("make", [SGD, AdamW])
def test_all_ranks_skip_a_step_whose_gradient_is_infinite_on_any(two_ranks, make):
    assert two_ranks.run(fsdp_checks.infinite_gradient, make=make) == [[1.0, 0]] * 2


@pytest.mark.parametrize(("size", "most"), [(1, 2), (4, 3)])
def test_a_checkpoint_frees_its_layers(two_ranks, size, most):
    assert two_ranks.run(fsdp_checks.checkpointed, size=size) == [most] * 2


def test_what_has_no_right_result_is_refused(two_ranks):
    two_ranks.run(fsdp_checks.refused)
