"""The names of the course's adapters stand for what is built here."""

import course
import rank_checks
from lib.flash import FlashAttentionTorch, FlashAttentionTriton


def test_flash_attention_is_that_of_lib():
    assert course.get_flashattention_autograd_function_pytorch() is FlashAttentionTorch
    assert course.get_flashattention_autograd_function_triton() is FlashAttentionTriton


def test_a_step_by_each_adapter_for_ranks_is_that_of_one_process(two_ranks):
    for errors in two_ranks.run(rank_checks.errors_of_course_adapters):
        assert len(errors) == 5
        assert max(errors) < 1e-6
