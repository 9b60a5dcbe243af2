"""What the tests of training on several processes share: two ranks."""

import pytest


@pytest.fixture(scope="session")
def call(two_ranks):
    """Call a function of `parallel_checks` in two ranks."""
    return lambda function, **arguments: two_ranks.run(f"tests.support.parallel_checks.{function}", **arguments)
