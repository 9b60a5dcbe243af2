"""What the tests of training on several processes share: two ranks."""

import pytest

from lib.parallel import ranks


@pytest.fixture(scope="session")
def call():
    """Call a function of `parallel_checks` in two ranks; they start once, since importing torch takes seconds."""
    with ranks.World(2) as world:
        yield lambda function, **arguments: world.run(f"tests.support.parallel_checks.{function}", **arguments)
