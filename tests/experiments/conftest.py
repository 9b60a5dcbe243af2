"""What the tests of experiments share: ranks that stay for the next test, and little garbage to collect."""

import pytest

from lib.experiments import on_ranks


@pytest.fixture(autouse=True, scope="module")
def _little_garbage(little_garbage):
    """Every case collects garbage."""


@pytest.fixture(scope="session")
def same_ranks(two_ranks):
    """Measure cases on two ranks in the same processes."""
    on_ranks._worlds[2, "gloo"] = two_ranks
    two_ranks.run(f"{on_ranks.__name__}.close")  # imports what a case needs
    for name in ("collect", "freeze"):  # what is there then is no garbage
        two_ranks.run(f"gc.{name}")
    yield
    on_ranks._worlds.clear()
