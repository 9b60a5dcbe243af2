"""What the tests of experiments share: ranks that stay for the next test, and little garbage to collect."""

import pytest

from lib.experiments import on_ranks
from lib.parallel import ranks


@pytest.fixture(autouse=True, scope="module")
def _little_garbage(little_garbage):
    """Every case collects garbage."""


@pytest.fixture(scope="session")
def same_ranks():
    """Cases on two ranks are measured in the same processes, since importing torch takes seconds."""
    world = on_ranks._worlds[2, "gloo"] = ranks.World(2)
    world.run(f"{on_ranks.__name__}.close")  # imports what a case needs
    world.run("gc.freeze")  # which then is no garbage
    yield
    on_ranks.close()
