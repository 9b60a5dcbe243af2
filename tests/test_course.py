"""The names of the course's adapters stand for what is built here."""

import course
import rank_checks
from lib.flash import FlashAttentionTorch, FlashAttentionTriton


def test_each_edition_of_the_course_finds_its_names():
    assert course.get_flashattention_autograd_function_pytorch() is FlashAttentionTorch
    assert course.get_flashattention_autograd_function_triton() is FlashAttentionTriton
    assert course.get_ddp is course.get_ddp_individual_parameters
    assert course.ddp_on_after_backward is course.ddp_individual_parameters_on_after_backward


def test_a_step_by_each_adapter_for_ranks_is_that_of_one_process(two_ranks):
    for errors in two_ranks.run(rank_checks.errors_of_course_adapters):
        assert len(errors) == 4
        assert max(errors) < 1e-6
