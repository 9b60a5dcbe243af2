"""Both ways of the softmax sum to one, and agree."""

import pytest
import torch
from lib.experiments.softmax import VARIANTS


@pytest.mark.parametrize("variant", VARIANTS)
def test_the_rows_sum_to_one_also_where_numbers_are_large(variant):
    rows = VARIANTS[variant](100 * torch.randn(8, 32))
    assert torch.allclose(rows.sum(-1), torch.ones(8))
