"""Records that the tests of several chapters start from."""

import functools

import pytest

from profiled import CASE, metrics


@pytest.fixture
def profiled(save_rounds):
    return functools.partial(save_rounds, "kernels", CASE, metrics)
