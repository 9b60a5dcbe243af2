"""What the tests of experiments share: ranks that stay for the next test."""

import pytest

from lib.experiments import on_ranks


@pytest.fixture(scope="session")
def same_ranks():
    """Cases on as many ranks are measured in the same processes, since importing torch takes seconds."""
    yield
    on_ranks.close()
