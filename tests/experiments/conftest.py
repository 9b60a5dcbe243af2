"""What tests of cases share."""

import pytest


@pytest.fixture(autouse=True)
def _undone(former_precision, one_thread):
    """A case's precision and the tests' number of threads are for one test."""


@pytest.fixture(scope="session")
def same_ranks(two_ranks):
    """Measure cases on two ranks in the same processes."""
    from lib.experiments import on_ranks

    on_ranks._worlds[2, "gloo"] = two_ranks
    yield
    on_ranks._worlds.clear()
